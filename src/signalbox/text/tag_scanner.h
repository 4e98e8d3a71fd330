// SPDX-License-Identifier: Apache-2.0
//
// Finds tags in text that arrives in pieces.
//
//   constexpr std::string_view kTags[] = {"</think>", "<tool_call>"};
//   FindTag("so</think>42", kTags);   // {.at = 2, .tag = 0}
//   FindTag("so</thi", kTags);        // {.at = 2, .tag = none}: hold back from there
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace signalbox {

struct FoundTag {
  size_t at;                  // where a tag begins, or may begin; else the end of the text
  std::optional<size_t> tag;  // index of the tag that is all there
};

// The first tag in `text`. REQUIRES: each tag begins with '<' and has no other.
inline FoundTag FindTag(std::string_view text, std::span<const std::string_view> tags) {
  for (size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    const std::string_view rest = text.substr(at);
    for (size_t i = 0; i < tags.size(); ++i) {
      if (rest.starts_with(tags[i])) return {at, i};
      if (tags[i].starts_with(rest)) return {at, std::nullopt};
    }
  }
  return {text.size(), std::nullopt};
}

}  // namespace signalbox
