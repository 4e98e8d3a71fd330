// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/draft_alarm.h"

#include <fmt/format.h>

namespace signalbox {

std::optional<std::string> DraftAlarm::Look(const GeneratorStats& stats) {
  if (warned_ || stats.drafted.empty()) return std::nullopt;
  const int64_t guessed = stats.drafted[0] - guessed_;
  if (guessed < options_.guesses) return std::nullopt;
  const int64_t right = stats.accepted[0] - right_;
  guessed_ = stats.drafted[0];
  right_ = stats.accepted[0];
  if (static_cast<double>(right) >= options_.bound * static_cast<double>(guessed))
    return std::nullopt;
  warned_ = true;
  return fmt::format(
      "the draft layer guesses wrong: {} of its last {} first guesses were right, expected at "
      "least "
      "{:.0f} %; answers are not affected, but steps cost more than they give: check the weights "
      "of "
      "the draft layer, or serve without --speculative-algorithm",
      right, guessed, options_.bound * 100);
}

}  // namespace signalbox
