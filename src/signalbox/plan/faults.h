// SPDX-License-Identifier: Apache-2.0
//
// Faults: the mistakes that engines have shipped, made on purpose. Each turns a proved layout into
// a wrong one, so that `verify` can show that it finds them and the checker that it refuses them.
//
// Most are a wrong list of steps, and the engine executes that list. Three happen inside a step (a
// row read too far, experts numbered differently, weights applied again): there the engine carries
// out the right steps wrongly, and the checker is shown terms and steps that say the same mistake.
//
//   SB_ASSIGN_OR_RETURN(FaultyLayout faulty, InjectFault(layout, LayoutFault::kSharedHalved));
//   CheckFaulty(faulty);   // REFUSED: shared expert: coefficient 0.5 at layer exit
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "signalbox/base/status.h"
#include "signalbox/plan/planner.h"

namespace signalbox {

enum class LayoutFault : uint8_t {
  kSumScatteredRows,  // a sum over ranks that hold different rows
  kSharedPerRank,     // the shared expert counted once per rank
  kSharedHalved,
  kSharedDoubled,
  kLocalExperts,      // every rank uses its own experts only
  kIdsOffByOne,       // runner and rows number the experts differently
  kWeightsTwice,      // router weights applied by two of those who could
  kScalingTwice,      // the same with the routed scaling factor
  kGlobalSharedSlot,  // a fused shared expert at full weight on every rank
  kPoisonRow,         // a row beyond the valid ones is read
  kReplicaPerRank,    // ranks choose different replicas for one row
  kNormBeforeSum,     // the latent norm before the sum is complete
  kCount,
};
template <>
struct EnumText<LayoutFault> {
  static constexpr std::string_view kNames[] = {
      "sum-scattered-rows", "shared-per-rank", "shared-halved",    "shared-doubled",
      "local-experts",      "ids-off-by-one",  "weights-twice",    "scaling-twice",
      "global-shared-slot", "poison-row",      "replica-per-rank", "norm-before-sum"};
};

struct FaultyLayout {
  LayoutPlan declared;   // what the checker is shown
  bool in_steps = true;  // `declared` is what the engine executes; else the right plan, wrongly
  std::string change;    // what was done: "after step 13: routed = all-reduce routed over attn_tp"
};

// INVALID_ARGUMENT where the layout has no place for this mistake; the message says why.
Result<FaultyLayout> InjectFault(const LayoutPlan& layout, LayoutFault fault);

// What the checker says of it: the first refusal of a kind and phase, OK when it accepts them all.
Status CheckFaulty(const FaultyLayout& faulty);

}  // namespace signalbox
