// SPDX-License-Identifier: Apache-2.0
//
// Candidates: the ways in which a layer kind can run in one phase, as step lists composed of a few
// fragments. Internal to the planner. Nothing here decides whether a candidate is right: the
// checker does.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "signalbox/plan/planner.h"
#include "signalbox/plan/program_parts.h"

namespace signalbox::planning {

// What is decided per phase.
struct Choice {
  AxisSet scatter;  // attention TP axes over which rows are split from the mixer's
                    // sum to the layer's exit
  std::optional<RunnerTerms> runner;  // of an exchange, unless it is fused
  bool gather_latent = false;         // gathers latent rows and their routing instead of y
  bool slice_sums = false;            // all-reduce and slice where rows were gathered, instead of
                                      // reduce-scatter
};

// What a candidate is made from.
struct Situation {
  const ProgramParts& program;
  const ParallelMesh& parallel;
  const LayerCut& cut;
  const Contract* contract;  // null: no exchange
  int row_multiple;
  bool slot_is_expert;
};

// "shared expert sharded over attn_tp", "MLP over attn_tp"; empty for experts alone.
std::string DescribeCut(const LayerCut& cut, const Mesh& mesh);

// "rows scattered over attn_tp, runner flat".
std::string Describe(const Choice& choice, const Situation& situation);

// Axes over which rows are gathered before the experts run.
AxisSet Gathered(const Choice& choice, const Situation& situation);

// All choices worth checking, those that are usually right first. Empty with an exchange: no runner
// reads its rows.
std::vector<Choice> Choices(const Situation& situation, std::span<const RunnerTerms> runners);

std::vector<Step> Compose(const Choice& choice, const Situation& situation);

}  // namespace signalbox::planning
