// SPDX-License-Identifier: Apache-2.0
//
// Template source to its syntax tree. Everything that can be known without a context is checked
// here: syntax, tags, filters and tests, nesting. Errors are kInvalidArgument with the line.
//
//   SB_ASSIGN_OR_RETURN(Body body, ParseTemplate("{% if x %}{{ x | trim }}{% endif %}"));
#pragma once

#include <string_view>

#include "signalbox/text/jinja_ast.h"

namespace signalbox::jinja {

inline constexpr int kMaxSyntaxDepth = 100;  // of nested expressions, and of nested blocks

Result<Body> ParseTemplate(std::string_view source);

}  // namespace signalbox::jinja
