// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/long_text.h"

#include <algorithm>
#include <limits>

#include "signalbox/text/jinja_text.h"

namespace signalbox {

void CutLongText(std::string_view text, LongTextLimits limits,
                 std::vector<std::string_view>& parts) {
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  const size_t max_characters = limits.characters == 0 ? kNone : limits.characters;
  const size_t max_run = limits.run == 0 ? kNone : limits.run;
  size_t begin = 0;
  size_t characters = 0;  // since the last cut for length, which alone restarts this count
  size_t run = 0;
  bool space = false;
  // A text with fewer bytes than any limit has nothing to cut.
  for (size_t at = text.size() > std::min(max_characters, max_run) ? 0 : text.size();
       at < text.size();) {
    const size_t here = at;
    const bool is_space = jinja::IsSpace(jinja::NextCodePoint(text, at));
    const bool chunk_ends = characters == max_characters;
    const bool same = run > 0 && !chunk_ends && is_space == space;
    const bool run_ends = same && run == max_run;
    if (chunk_ends) characters = 0;
    if (chunk_ends || run_ends) {
      parts.push_back(text.substr(begin, here - begin));
      begin = here;
    }
    run = same && !run_ends ? run + 1 : 1;
    space = is_space;
    ++characters;
  }
  if (begin < text.size()) parts.push_back(text.substr(begin));
}

}  // namespace signalbox
