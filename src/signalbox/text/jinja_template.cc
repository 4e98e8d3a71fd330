// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/jinja_template.h"

#include <utility>

#include "signalbox/text/jinja_interpreter.h"
#include "signalbox/text/jinja_parser.h"

namespace signalbox::jinja {

Template::Template(std::vector<Stmt> body)
    : body_(std::make_shared<const std::vector<Stmt>>(std::move(body))) {}

Result<Template> Template::Parse(std::string_view source, const Limits& limits) {
  if (source.size() > limits.template_bytes) {
    return InvalidArgument({.what = "the template is too long",
                            .found = std::to_string(source.size()) + " bytes",
                            .expected = "at most " + std::to_string(limits.template_bytes)});
  }
  SB_ASSIGN_OR_RETURN(Body body, ParseTemplate(source));
  return Template(std::move(body));
}

Result<Segments> Template::Render(const Dict& context, const RenderOptions& options) const {
  SB_ASSIGN_OR_RETURN(const Text text, Interpreter(context, options).Run(*body_));
  return text.ToSegments();
}

}  // namespace signalbox::jinja
