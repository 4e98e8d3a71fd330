// SPDX-License-Identifier: Apache-2.0
//
// What is refused before the library sees it: sources past a limit, and the few spellings that it
// would read outside a table for.
#include "signalbox/text/grammar_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"
#include "signalbox/text/grammar.h"
#include "signalbox/text/unicode.h"

namespace signalbox {
namespace {

using Limits = GrammarLimits;

bool IsAscii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}

// The end of the character class or string that begins at `at`: one past its closing character.
size_t PastClosing(std::string_view source, size_t at, char closing) {
  for (++at; at < source.size(); ++at) {
    if (source[at] == '\\') {
      ++at;
    } else if (source[at] == closing) {
      return at + 1;
    }
  }
  return source.size();
}

// The largest number in {n}, {n,} and {n,m}, and one past the brace; nothing where it is no
// repetition.
std::optional<std::pair<size_t, size_t>> RepetitionAt(std::string_view source, size_t at) {
  size_t most = 0;
  size_t number = 0;
  for (size_t i = at + 1; i < source.size(); ++i) {
    const char c = source[i];
    if (c == '}') return std::pair(std::max(most, number), i + 1);
    if (c == ',') {
      most = std::max(most, std::exchange(number, 0));
    } else if (c >= '0' && c <= '9') {
      number = std::min<size_t>(number * 10 + static_cast<size_t>(c - '0'), 1 << 20);
    } else if (c != ' ') {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

// Brackets and repetitions of a regular expression or, where `strings` are in quotes, of EBNF.
Status CheckNesting(std::string_view source, bool strings) {
  // The greatest product of repetitions inside each bracket that is open.
  std::vector<size_t> open = {1};
  size_t last = 1;  // of what has just ended
  for (size_t at = 0; at < source.size();) {
    const char c = source[at];
    if (c == '{') {
      if (const auto repetition = RepetitionAt(source, at)) {
        const auto [count, end] = *repetition;
        if (count > Limits::kRepeat) return TooMuch("repeated too often", count, Limits::kRepeat);
        last *= std::max<size_t>(count, 1);
        if (last > Limits::kRepeated) {
          return TooMuch("repetitions multiply to too many", last, Limits::kRepeated);
        }
        open.back() = std::max(open.back(), last);
        at = end;
        continue;
      }
    }
    if (c == '*' || c == '+' || c == '?') {
      ++at;
      continue;
    }
    if (c == ')' && open.size() > 1) {
      last = open.back();
      open.pop_back();
      open.back() = std::max(open.back(), last);
      ++at;
      continue;
    }
    last = 1;
    if (c == '(') {
      open.push_back(1);
      if (open.size() > Limits::kDepth + 1) {
        return TooMuch("brackets nested too deeply", open.size() - 1, Limits::kDepth);
      }
    }
    if (c == '[') {
      at = PastClosing(source, at, ']');
    } else if (strings && c == '"') {
      at = PastClosing(source, at, '"');
    } else if (strings && c == '#') {
      at = std::min(source.find('\n', at), source.size());
    } else {
      at += c == '\\' && !strings ? 2 : 1;
    }
  }
  return OkStatus();
}

}  // namespace

Status TooMuch(std::string what, size_t found, size_t most) {
  return InvalidArgument({.what = std::move(what),
                          .found = fmt::format("{}", found),
                          .expected = fmt::format("at most {}", most)});
}

Status CheckRegex(std::string_view regex) {
  if (regex.size() > Limits::kRegexBytes) {
    return TooMuch("regular expression of too many bytes", regex.size(), Limits::kRegexBytes);
  }
  for (size_t at = 0; at + 1 < regex.size(); ++at) {
    const bool control = regex.substr(at).starts_with("\\c");
    const bool named = regex.substr(at).starts_with("(?<");
    if (control || named) {
      // The name up to '>', or the one character.
      const std::string_view rest = regex.substr(at + (control ? 2 : 3));
      const std::string_view name = rest.substr(0, control ? 1 : rest.find('>'));
      if (!std::all_of(name.begin(), name.end(), IsAscii)) {
        return InvalidArgument({.what = "not a name of ASCII letters",
                                .where = fmt::format("byte {} of the regular expression", at),
                                .found = std::string(name)});
      }
    }
    if (regex[at] == '\\') ++at;
  }
  return CheckNesting(regex, /*strings=*/false);
}

Status CheckGrammar(const GrammarSpec& spec) {
  const size_t most =
      spec.kind == GrammarSpec::Kind::kCalls ? Limits::kCallsBytes : Limits::kSourceBytes;
  if (spec.source.size() > most) {
    return TooMuch("grammar of too many bytes", spec.source.size(), most);
  }
  std::string text;
  AppendUtf8(spec.source, Utf8End::kFinal, text);
  if (text != spec.source || text.find('\0') != std::string::npos) {
    return InvalidArgument({.what = "grammar is not text", .expected = "UTF-8 without a NUL"});
  }
  switch (spec.kind) {
    case GrammarSpec::Kind::kJsonObject:
    case GrammarSpec::Kind::kCalls:  // its schemas were checked one by one
      return OkStatus();
    case GrammarSpec::Kind::kJsonSchema: {
      SB_ASSIGN_OR_RETURN(const nlohmann::json schema, ParseJson(spec.source));
      return CheckSchema(schema);
    }
    case GrammarSpec::Kind::kRegex:
      return CheckRegex(spec.source);
    case GrammarSpec::Kind::kEbnf:
      if (spec.source.size() > Limits::kEbnfBytes) {
        return TooMuch("grammar of too many bytes", spec.source.size(), Limits::kEbnfBytes);
      }
      return CheckNesting(spec.source, /*strings=*/true);
  }
  return OkStatus();
}

}  // namespace signalbox
