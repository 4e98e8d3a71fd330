// SPDX-License-Identifier: Apache-2.0
//
// StopStrings: finds the first stop string in text that arrives in pieces, and says how much of the
// text must wait because it may be the beginning of one.
//
// The first is the one that is complete first in the text; of several that end at the same place,
// the longest. So neither the order of the list nor the cut of the text decides anything, and the
// text before the stop is known as soon as the stop's last byte is.
//
// Errors: kInvalidArgument for a stop that is empty, too long or no UTF-8, and for too many.
//
//   SB_ASSIGN_OR_RETURN(auto stops, StopStrings::Create({"</answer>", "\n\n"}));
//   stops.Push("42</an");    // nothing found; stops.held() is 4: "</an" must wait
//   stops.Push("swer> x");   // {.stop = 0, .end = 5}: the stop ends before " x"
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/status.h"

namespace signalbox {

class StopStrings {
 public:
  static constexpr size_t kMaxStops = 64;
  static constexpr size_t kMaxBytes = 1024;  // of one

  struct Match {
    size_t stop;  // index in the list
    size_t end;   // offset in the piece, behind the stop's last byte
  };

  static Result<StopStrings> Create(std::vector<std::string> stops);

  // The next piece, up to the first stop's end. O(bytes of the piece * stops).
  // REQUIRES: nothing was found so far.
  std::optional<Match> Push(std::string_view piece);
  // How many bytes at the end of the text may be the beginning of a stop. Pieces of whole
  // characters leave whole characters.
  size_t held() const;
  const std::string& text(size_t stop) const { return stops_[stop].text; }

 private:
  // Knuth, Morris, Pratt: after each byte, how much of the stop the text ends with.
  struct Stop {
    std::string text;
    std::vector<size_t> fallback;  // of the first n bytes: the longest proper prefix they end with
    size_t matched = 0;
  };
  std::vector<Stop> stops_;
};

}  // namespace signalbox
