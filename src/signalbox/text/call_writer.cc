// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/call_writer.h"

#include <cstdint>
#include <utility>

#include <nlohmann/json.hpp>

#include "signalbox/base/check.h"
#include "signalbox/base/json_util.h"
#include "signalbox/text/json_escape.h"

namespace signalbox {

void AppendJsonEscaped(std::string_view text, std::string& out) {
  for (const char c : text) {
    // Bytes of longer characters stay as they are, wherever a piece was cut.
    if (!AppendJsonEscape(static_cast<uint8_t>(c), out)) out += c;
  }
}

std::string JsonText(std::string_view text) {
  std::string json = "\"";
  AppendJsonEscaped(text, json);
  return json + '"';
}

std::string JsonOrText(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return JsonText(text);
  const std::string_view json = text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
  return ParseJson(json).ok() ? std::string(json) : JsonText(text);
}

void CallWriter::Begin(std::string_view name, OutputEvents& events) {
  SB_CHECK(!name.empty());
  End(events);
  in_call_ = true;
  is_whole_ = false;
  keys_.clear();
  events.push_back(
      {.kind = OutputEvent::Kind::kCallName, .text = std::string(name), .call = next_call_++});
}

bool CallWriter::BeginArgument(std::string_view key, bool is_text, OutputEvents& events) {
  SB_CHECK(in_call_);
  EndArgument(events);
  const bool first = keys_.empty();
  if (is_whole_ || !keys_.insert(std::string(key)).second) return false;
  in_argument_ = true;
  is_text_ = is_text;
  held_.clear();
  Emit((first ? "{" : ", ") + JsonText(key) + (is_text ? ": \"" : ": "), events);
  return true;
}

void CallWriter::Value(std::string_view piece, OutputEvents& events) {
  SB_CHECK(in_argument_);
  if (!is_text_) {
    held_ += piece;
    return;
  }
  std::string escaped;
  AppendJsonEscaped(piece, escaped);
  Emit(std::move(escaped), events);
}

void CallWriter::EndArgument(OutputEvents& events) {
  if (!in_argument_) return;
  in_argument_ = false;
  Emit(is_text_ ? "\"" : JsonOrText(held_), events);
}

void CallWriter::Whole(std::string_view json, OutputEvents& events) {
  SB_CHECK(in_call_ && keys_.empty() && !is_whole_);
  is_whole_ = true;
  Emit(std::string(json), events);
}

void CallWriter::End(OutputEvents& events) {
  if (!in_call_) return;
  EndArgument(events);
  if (!is_whole_) Emit(keys_.empty() ? "{}" : "}", events);
  in_call_ = false;
}

void CallWriter::Emit(std::string text, OutputEvents& events) {
  if (text.empty()) return;
  events.push_back(
      {.kind = OutputEvent::Kind::kCallArguments, .text = std::move(text), .call = next_call_ - 1});
}

}  // namespace signalbox
