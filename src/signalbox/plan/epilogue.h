// SPDX-License-Identifier: Apache-2.0
//
// Epilogue: what lies between the rows that a contract delivers and those that a runner reads, and
// back, derived from the fields of both. Internal to the planner.
#pragma once

#include <optional>
#include <vector>

#include "signalbox/a2a/contract.h"
#include "signalbox/plan/check.h"
#include "signalbox/plan/step.h"

namespace signalbox::planning {

struct Epilogue {
  std::vector<Step> before;    // dispatch -> runner: mask, remap, permute
  bool runner_weighs = false;  // the runner multiplies by the router weights
  std::vector<Step> after;     // runner -> combine: permute back
  int permutes = 0;
};

// Nothing when no epilogue makes the runner read these rows. A fused contract takes no runner.
std::optional<Epilogue> EpilogueFor(const Contract& contract,
                                    const std::optional<RunnerTerms>& runner);

}  // namespace signalbox::planning
