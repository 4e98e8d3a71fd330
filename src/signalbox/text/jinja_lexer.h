// SPDX-License-Identifier: Apache-2.0
//
// Template source to tokens, with the whitespace control that Hugging Face chat templates rely on:
// trim_blocks and lstrip_blocks on, one trailing newline dropped, "-" and "+" signs obeyed.
//
//   SB_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize("a {{- b }}"));
//   // kData "a", kVariableBegin, kName "b", kVariableEnd, kEnd
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/status.h"

namespace signalbox::jinja {

enum class TokenType {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type;
  int line;
  std::string text;  // data, name, operator, or a string's value without quotes and escapes
  int64_t integer = 0;
  double number = 0;
};

// Errors are kInvalidArgument with the line.
Result<std::vector<Token>> Tokenize(std::string_view source);

// "line N": where an error of a template is.
std::string LineName(int line);

}  // namespace signalbox::jinja
