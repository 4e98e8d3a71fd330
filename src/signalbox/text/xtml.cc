// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/xtml.h"

#include <algorithm>
#include <iterator>

namespace signalbox::xtml {
namespace {

constexpr std::pair<char, std::string_view> kEscapes[] = {{'&', "&amp;"}, {'"', "&quot;"}};

std::string Unescaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto* escape = std::find_if(std::begin(kEscapes), std::end(kEscapes),
                                      [text](const auto& e) { return text.starts_with(e.second); });
    const bool found = escape != std::end(kEscapes);
    out += found ? escape->first : text[0];
    text.remove_prefix(found ? escape->second.size() : 1);
  }
  return out;
}

}  // namespace

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto* escape = std::find_if(std::begin(kEscapes), std::end(kEscapes),
                                      [c](const auto& e) { return e.first == c; });
    if (escape == std::end(kEscapes)) {
      out += c;
    } else {
      out += escape->second;
    }
  }
  return out;
}

Tag ParseTag(std::string_view text) {
  Tag tag;
  tag.name = text.substr(0, text.find(' '));
  text.remove_prefix(tag.name.size());
  while (text.starts_with(' ')) {
    text.remove_prefix(1);
    const size_t equals = text.find("=\"");
    if (equals == std::string_view::npos) break;
    const size_t begin = equals + 2;
    const size_t end = text.find('"', begin);
    if (end == std::string_view::npos) break;
    tag.attributes.emplace_back(text.substr(0, equals), Unescaped(text.substr(begin, end - begin)));
    text.remove_prefix(end + 1);
  }
  return tag;
}

std::string_view AttributeOf(const Tag& tag, std::string_view key) {
  for (const auto& [name, value] : tag.attributes) {
    if (name == key) return value;
  }
  return {};
}

void Writer::Text(std::string_view text) {
  if (!text.empty()) out_.push_back({std::string(text), false, true});
}

void Writer::Open(std::string_view tag, const Attributes& attributes) {
  Marker(kOpen);
  Text(tag);
  for (const auto& [key, value] : attributes) {
    Text(" " + key);
    Text("=\"");
    Text(Escaped(value));
    Text("\"");
  }
  Marker(kSep);
}

void Writer::Close(std::string_view tag) {
  Marker(kClose);
  Text(tag);
  Marker(kSep);
}

void Writer::Element(std::string_view tag, const Attributes& attributes, std::string_view text) {
  Open(tag, attributes);
  Text(text);
  Close(tag);
}

void Writer::EndMessage() {
  Close("message");
  Marker(kEndOfMessage);
}

void Writer::Notice(std::string_view type, std::string_view text) {
  Open("message", {{"role", "system"}, {"type", std::string(type)}});
  Text(text);
  EndMessage();
}

}  // namespace signalbox::xtml
