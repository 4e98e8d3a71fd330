// SPDX-License-Identifier: Apache-2.0
//
// The rest of an assistant message in XTML (xtml_format.h), from where the prompt ends.
//
// Lenient: a tag closes what cannot go on inside it, so a model may go from thinking to a call at
// once, and forget a <|sep|> or a closing tag. What is in no element is content until there was a
// response, and nothing afterwards. Unknown tags, a call without a tool, an argument without a key
// or with that of another are left out. A tag that is cut off inside <|open|> is none. Arguments of
// a type other than string are JSON, or else text; a `json` that holds no object becomes a text.
//
//   XtmlParser parser(/*in_reasoning=*/true);
//   parser.Text("6*7=42", events);
//   parser.Marker("<|close|>", events);
#pragma once

#include <string>
#include <string_view>

#include "signalbox/text/call_writer.h"
#include "signalbox/text/output_parser.h"
#include "signalbox/text/xtml.h"

namespace signalbox {

class XtmlParser final : public OutputParser {
 public:
  explicit XtmlParser(bool in_reasoning)
      : place_(in_reasoning ? Place::kThink : Place::kResponse), only_thought_(in_reasoning) {}

  void Text(std::string_view text, OutputEvents& events) override;
  void Marker(std::string_view spelling, OutputEvents& events) override;
  void Finish(bool stopped, OutputEvents& events) override;
  bool in_reasoning() const override { return place_ == Place::kThink; }

 private:
  // The element that text belongs to. A call lies in tools, an argument or json in a call.
  enum class Place { kOutside, kThink, kResponse, kTools, kCall, kArgument, kJson, kDone };
  enum class Reading { kText, kOpenTag, kCloseTag };
  struct Element;

  static const Element* Find(std::string_view name);
  static int DepthOf(Place place);
  void EndTag(OutputEvents& events);
  void Open(const xtml::Tag& tag, OutputEvents& events);
  void Close(std::string_view name, OutputEvents& events);
  // Ends the elements that lie at `depth` (1: in the message) or deeper.
  void LeaveDepth(int depth, OutputEvents& events);

  Place place_;
  Reading reading_ = Reading::kText;
  std::string tag_;        // what was read of it
  std::string json_;       // of kJson
  bool answered_ = false;  // there was a response
  bool only_thought_;      // in the reasoning that the prompt opened
  std::string thought_;    // its text
  CallWriter calls_;
};

}  // namespace signalbox
