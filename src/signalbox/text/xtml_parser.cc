// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/xtml_parser.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "signalbox/text/jinja_value.h"

namespace signalbox {

struct XtmlParser::Element {
  std::string_view name;
  Place place;
};

const XtmlParser::Element* XtmlParser::Find(std::string_view name) {
  static constexpr Element kElements[] = {
      {"message", Place::kDone}, {"think", Place::kThink}, {"response", Place::kResponse},
      {"tools", Place::kTools},  {"call", Place::kCall},   {"argument", Place::kArgument},
      {"json", Place::kJson},
  };
  const auto* found = std::find_if(std::begin(kElements), std::end(kElements),
                                   [name](const Element& e) { return e.name == name; });
  return found == std::end(kElements) ? nullptr : found;
}

int XtmlParser::DepthOf(Place place) {
  switch (place) {
    case Place::kOutside:
    case Place::kDone:
      return 0;
    case Place::kThink:
    case Place::kResponse:
    case Place::kTools:
      return 1;
    case Place::kCall:
      return 2;
    case Place::kArgument:
    case Place::kJson:
      return 3;
  }
  return 0;
}

void XtmlParser::Text(std::string_view text, OutputEvents& events) {
  if (text.empty()) return;
  if (reading_ != Reading::kText) {
    tag_ += text;
    return;
  }
  switch (place_) {
    case Place::kThink:
      if (only_thought_) thought_ += text;
      events.push_back({.kind = OutputEvent::Kind::kReasoning, .text = std::string(text)});
      return;
    case Place::kOutside:
      if (answered_) return;
      [[fallthrough]];
    case Place::kResponse:
      events.push_back({.kind = OutputEvent::Kind::kContent, .text = std::string(text)});
      return;
    case Place::kArgument:
      return calls_.Value(text, events);
    case Place::kJson:
      json_ += text;
      return;
    case Place::kTools:
    case Place::kCall:
    case Place::kDone:
      return;
  }
}

void XtmlParser::Marker(std::string_view spelling, OutputEvents& events) {
  EndTag(events);
  if (spelling == xtml::kOpen) {
    reading_ = Reading::kOpenTag;
  } else if (spelling == xtml::kClose) {
    reading_ = Reading::kCloseTag;
  } else if (spelling == xtml::kEndOfMessage) {
    Finish(/*stopped=*/true, events);
  }
}

void XtmlParser::Finish(bool stopped, OutputEvents& events) {
  if (reading_ == Reading::kOpenTag) reading_ = Reading::kText;  // cut off: no tag yet
  EndTag(events);
  const bool unclosed = only_thought_ && place_ == Place::kThink;
  LeaveDepth(1, events);
  place_ = Place::kDone;
  if (stopped && unclosed && !thought_.empty()) {
    events.push_back({.kind = OutputEvent::Kind::kContent, .text = std::move(thought_)});
  }
}

void XtmlParser::EndTag(OutputEvents& events) {
  const Reading was = std::exchange(reading_, Reading::kText);
  const std::string tag = std::exchange(tag_, {});
  if (place_ == Place::kDone) return;
  if (was == Reading::kOpenTag) Open(xtml::ParseTag(tag), events);
  if (was == Reading::kCloseTag) Close(xtml::ParseTag(tag).name, events);
}

void XtmlParser::Open(const xtml::Tag& tag, OutputEvents& events) {
  const Element* element = Find(tag.name);
  if (element == nullptr) return;
  const Place place = element->place;
  if (place == Place::kDone) return Finish(/*stopped=*/true, events);
  if (DepthOf(place) == 3) {
    if (!calls_.in_call()) return;
    LeaveDepth(3, events);
    if (place == Place::kJson) {
      if (!calls_.has_arguments()) place_ = Place::kJson;
      return;
    }
    const std::string_view key = xtml::AttributeOf(tag, "key");
    const bool has_key = std::any_of(tag.attributes.begin(), tag.attributes.end(),
                                     [](const auto& a) { return a.first == "key"; });
    const bool is_text = xtml::AttributeOf(tag, "type") == "string";
    if (has_key && calls_.BeginArgument(key, is_text, events)) place_ = Place::kArgument;
    return;
  }
  LeaveDepth(DepthOf(place), events);
  place_ = place;
  only_thought_ = false;
  if (place == Place::kResponse) answered_ = true;
  if (place != Place::kCall) return;
  const std::string_view tool = xtml::AttributeOf(tag, "tool");
  if (tool.empty()) {
    place_ = Place::kTools;
  } else {
    calls_.Begin(tool, events);
  }
}

void XtmlParser::Close(std::string_view name, OutputEvents& events) {
  const Element* element = Find(name);
  if (element == nullptr) return;
  if (element->place == Place::kDone) return Finish(/*stopped=*/true, events);
  const int depth = DepthOf(element->place);
  const bool is_open = place_ == element->place ||
                       (depth < DepthOf(place_) &&
                        (element->place == Place::kTools || element->place == Place::kCall));
  if (is_open) LeaveDepth(depth, events);
}

void XtmlParser::LeaveDepth(int depth, OutputEvents& events) {
  if (place_ == Place::kArgument && depth <= 3) {
    calls_.EndArgument(events);
    place_ = Place::kCall;
  }
  if (place_ == Place::kJson && depth <= 3) {
    const auto value = jinja::Value::FromJson(json_);
    const bool is_object = value.ok() && value->is_dict();
    calls_.Whole(is_object ? JsonOrText(json_) : JsonText(json_), events);
    json_.clear();
    place_ = Place::kCall;
  }
  if (place_ == Place::kCall && depth <= 2) {
    calls_.End(events);
    place_ = Place::kTools;
  }
  if (DepthOf(place_) == 1 && depth <= 1) {
    only_thought_ = false;
    place_ = Place::kOutside;
  }
}

}  // namespace signalbox
