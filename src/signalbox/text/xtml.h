// SPDX-License-Identifier: Apache-2.0
//
// What XTML is made of: markers, tags with attributes, escapes. What it says: xtml_format.h.
//
//   xtml::Writer writer;
//   writer.Element("argument", {{"key", "city"}, {"type", "string"}}, "Rome");
//   // <|open|>argument key="city" type="string"<|sep|>Rome<|close|>argument<|sep|>
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "signalbox/text/segment.h"

namespace signalbox::xtml {

inline constexpr std::string_view kOpen = "<|open|>";
inline constexpr std::string_view kClose = "<|close|>";
inline constexpr std::string_view kSep = "<|sep|>";
inline constexpr std::string_view kEndOfMessage = "<|end_of_msg|>";
inline constexpr std::array kMarkers = {kOpen, kClose, kSep, kEndOfMessage};

// In order; values as they are meant, without escapes.
using Attributes = std::vector<std::pair<std::string, std::string>>;

// A tag as it stands between <|open|> and <|sep|>: `argument key="a" type="string"`.
struct Tag {
  std::string name;
  Attributes attributes;
};
// Reads what it can: what follows an attribute that is damaged is left out.
Tag ParseTag(std::string_view text);
// The value of an attribute as it stands in a tag.
std::string Escaped(std::string_view value);
// The value of an attribute, "" where there is none.
std::string_view AttributeOf(const Tag& tag, std::string_view key);

// Appends elements as segments: markers trusted, all else untrusted, each apart.
class Writer {
 public:
  void Text(std::string_view text);
  void Open(std::string_view tag, const Attributes& attributes = {});
  void Close(std::string_view tag);
  void Element(std::string_view tag, const Attributes& attributes, std::string_view text);
  void EndMessage();
  // A message of the system itself.
  void Notice(std::string_view type, std::string_view text);

  Segments Take() && { return std::move(out_); }

 private:
  void Marker(std::string_view marker) { out_.push_back({std::string(marker), true, true}); }

  Segments out_;
};

}  // namespace signalbox::xtml
