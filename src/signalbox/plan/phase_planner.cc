// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/phase_planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "signalbox/plan/nearest.h"

namespace signalbox::planning {
namespace {

int PayloadBits(Payload payload) {
  switch (payload) {
    case Payload::kF32:
      return 32;
    case Payload::kBf16:
    case Payload::kF16:
      return 16;
    case Payload::kFp8:
    case Payload::kInt8:
      return 8;
    case Payload::kFp4:
      return 4;
  }
  return 32;
}

// Rows of an attention group at a layer's entry, as the flag that bounds them says.
RowDemand Entering(const PlanLimits& limits, Phase phase) {
  if (phase == Phase::kPrefill) {
    return {.flag = "--chunked-prefill-size", .value = limits.chunked_prefill_size};
  }
  // A captured step is as large as its graph, however few requests there are.
  const bool captured = limits.captured_requests > limits.max_running_requests;
  return {.flag = captured ? "--cuda-graph-max-bs" : "--max-running-requests",
          .value = std::max(limits.captured_requests, limits.max_running_requests),
          .tokens_each = phase == Phase::kVerify ? 1 + limits.draft_tokens : 1};
}

class PhasePlanner {
 public:
  PhasePlanner(const PlanRequest& request, const LayerKindFacts& facts, const Situation& situation,
               Phase phase)
      : r_(request), facts_(facts), s_(situation), phase_(phase), mesh_(s_.parallel.mesh) {}

  Result<PhasePlan> Run() {
    for (const Choice& choice : Choices(s_, r_.runners)) Try(choice);
    if (tried_.empty()) return NoRunner();
    const Tried* best = nullptr;
    for (const Tried& t : tried_) {
      if (t.plan.ok() && (best == nullptr || Key(t) < Key(*best))) best = &t;
    }
    if (best == nullptr) {
      return tried_.front().plan.status().At(fmt::format("{}, {}", facts_.kind, ToString(phase_)));
    }
    PhasePlan plan = *best->plan;
    for (const Tried& t : tried_) {
      if (Differences(t.choice, best->choice) != 1) continue;
      plan.rejected.push_back({Describe(t.choice, s_), t.plan.ok() ? Dearer(plan.cost, t.plan->cost)
                                                                   : t.plan.status().message()});
    }
    return plan;
  }

 private:
  struct Tried {
    Choice choice;
    Result<PhasePlan> plan;
  };

  static std::pair<long long, int> Key(const Tried& t) {
    return {std::llround(t.plan->cost.Total()), t.plan->cost.collectives};
  }

  static int Differences(const Choice& a, const Choice& b) {
    const auto name = [](const Choice& c) { return c.runner ? c.runner->name : ""; };
    return int(a.scatter != b.scatter) + int(name(a) != name(b)) +
           int(a.gather_latent != b.gather_latent) + int(a.slice_sums != b.slice_sums);
  }

  // Runners come with the least to do first: once one reads the rows, the others need not be tried.
  bool HasRunner(const Choice& choice) const {
    return std::ranges::any_of(tried_, [&](const Tried& t) {
      return t.plan.ok() && t.choice.scatter == choice.scatter &&
             t.choice.gather_latent == choice.gather_latent &&
             t.choice.slice_sums == choice.slice_sums;
    });
  }

  void Try(const Choice& choice) {
    if (choice.runner && HasRunner(choice)) return;
    tried_.push_back({choice, Plan(choice)});
  }

  Result<PhasePlan> Plan(const Choice& choice) const {
    if (s_.contract != nullptr) SB_RETURN_IF_ERROR(CheckLimits(choice));
    PhasePlan plan{.plan = {.kind = facts_.kind, .phase = phase_, .steps = Compose(choice, s_)},
                   .context = Context(choice)};
    SB_ASSIGN_OR_RETURN(plan.checked, CheckPlan(plan.plan, plan.context));
    plan.cost = CostOf(plan.plan, plan.checked,
                       {.facts = facts_,
                        .hidden = r_.facts.hidden,
                        .context = plan.context,
                        .attn_tp = s_.parallel.attn_tp,
                        .element_bits = PayloadBits(r_.payload),
                        .slots = s_.cut.slots});
    return plan;
  }

  CheckContext Context(const Choice& choice) const {
    CheckContext context{.mesh = mesh_,
                         .program = facts_.program,
                         .rows_in = s_.parallel.attn_dp,
                         .rows_out = s_.parallel.attn_dp,
                         .sequence_axes = s_.parallel.attn_dp,
                         .row_multiple = s_.row_multiple,
                         .slot_is_expert = s_.slot_is_expert};
    const RowDemand rows = Entering(r_.limits, phase_);
    context.max_rows = rows.value * rows.tokens_each;
    if (s_.contract == nullptr) return context;
    context.contract = *s_.contract;
    context.runner = choice.runner;
    if (s_.contract->overflow != OverflowPolicy::kImpossible) {
      context.capacity = Capacity(*s_.contract, r_.limits.capacity);
    }
    return context;
  }

