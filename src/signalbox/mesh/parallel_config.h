// SPDX-License-Identifier: Apache-2.0
//
// ParallelConfig -> ParallelMesh: how attention and experts cut the same ranks.
//
// R = tp ranks. Attention: attn_dp x attn_tp = dp x (tp / dp). Experts: moe_ep x moe_tp =
// ep x (tp / ep). Both are ordered: dp and ep are major, the tensor-parallel factor is minor, ranks
// are row-major. The base axes are the common refinement of the two; it exists when one of dp and
// ep divides the other. A base axis is named after the attention view that it lies in; where the
// experts cut that view in two, the pieces are "attn_tp.ep" and "attn_tp.tp" (or "attn_dp.ep" and
// "attn_dp.tp"). Views of size 1 are empty sets.
//
//   ParallelMesh p = *CreateParallelMesh({.tp = 4, .dp = 2, .ep = 4});
//   p.mesh.ToString();             // "attn_dp 2 x attn_tp 2"
//   p.mesh.Names(p.moe_ep);        // "moe_ep", which is {attn_dp, attn_tp}
#pragma once

#include "signalbox/base/status.h"
#include "signalbox/mesh/mesh.h"

namespace signalbox {

struct ParallelConfig {
  int tp = 1;                 // ranks
  int dp = 1;                 // attention data parallelism inside the tp ranks
  int ep = 1;                 // expert parallelism inside the tp ranks
  int redundant_experts = 0;  // slots beyond one per expert; the placement fills them
};

struct ParallelMesh {
  Mesh mesh;  // finds the views below by these names
  AxisSet attn_dp;
  AxisSet attn_tp;
  AxisSet moe_ep;
  AxisSet moe_tp;
};

// INVALID_ARGUMENT: a size below 1 or above kMaxRanks, negative redundancy. REFUSED, with the
// nearest sizes that work: dp or ep does not divide tp, or neither of dp and ep divides the other.
Result<ParallelMesh> CreateParallelMesh(const ParallelConfig& config);

}  // namespace signalbox
