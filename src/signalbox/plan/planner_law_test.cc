// SPDX-License-Identifier: Apache-2.0
//
// Laws of the planner over random configurations, models, contracts and limits.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>

#include "signalbox/plan/planner.h"
#include "signalbox/plan/planner_models_test.h"
#include "signalbox/plan/print.h"
#include "signalbox/plan/simulate_test.h"

namespace signalbox {
namespace {

int Below(int n) {
  return *rc::gen::resize(100, rc::gen::inRange(0, n));
}
bool Coin() {
  return Below(2) == 1;
}
template <typename T>
const T& OneOf(const std::vector<T>& values) {
  return values[size_t(Below(int(values.size())))];
}

PlanRequest RandomRequest() {
  static const std::vector<std::string> kPrograms = {
      "gated", "shared", "routed", "scaled", "dense", "latent", "latent-snapshot", "latent-dense"};
  static const std::vector<Contract> kContracts = ExchangeContracts();
  PlanRequest r{.facts = TestModel(OneOf(kPrograms)), .emulated = true};
  r.parallel.tp = OneOf(std::vector<int>{1, 2, 3, 4, 6, 8});
  do {
    r.parallel.dp = 1 + Below(r.parallel.tp);
    r.parallel.ep = 1 + Below(r.parallel.tp);
  } while (!CreateParallelMesh(r.parallel).ok());
  if (Coin()) r.parallel.redundant_experts = OneOf(std::vector<int>{2, 8});
  if (Coin()) r.limits.draft_tokens = 2;
  if (Coin()) r.limits.max_running_requests = 32;
  for (auto& contract : r.contracts) {
    if (Below(4) > 0) contract = OneOf(kContracts);
  }
  if (Coin()) r.contracts[1] = r.contracts[2] = r.contracts[0];
  r.shared = SharedChoice(Below(4));
  LayerKindFacts& kind = r.facts.kinds[0];
  if (kind.shared && Coin()) kind.shared->format = kind.moe->format;
  for (HeadCount& heads : kind.heads) {
    if (r.parallel.tp % 3 == 0) heads.count *= 3;
  }
  return r;
}

// The same weights in every phase, as the cut says.
void CheckCut(const KindPlan& kind) {
  for (const PhasePlan& phase : kind.phases) {
    for (const Step& step : phase.plan.steps) {
      if (step.kind == StepKind::kMixer) RC_ASSERT(step.axes == kind.cut.heads);
      if (step.kind == StepKind::kMlp) RC_ASSERT(step.axes == kind.cut.dense_width);
      if (step.kind == StepKind::kShared) RC_ASSERT(step.axes == kind.cut.shared_width);
      if (step.kind == StepKind::kExperts || step.kind == StepKind::kRunExperts) {
        RC_ASSERT(step.width_axes == kind.cut.expert_width);
      }
      if (step.kind == StepKind::kExperts || step.kind == StepKind::kDispatch) {
        RC_ASSERT(step.axes == kind.cut.experts);
      }
    }
  }
}

RC_GTEST_PROP(PlannerLaws, EveryPlanComputesWhatOneRankComputesOrIsRefused, ()) {
  const PlanRequest request = RandomRequest();
  const Result<LayoutPlan> plan = PlanLayout(request);
  if (!plan.ok()) {
    RC_ASSERT(plan.status().code() == StatusCode::kRefused);
    RC_ASSERT(!plan.status().detail().what.empty());
    RC_ASSERT(!plan.status().detail().remedy.empty());
    return;
  }
  const KindPlan& kind = plan->kinds[0];
  CheckCut(kind);
  for (const PhasePlan& phase : kind.phases) {
    RC_ASSERT(CheckPlan(phase.plan, phase.context).ok());
    RC_ASSERT(phase.checked.exit().rows == plan->rows_in);
    // The toy ranks know no weights by expert in place of ids.
    const auto& contract = phase.context.contract;
    if (contract && contract->weights == ReceivedWeights::kDenseByExpert) continue;
    const double error = Simulate(phase.plan, phase.context,
                                  {.seed = unsigned(Below(1000)),
                                   .sequences = 1 + Below(5),
                                   .tokens = 1 + Below(3),
                                   .redundant_slots = phase.context.slot_is_expert ? 0 : 2});
    if (!(error < 1e-9)) RC_FAIL(std::to_string(error) + "\n" + LayoutToText(*plan));
  }
}

// Names do nothing: a contract under another name gives the same steps, reasons and costs.
RC_GTEST_PROP(PlannerLaws, NamesOfContractsDoNotMatter, ()) {
  PlanRequest request = RandomRequest();
  const Result<LayoutPlan> plan = PlanLayout(request);
  for (auto& contract : request.contracts) {
    if (!contract) continue;
    contract->name = "zenith";
    contract->mode = "";
  }
  const Result<LayoutPlan> renamed = PlanLayout(request);
  RC_ASSERT(plan.ok() == renamed.ok());
  if (!plan.ok()) {
    RC_ASSERT(plan.status().detail().what == renamed.status().detail().what);
    return;
  }
  RC_ASSERT(plan->kinds[0].cut == renamed->kinds[0].cut);
  for (size_t i = 0; i < plan->phases.size(); ++i) {
    const PhasePlan& a = plan->kinds[0].phases[i];
    const PhasePlan& b = renamed->kinds[0].phases[i];
    RC_ASSERT(a.plan == b.plan);
    RC_ASSERT(a.cost == b.cost);
  }
}

}  // namespace
}  // namespace signalbox
