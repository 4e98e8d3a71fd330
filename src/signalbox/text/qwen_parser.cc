// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/qwen_parser.h"

#include <utility>

#include "signalbox/text/tag_scanner.h"

namespace signalbox {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::string_view kOpenCall = "<tool_call>";
constexpr std::string_view kCloseCall = "</tool_call>";

constexpr std::string_view kInReasoning[] = {kOpenCall, "</think>"};
constexpr std::string_view kInContent[] = {kOpenCall, "<think>"};

}  // namespace

void QwenParser::Text(std::string_view text, OutputEvents& events) {
  pending_ += text;
  while (!pending_.empty() && Step(events)) {
  }
}

// Whether it is worth another step.
bool QwenParser::Step(OutputEvents& events) {
  if (place_ != Place::kCall) return StepText(events);
  // Who thinks about <tool_call> may write it without meaning a call: the end of the reasoning ends
  // it.
  static constexpr std::string_view kEnd[] = {"</think>"};
  const bool thinks = call_from_ == Place::kReasoning;
  const FoundTag end = thinks ? FindTag(pending_, kEnd) : FoundTag{pending_.size(), std::nullopt};
  std::string inside = pending_.substr(0, end.at);
  std::string unread;
  const bool closed = calls_->Read(inside, unread, events);
  if (!closed && !end.tag) {
    pending_.replace(0, end.at, inside);
    return false;
  }
  if (!closed) calls_->Finish(std::exchange(inside, {}), unread, events);
  pending_.replace(0, end.at, inside);
  EndCall(unread, closed, events);
  return true;
}

bool QwenParser::StepText(OutputEvents& events) {
  const bool thinks = place_ == Place::kReasoning;
  const bool may_open = may_think_ && !begun_;
  const std::span<const std::string_view> tags =
      thinks ? std::span(kInReasoning) : std::span(kInContent).first(may_open ? 2 : 1);
  const auto [at, tag] = FindTag(pending_, tags);
  Emit(std::string_view(pending_).substr(0, at), events);
  // Text before it has taken the right to be a tag from a <think>.
  if (tag == 1 && !thinks && begun_) {
    Emit(tags[1], events);
    pending_.erase(0, at + tags[1].size());
    return true;
  }
  pending_.erase(0, at + (tag ? tags[*tag].size() : 0));
  if (!tag) return !thinks && may_open && begun_ && !pending_.empty();
  only_thought_ = false;
  if (*tag == 0) {
    call_from_ = std::exchange(place_, Place::kCall);
  } else {
    may_think_ = false;
    Begin(thinks ? Place::kContent : Place::kReasoning, false);
  }
  return true;
}

void QwenParser::EndCall(const std::string& unread, bool closed, OutputEvents& events) {
  if (unread.empty()) return Begin(call_from_, /*keep_space=*/false);
  place_ = call_from_;  // the text before it goes on
  Emit(std::string(kOpenCall) + unread + std::string(closed ? kCloseCall : ""), events);
}

void QwenParser::Begin(Place place, bool keep_space) {
  place_ = place;
  space_.clear();
  begun_ = false;
  keep_space_ = keep_space;
}

void QwenParser::Emit(std::string_view text, OutputEvents& events) {
  const size_t last = text.find_last_not_of(kBlanks);
  if (last == std::string_view::npos) {
    space_ += text;
    return;
  }
  std::string_view shown = text.substr(0, last + 1);
  if (!begun_ && !keep_space_) {
    space_.clear();
    shown.remove_prefix(shown.find_first_not_of(kBlanks));
  }
  std::string out = std::exchange(space_, std::string(text.substr(last + 1))) + std::string(shown);
  begun_ = true;
  if (place_ == Place::kContent) {
    events.push_back({.kind = OutputEvent::Kind::kContent, .text = std::move(out)});
    return;
  }
  if (only_thought_) thought_ += out;
  events.push_back({.kind = OutputEvent::Kind::kReasoning, .text = std::move(out)});
}

void QwenParser::Finish(bool stopped, OutputEvents& events) {
  if (place_ == Place::kCall) {
    std::string unread;
    calls_->Finish(pending_, unread, events);
    EndCall(unread, /*closed=*/false, events);
  } else {
    Emit(pending_, events);
  }
  pending_.clear();
  if (place_ == Place::kContent && (begun_ || keep_space_) && !space_.empty()) {
    events.push_back({.kind = OutputEvent::Kind::kContent, .text = std::exchange(space_, {})});
  }
  if (stopped && only_thought_ && !thought_.empty()) {
    events.push_back({.kind = OutputEvent::Kind::kContent, .text = std::exchange(thought_, {})});
  }
}

}  // namespace signalbox
