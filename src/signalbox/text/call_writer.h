// SPDX-License-Identifier: Apache-2.0
//
// CallWriter: the events of tool calls whose arguments come one by one and in pieces. The JSON is
// that of Python's json.dumps: `{"city": "Rome", "days": 3}`.
//
//   CallWriter calls;
//   calls.Begin("get_weather", events);
//   if (calls.BeginArgument("city", /*is_text=*/true, events)) calls.Value("Rome", events);
//   calls.End(events);
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

#include "signalbox/text/output_parser.h"

namespace signalbox {

// Appends `text` as it stands inside the quotes of a JSON text. Pieces may be cut anywhere.
void AppendJsonEscaped(std::string_view text, std::string& out);
// `text` in quotes.
std::string JsonText(std::string_view text);
// `text` without surrounding space where that is valid JSON, else as a JSON text.
std::string JsonOrText(std::string_view text);

class CallWriter {
 public:
  // REQUIRES: name is not empty.
  void Begin(std::string_view name, OutputEvents& events);
  bool in_call() const { return in_call_; }
  bool in_argument() const { return in_argument_; }
  bool has_arguments() const { return is_whole_ || !keys_.empty(); }

  // False, and nothing is written, where the call has this argument already. A value that `is_text`
  // is passed on as it comes; another when it is complete: as the JSON it is, or else as text.
  bool BeginArgument(std::string_view key, bool is_text, OutputEvents& events);
  void Value(std::string_view piece, OutputEvents& events);
  void EndArgument(OutputEvents& events);
  // All arguments at once, instead of the above, as JSON text.
  void Whole(std::string_view json, OutputEvents& events);
  // Ends what is open. Without effect outside a call.
  void End(OutputEvents& events);

 private:
  void Emit(std::string text, OutputEvents& events);

  size_t next_call_ = 0;
  bool in_call_ = false;
  bool in_argument_ = false;
  bool is_text_ = false;
  bool is_whole_ = false;
  std::string held_;            // of a value that is no text
  std::set<std::string> keys_;  // of this call
};

}  // namespace signalbox
