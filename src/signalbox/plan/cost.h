// SPDX-License-Identifier: Apache-2.0
//
// PlanCost: what a layer's steps cost a rank, per token of its attention group. Read off any plan
// that the checker has typed, whoever made it. It orders plans that compute the same; it predicts
// no time.
//
//   PlanCost cost = CostOf(plan, checked, {.facts = kind, .mesh = mesh, ...});
//   cost.collective_bytes;   // 2 * (n-1)/n * hidden * 2 for an all-reduce of bf16 rows
#pragma once

#include <cstdint>

#include "signalbox/a2a/contract.h"
#include "signalbox/plan/check.h"
#include "signalbox/plan/facts.h"

namespace signalbox {

struct PlanCost {
  double collective_bytes = 0;  // sent in reductions and gathers, each as a ring
  double exchange_bytes = 0;    // sent by dispatch and combine, ids and weights included, routing
                                // taken as uniform: dedup_wire sends one row per (token, rank)
  double copied_bytes = 0;      // moved inside the rank by permutations
  double work = 0;              // multiply-adds of router, experts, shared expert, MLP, latent maps
  double repeated = 1;          // `work` over an equal share of what one rank would do; 1: none
  int collectives = 0;          // reductions and gathers, one per message
  int exchanges = 0;            // dispatches and combines over more than one rank

  // Sent bytes, copied ones and work in bytes of sending: what the planner minimises.
  double Total() const;
  friend bool operator==(const PlanCost&, const PlanCost&) = default;
};

struct CostTerms {
  const LayerKindFacts& facts;
  int64_t hidden;
  const CheckContext& context;  // that the plan was checked in
  AxisSet attn_tp;              // ranks that share the tokens of an attention group
  int element_bits = 16;        // of a row's element
  int64_t slots = 0;            // expert slots over all ranks of the expert group
};

PlanCost CostOf(const LayerPlan& plan, const CheckedPlan& checked, const CostTerms& terms);

}  // namespace signalbox