  // The contract's limits, first those that no smaller batch would meet.
  Status CheckLimits(const Choice& choice) const {
    const bool fused = s_.cut.shared == SharedPlacement::kFusedOwn;
    const int ranks = mesh_.Size(s_.parallel.moe_ep);
    Request request{.top_k = static_cast<int>(facts_.moe->top_k) + fused,
                    .hidden = static_cast<int>(facts_.latent > 0 ? facts_.latent : r_.facts.hidden),
                    .slots = static_cast<int>(s_.cut.slots) + fused * ranks,
                    .ranks = ranks,
                    .phase = phase_,
                    .payload = r_.payload,
                    .captured = phase_ != Phase::kPrefill && r_.limits.captured_requests > 0,
                    .equal_tokens = true,  // LayoutPlan::equal_rows sees to it
                    .emulated = r_.emulated};
    if (Status status = Eligible(*s_.contract, request); !status.ok()) {
      ErrorDetail detail = status.detail();
      if (detail.remedy.empty() || !request.captured) detail.remedy = kAnotherLayout;
      return Refused(std::move(detail));
    }
    request.capacity = r_.limits.capacity;
    request.rows = Entering(r_.limits, phase_);
    const int gathered = mesh_.Size(Gathered(choice, s_));
    request.rows.shared_by = mesh_.Size(choice.scatter);
    if (gathered == 1) return Eligible(*s_.contract, request);
    return CheckGathered(request.rows, gathered);
  }

  // Rows of several attention groups meet before they are sent.
  Status CheckGathered(const RowDemand& demand, int gathered) const {
    const int64_t capacity = Capacity(*s_.contract, r_.limits.capacity);
    const int64_t rows = demand.Rows() * gathered;
    if (s_.contract->overflow == OverflowPolicy::kImpossible || rows <= capacity) return OkStatus();
    const int64_t largest = capacity / gathered * demand.shared_by / demand.tokens_each;
    return Refused({.what = fmt::format("{} {}: the rows of {} attention groups are {} and exceed "
                                        "the capacity of {} per rank",
                                        demand.flag, demand.value, gathered, rows, capacity),
                    .where = "--moe-a2a-backend " + ContractId(*s_.contract),
                    .remedy = fmt::format("largest that works is {}, or give "
                                          "--max-dispatch-tokens-per-rank {}",
                                          largest, rows)});
  }

  Status NoRunner() const {
    std::vector<std::string> reads;
    for (const RunnerTerms& runner : r_.runners) {
      reads.push_back(fmt::format("{} reads {} rows with {} ids", runner.name,
                                  ToString(runner.shape), ToString(runner.ids)));
    }
    return Refused({.what = fmt::format("no runner reads {} rows with {} ids",
                                        ToString(s_.contract->shape), ToString(s_.contract->ids)),
                    .where = "--moe-runner-backend",
                    .found = fmt::format("{}", fmt::join(reads, ", ")),
                    .remedy = "choose another back end or runner"});
  }

  const PlanRequest& r_;
  const LayerKindFacts& facts_;
  const Situation& s_;
  const Phase phase_;
  const Mesh& mesh_;
  std::vector<Tried> tried_;
};

}  // namespace

Result<PhasePlan> PlanPhase(const PlanRequest& request, const LayerKindFacts& facts,
                            const Situation& situation, Phase phase) {
  return PhasePlanner(request, facts, situation, phase).Run();
}

std::string Dearer(const PlanCost& best, const PlanCost& other, int64_t bytes) {
  std::vector<std::string> parts;
  const auto sent = [](const PlanCost& c) {
    return std::llround(c.collective_bytes + c.exchange_bytes);
  };
  if (sent(best) != sent(other)) {
    parts.push_back(fmt::format("sends {} bytes per token instead of {}", sent(other), sent(best)));
  }
  if (std::abs(best.repeated - other.repeated) > 0.005) {
    parts.push_back(fmt::format("does {:.2f} times a fair share of the work instead of {:.2f}",
                                other.repeated, best.repeated));
  }
  if (other.copied_bytes > best.copied_bytes) parts.push_back("copies the rows it receives");
  if (parts.empty() && other.collectives > best.collectives) {
    parts.push_back(
        fmt::format("{} collectives instead of {}", other.collectives, best.collectives));
  }
  if (parts.empty() && bytes > 0) {
    parts.push_back(
        fmt::format("costs the same, and a rank holds {} more bytes of a layer", bytes));
  }
  if (parts.empty()) parts.push_back("no cheaper");
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace signalbox::planning
