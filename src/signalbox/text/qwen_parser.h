// SPDX-License-Identifier: Apache-2.0
//
// Answers of Qwen3 and its relatives: reasoning in <think>, calls in <tool_call>, told apart by
// their spelling. Space around reasoning, around calls and before the answer belongs to none of
// them. A call may come before the reasoning is closed.
//
// What is inside <tool_call> is read by a CallParser:
//   Hermes  {"name": "f", "arguments": {"a": 1}}
//   XML     <function=f> <parameter=a> 1 </parameter> </function>, with newlines for the spaces
// What it cannot read is passed on as the text that it is, the tags included: nothing is lost in
// silence.
// Known limit: a value that spells one of the tags ends there.
//
//   QwenParser parser(MakeHermesCallParser(), /*in_reasoning=*/true);
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "signalbox/text/call_writer.h"
#include "signalbox/text/output_parser.h"

namespace signalbox {

// Reads calls from behind <tool_call> to behind </tool_call>.
class CallParser {
 public:
  virtual ~CallParser() = default;
  // Takes what it can from the front of `pending`. True once the closing tag is taken; then
  // `unread` is the text before it where there was no call in it.
  virtual bool Read(std::string& pending, std::string& unread, OutputEvents& events) = 0;
  // The call ends without a closing tag.
  virtual void Finish(std::string_view pending, std::string& unread, OutputEvents& events) = 0;
};
std::unique_ptr<CallParser> MakeHermesCallParser();
std::unique_ptr<CallParser> MakeXmlCallParser(ParameterTypes types);

class QwenParser final : public OutputParser {
 public:
  QwenParser(std::unique_ptr<CallParser> calls, bool in_reasoning)
      : calls_(std::move(calls)),
        place_(in_reasoning ? Place::kReasoning : Place::kContent),
        keep_space_(!in_reasoning),
        may_think_(!in_reasoning),
        only_thought_(in_reasoning) {}

  void Text(std::string_view text, OutputEvents& events) override;
  void Marker(std::string_view spelling, OutputEvents& events) override { Text(spelling, events); }
  void Finish(bool stopped, OutputEvents& events) override;
  bool in_reasoning() const override { return place_ == Place::kReasoning; }

 private:
  enum class Place { kReasoning, kContent, kCall };

  bool Step(OutputEvents& events);
  bool StepText(OutputEvents& events);
  void EndCall(const std::string& unread, bool closed, OutputEvents& events);
  // Begins a run of text whose leading space counts or does not.
  void Begin(Place place, bool keep_space);
  void Emit(std::string_view text, OutputEvents& events);

  std::unique_ptr<CallParser> calls_;
  Place place_;
  Place call_from_ = Place::kContent;
  std::string pending_;  // not yet told what it is
  std::string space_;    // held back: dropped, or emitted before what follows
  bool begun_ = false;   // the run of text has more than space
  bool keep_space_;      // of its beginning
  bool may_think_;       // <think> is a tag: at the beginning only
  bool only_thought_;    // in the reasoning that the prompt opened
  std::string thought_;  // its text
};

}  // namespace signalbox
