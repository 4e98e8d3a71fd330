// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "signalbox/plan/cuts.h"
#include "signalbox/plan/nearest.h"
#include "signalbox/plan/phase_planner.h"

namespace signalbox {
namespace planning {
namespace {

Status ValidateLimits(const PlanLimits& limits) {
  constexpr int64_t kMost = int64_t{1} << 31;
  constexpr int kMostDrafts = 1024;
  for (int64_t value : {limits.chunked_prefill_size, limits.max_running_requests,
                        limits.captured_requests, limits.capacity}) {
    if (value >= 0 && value <= kMost) continue;
    return InvalidArgument({.what = "limit out of range",
                            .found = std::to_string(value),
                            .expected = fmt::format("0 to {}", kMost)});
  }
  if (limits.draft_tokens >= 0 && limits.draft_tokens <= kMostDrafts) return OkStatus();
  return InvalidArgument({.what = "draft tokens out of range",
                          .where = "--speculative-num-steps",
                          .found = std::to_string(limits.draft_tokens),
                          .expected = fmt::format("0 to {}", kMostDrafts)});
}

const Contract* Exchange(const PlanRequest& request, Phase phase) {
  const auto& contract = request.contracts[static_cast<size_t>(phase)];
  return contract && contract->shape != RowShape::kNone ? &*contract : nullptr;
}

// What all layers have in common.
LayoutPlan Frame(const PlanRequest& request, ParallelMesh parallel) {
  LayoutPlan plan{.config = request.parallel, .phases = {Phase::kPrefill, Phase::kDecode}};
  if (request.limits.draft_tokens > 0) plan.phases.push_back(Phase::kVerify);
  plan.rows_in = parallel.attn_dp;
  plan.parallel = std::move(parallel);
  const ParallelMesh& p = plan.parallel;
  const bool moe = std::ranges::any_of(request.facts.kinds,
                                       [](const LayerKindFacts& k) { return k.moe.has_value(); });
  for (Phase phase : plan.phases) {
    const Contract* contract = Exchange(request, phase);
    if (contract == nullptr || !moe) continue;
    plan.capacity[static_cast<size_t>(phase)] = Capacity(*contract, request.limits.capacity);
    if (!(p.attn_tp & p.moe_ep).empty()) plan.row_multiple = p.mesh.Size(p.attn_tp);
    plan.equal_rows = plan.equal_rows || (contract->limits.equal_tokens && !p.attn_dp.empty());
  }
  // To the checker a multiple of 1 says that there is no padding.
  if (plan.equal_rows) plan.row_multiple = std::max(plan.row_multiple, 2);
  return plan;
}

// One way to cut a layer kind's weights, planned in all phases.
struct Option {
  LayerCut cut;
  std::vector<Result<PhasePlan>> phases;
  int64_t bytes = 0;  // of weights per rank

