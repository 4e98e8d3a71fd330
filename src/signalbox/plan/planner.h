// SPDX-License-Identifier: Apache-2.0
//
// Planner: facts, a parallel configuration, contracts and runners -> a layout, or a refusal with
// the nearest layout that works.
//
// It composes candidate step lists, lets the independent checker (check.h) accept or refuse each,
// and keeps the cheapest by bytes moved and work repeated (cost.h). Contracts and runners are read
// by their fields, never by their names. Weights are loaded once, so how they are cut is one choice
// per kind of layer for all phases.
//
//   SB_ASSIGN_OR_RETURN(LayoutPlan plan, PlanLayout({.parallel = {.tp = 2, .ep = 2},
//                                                    .facts = facts,
//                                                    .contracts = {prefill, decode, decode}}));
//   plan.kinds[0].phase(Phase::kDecode)->plan.steps;   // what the engine executes
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "signalbox/a2a/contract.h"
#include "signalbox/base/status.h"
#include "signalbox/mesh/parallel_config.h"
#include "signalbox/plan/check.h"
#include "signalbox/plan/cost.h"
#include "signalbox/plan/facts.h"
#include "signalbox/plan/runners.h"
#include "signalbox/plan/step.h"

namespace signalbox {

// --shared-experts: where a shared expert may live. kUnfused: anywhere but in a routed slot
// (--disable-shared-experts-fusion).
enum class SharedChoice : uint8_t { kAuto, kFused, kReplicated, kSharded, kUnfused };
template <>
struct EnumText<SharedChoice> {
  static constexpr std::string_view kNames[] = {"auto", "fused", "replicated", "sharded",
                                                "unfused"};
};

// Rows and tokens are those of one attention group (the ranks of attn_tp), not of the world.
// Zero means not known: nothing is refused for it.
struct PlanLimits {
  int64_t chunked_prefill_size = 0;  // most prompt tokens in a step
  int64_t max_running_requests = 0;
  int64_t captured_requests = 0;  // in the largest decode or verify step that a graph holds; 0:
                                  // nothing is captured
  int draft_tokens = 0;           // per request and verify step; 0: there is no verify phase
  int64_t capacity = 0;           // --max-dispatch-tokens-per-rank; 0: the contract's default
};

struct PlanRequest {
  ParallelConfig parallel;
  LayoutFacts facts;
  // By phase; nothing, or a contract without a shape: no exchange. The caller has looked them up.
  std::array<std::optional<Contract>, 3> contracts;
  PlanLimits limits;
  SharedChoice shared = SharedChoice::kAuto;
  std::span<const RunnerTerms> runners = StandardRunners();
  Payload payload = Payload::kBf16;  // element type of rows as they travel
  bool emulated = false;             // contracts are executed by our transport: limits of kernels
                                     // do not apply
};

// Where the shared expert of a layer kind has its weights.
enum class SharedPlacement : uint8_t {
  kNone,
  kSharded,      // its width is cut over LayerCut::shared_width
  kReplicated,   // whole on every rank, for the rows the rank holds
  kFusedGlobal,  // a routed expert with one id and a copy on every rank of the expert group
  kFusedOwn,     // a routed expert in the last slot of every rank of the expert group
};
template <>
struct EnumText<SharedPlacement> {
  static constexpr std::string_view kNames[] = {"none", "sharded", "replicated",
                                                "fused global slot", "fused slot per rank"};
};

// How the weights of a layer kind are cut: share Position(rank, axes) of Size(axes) each.
struct LayerCut {
  AxisSet heads;         // attention heads
  AxisSet experts;       // slots, contiguous ranges of them
  AxisSet expert_width;  // width of routed experts, and of a fused shared one
  AxisSet shared_width;  // width of the shared expert
  AxisSet dense_width;   // width of a dense MLP
  SharedPlacement shared = SharedPlacement::kNone;
  // Routed slots, redundant ones included; slot s lies on position s / slots_per_rank of `experts`.
  // A fused shared expert is one more slot per rank, behind them: local slot slots_per_rank. Under
  // kFusedOwn global ids count it, so routed slot s has id s + s / slots_per_rank; under
  // kFusedGlobal its id is `slots` on every rank.
  int64_t slots = 0;
  int64_t slots_per_rank = 0;
  friend bool operator==(const LayerCut&, const LayerCut&) = default;
};

// A candidate that was not chosen.
struct Rejected {
  std::string candidate;  // "rows stay whole; shared expert replicated"
  std::string reason;     // of the checker or of a limit, or by how much it costs more
};

// A layer kind in one phase.
struct PhasePlan {
  LayerPlan plan;
  CheckContext context;  // that it was checked in; context.contract and context.runner are those
                         // used, nothing where rows are not exchanged. A fused contract has no
                         // runner: its dispatch, run-experts and combine are one call
  CheckedPlan checked;
  PlanCost cost;
  std::vector<Rejected> rejected;
};

struct KindPlan {
  std::string kind;
  int64_t layers = 0;
  LayerCut cut;
  std::vector<PhasePlan> phases;  // as in LayoutPlan::phases

  // Nothing when the layout has no such phase.
  const PhasePlan* phase(Phase phase) const;
};

// Bytes that one rank holds.
struct MemoryPlan {
  int64_t mixer = 0;
  int64_t experts = 0;
  int64_t shared = 0;
  int64_t dense = 0;
  int64_t whole = 0;  // on every rank: trunk, norms, routers
  int64_t cache_per_token = 0;
  int64_t cache_per_sequence = 0;

  int64_t weights() const { return mixer + experts + shared + dense + whole; }
};

struct LayoutPlan {
  ParallelConfig config;
  ParallelMesh parallel;
  AxisSet rows_in;  // shards the rows between layers; whole sequences: attn_dp
  // An attention group's rows are padded to a multiple of row_multiple and, with equal_rows, to
  // those of the longest group (where that is 0, to row_multiple).
  int row_multiple = 1;
  bool equal_rows = false;
  std::vector<Phase> phases;  // prefill, decode, and verify where there are draft tokens
  // T of the exchange by phase, the same on all ranks; 0: no exchange, or one without capacity.
  std::array<int64_t, 3> capacity = {};
  std::vector<KindPlan> kinds;  // in order of the facts
  MemoryPlan memory;

  const Mesh& mesh() const { return parallel.mesh; }
};

// REFUSED: what cannot work and where (the flag), with the nearest layout that works when there is
// one. INVALID_ARGUMENT: facts, sizes or limits that no model or world has.
Result<LayoutPlan> PlanLayout(const PlanRequest& request);

}  // namespace signalbox
