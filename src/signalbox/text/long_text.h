// SPDX-License-Identifier: Apache-2.0
//
// Some tokenizers cut a long text before their regular expression sees it, and so do we, because
// the cuts show in the ids: every `characters` code points; and, in a part, where a run of
// whitespace or of anything else (Python's str.isspace) gets longer than `run`.
//
//   std::vector<std::string_view> parts;
//   CutLongText("aaaaa bb", {.characters = 100, .run = 3}, parts);   // "aaa" "aa bb"
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace signalbox {

struct LongTextLimits {  // in code points; 0: none
  size_t characters = 0;
  size_t run = 0;
};

// Appends the parts of `text`, which is valid UTF-8; none for an empty text.
void CutLongText(std::string_view text, LongTextLimits limits,
                 std::vector<std::string_view>& parts);

}  // namespace signalbox
