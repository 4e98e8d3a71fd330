// SPDX-License-Identifier: Apache-2.0
//
// One layer kind in one phase under one cut of its weights: candidates are composed, checked and
// compared. Internal to the planner.
#pragma once

#include <cstdint>
#include <string>

#include "signalbox/plan/candidates.h"
#include "signalbox/plan/planner.h"

namespace signalbox::planning {

// The cheapest candidate that the limits of its contract allow and the checker accepts, or the
// refusal of the first one. `rejected` are the candidates that differ from it in one choice.
Result<PhasePlan> PlanPhase(const PlanRequest& request, const LayerKindFacts& facts,
                            const Situation& situation, Phase phase);

// Why `other` lost to `best`: "sends 12288 bytes per token instead of 8192". `bytes`: weights that
// a rank would hold more.
std::string Dearer(const PlanCost& best, const PlanCost& other, int64_t bytes = 0);

}  // namespace signalbox::planning
