// SPDX-License-Identifier: Apache-2.0
//
// DraftAlarm: notices a draft layer that guesses wrong. Such a layer harms no answer, so nobody
// would see it: every step just costs more than it gives.
//
//   DraftAlarm alarm;
//   if (const auto warning = alarm.Look(generator.stats())) log.Warn(*warning);
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "signalbox/engine/generator.h"

namespace signalbox {

struct DraftAlarmOptions {
  double bound = 0.2;     // share of right first guesses; 0: no alarm
  int64_t guesses = 512;  // the share is taken over so many, then over the next
};

class DraftAlarm {
 public:
  explicit DraftAlarm(const DraftAlarmOptions& options) : options_(options) {}

  // The warning, once: at the first share below the bound. `stats` are those of all steps so far.
  std::optional<std::string> Look(const GeneratorStats& stats);

 private:
  const DraftAlarmOptions options_;
  int64_t guessed_ = 0;  // when the share was last taken
  int64_t right_ = 0;
  bool warned_ = false;
};

}  // namespace signalbox