  bool ok() const {
    return std::ranges::all_of(phases, [](const auto& phase) { return phase.ok(); });
  }
  auto Key() const {
    double total = 0;
    int messages = 0;
    for (const auto& phase : phases) {
      total += phase->cost.Total();
      messages += phase->cost.collectives;
    }
    return std::tuple(std::llround(total), messages, bytes);
  }
};

// Options that lost, as seen in one phase.
std::vector<Rejected> Others(const std::vector<Option>& options, const Option& best, size_t phase,
                             const Situation& situation) {
  std::vector<Rejected> rejected;
  for (const Option& option : options) {
    if (&option == &best) continue;
    const Result<PhasePlan>& other = option.phases[phase];
    rejected.push_back(
        {DescribeCut(option.cut, situation.parallel.mesh),
         other.ok() ? Dearer(best.phases[phase]->cost, other->cost) : other.status().message()});
  }
  return rejected;
}

Result<KindPlan> PlanKind(const PlanRequest& request, const LayoutPlan& frame,
                          const LayerKindFacts& facts) {
  SB_ASSIGN_OR_RETURN(const ProgramParts program, TakeApart(facts));
  SB_ASSIGN_OR_RETURN(const Cuts cuts,
                      CutsOf(facts, request.parallel, frame.parallel, request.shared));
  std::vector<Option> options;
  const auto situation = [&](const LayerCut& cut, Phase phase) {
    return Situation{.program = program,
                     .parallel = frame.parallel,
                     .cut = cut,
                     .contract = facts.moe ? Exchange(request, phase) : nullptr,
                     .row_multiple = frame.row_multiple,
                     .slot_is_expert = request.parallel.redundant_experts == 0 &&
                                       cut.shared != SharedPlacement::kFusedOwn};
  };
  for (const LayerCut& cut : cuts.cuts) {
    Option option{.cut = cut, .bytes = MemoryOf(facts, cut, frame.mesh()).weights()};
    for (Phase phase : frame.phases) {
      option.phases.push_back(PlanPhase(request, facts, situation(cut, phase), phase));
    }
    options.push_back(std::move(option));
  }
  const Option* best = nullptr;
  for (const Option& option : options) {
    if (option.ok() && (best == nullptr || option.Key() < best->Key())) best = &option;
  }
  if (best == nullptr) {
    const auto& phases = options.front().phases;
    return std::ranges::find_if(phases, [](const auto& p) { return !p.ok(); })->status();
  }
  KindPlan plan{.kind = facts.kind, .layers = facts.layers, .cut = best->cut};
  for (size_t i = 0; i < frame.phases.size(); ++i) {
    PhasePlan phase = *best->phases[i];
    const auto others = Others(options, *best, i, situation(best->cut, frame.phases[i]));
    phase.rejected.insert(phase.rejected.end(), others.begin(), others.end());
    phase.rejected.insert(phase.rejected.end(), cuts.rejected.begin(), cuts.rejected.end());
    plan.phases.push_back(std::move(phase));
  }
  return plan;
}

void Add(MemoryPlan& sum, const MemoryPlan& layer, int64_t layers) {
  sum.mixer += layer.mixer * layers;
  sum.experts += layer.experts * layers;
  sum.shared += layer.shared * layers;
  sum.dense += layer.dense * layers;
  sum.whole += layer.whole * layers;
  sum.cache_per_token += layer.cache_per_token * layers;
  sum.cache_per_sequence += layer.cache_per_sequence * layers;
}

}  // namespace

Result<LayoutPlan> PlanExactly(const PlanRequest& request) {
  SB_ASSIGN_OR_RETURN(ParallelMesh parallel, CreateParallelMesh(request.parallel));
  LayoutPlan plan = Frame(request, std::move(parallel));
  plan.memory.whole = request.facts.trunk_bytes;
  for (const LayerKindFacts& facts : request.facts.kinds) {
    SB_ASSIGN_OR_RETURN(KindPlan kind, PlanKind(request, plan, facts));
    Add(plan.memory, MemoryOf(facts, kind.cut, plan.mesh()), facts.layers);
    plan.kinds.push_back(std::move(kind));
  }
  return plan;
}

}  // namespace planning

const PhasePlan* KindPlan::phase(Phase phase) const {
  const auto found =
      std::ranges::find_if(phases, [phase](const PhasePlan& p) { return p.plan.phase == phase; });
  return found == phases.end() ? nullptr : &*found;
}

Result<LayoutPlan> PlanLayout(const PlanRequest& request) {
  SB_RETURN_IF_ERROR(planning::ValidateFacts(request.facts));
  SB_RETURN_IF_ERROR(planning::ValidateLimits(request.limits));
  Result<LayoutPlan> plan = planning::PlanExactly(request);
  if (plan.ok() || plan.status().code() != StatusCode::kRefused) return plan;
  return planning::WithNearest(plan.status(), request);
}

}  // namespace signalbox
