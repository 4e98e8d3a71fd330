// SPDX-License-Identifier: Apache-2.0
//
// The parts of CheckGrammar (grammar.h).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "signalbox/base/status.h"

namespace signalbox {

// "`what`: found `found`, expected at most `most`".
Status TooMuch(std::string what, size_t found, size_t most);

Status CheckRegex(std::string_view regex);

// Limits, and keywords that XGrammar leaves out without a word: those that it does not know, those
// beside one that it takes for all of a schema ($ref, enum, anyOf), those of a type that the schema
// does not name. An answer could then be outside the schema.
Status CheckSchema(const nlohmann::json& schema);

}  // namespace signalbox
