// SPDX-License-Identifier: Apache-2.0
//
// A layer's own program, taken apart where layout steps go. Internal to the planner.
#pragma once

#include <optional>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/plan/facts.h"
#include "signalbox/plan/step.h"

namespace signalbox::planning {

struct ProgramParts {
  std::vector<Step> before;  // up to the mixer
  Step mixer;
  std::vector<Step> between;  // behind the mixer, up to the feed-forward input
  std::optional<Step> latent_down;
  std::optional<Step> route;  // with `experts`; else `mlp`
  Step experts;
  std::vector<Step> behind;  // scale, latent norm and latent up projection, in order
  std::optional<Step> shared;
  Step mlp;
  bool bank = false;      // snapshots of the residual are read
  bool snapshot = false;  // and one is taken
};
// INVALID_ARGUMENT: not a layer that this planner knows how to lay out.
Result<ProgramParts> TakeApart(const LayerKindFacts& facts);

}  // namespace signalbox::planning
