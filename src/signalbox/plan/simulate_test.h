// SPDX-License-Identifier: Apache-2.0
//
// The second reading of a plan, for tests: runs its steps with numbers on every rank of a toy layer
// and compares the output with the model's program on one rank. It adds whatever is there, so a
// plan that adds different tokens or counts an addend twice shows in the numbers; it knows no rule
// of the checker. Memory that a back end leaves unwritten is NaN.
//
//   double error = Simulate(plan, context, {.redundant_slots = 2});   // relative; infinity when
//                                                                     // the steps do not fit
#pragma once

#include "signalbox/plan/check.h"

namespace signalbox {

struct ToyWorld {
  unsigned seed = 1;
  int sequences = 5;        // handed to the ranks of the context's sequence axes in turn
  int tokens = 3;           // of a sequence
  int redundant_slots = 0;  // a second replica for the first experts; needs a placement step
};

// The largest error of any real row of any rank, relative to the largest output of one rank.
double Simulate(const LayerPlan& plan, const CheckContext& context, const ToyWorld& world = {});

}  // namespace signalbox
