// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/runners.h"

#include <array>

namespace signalbox {

std::span<const RunnerTerms> StandardRunners() {
  static const std::array<RunnerTerms, 4> kRunners = {{
      {.name = "flat"},
      {.name = "flat by weight", .shape = RowShape::kFlat, .ids = IdSpace::kPosition},
      {.name = "padded", .shape = RowShape::kExpertMajorPadded, .ids = IdSpace::kPosition},
      {.name = "compact", .shape = RowShape::kExpertMajorCompact, .ids = IdSpace::kPosition},
  }};
  return kRunners;
}

}  // namespace signalbox
