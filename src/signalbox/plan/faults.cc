// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

// One plan on its way to be broken. `before` and `after` are those of the right plan.
struct Patient {
  const LayoutPlan& layout;
  const LayerCut& cut;
  const CheckedPlan& checked;
  PhasePlan& phase;

  std::vector<Step>& steps() { return phase.plan.steps; }
  const Mesh& mesh() const { return layout.mesh(); }
  const std::optional<Value>& After(size_t step, Reg reg) const { return checked.after[step][reg]; }
  std::string Inserted(size_t at) const {
    return fmt::format("after step {}: {}", at, phase.plan.steps[at].ToString(mesh()));
  }
};

// What was changed, or why there is nothing to change.
struct Outcome {
  bool done = false;
  std::string text;
};
Outcome Done(std::string change) {
  return {true, std::move(change)};
}
Outcome NoPlace(std::string why) {
  return {false, std::move(why)};
}

using Test = bool (*)(const Step&);
std::optional<size_t> Find(const std::vector<Step>& steps, Test test) {
  const auto it = std::find_if(steps.begin(), steps.end(), test);
  if (it == steps.end()) return std::nullopt;
  return static_cast<size_t>(it - steps.begin());
}

bool IsSum(const Step& s) {
  return s.kind == StepKind::kAllReduce || s.kind == StepKind::kReduceScatter;
}
// The shared expert joins the others here.
bool UsesShared(const Step& s) {
  return (s.kind == StepKind::kAdd && s.src == Reg::kShared) || s.also == Reg::kShared;
}
bool MakesRouted(const Step& s) {
  return s.dst == Reg::kRouted && (s.kind == StepKind::kExperts || s.kind == StepKind::kCombine);
}

constexpr std::string_view kNoShared =
    "no expert is shared here, or it is fused into the routed ones";

Outcome Insert(Patient p, size_t at, Step step) {
  p.steps().insert(p.steps().begin() + static_cast<std::ptrdiff_t>(at), std::move(step));
  return Done(p.Inserted(at));
}

Outcome SumScatteredRows(Patient p) {
  for (size_t i = 0; i < p.steps().size(); ++i) {
    const std::optional<Value>& routed = p.After(i, Reg::kRouted);
    if (p.steps()[i].dst != Reg::kRouted || !routed || !routed->Owed().empty()) continue;
    AxisSet axes = routed->rows - p.layout.rows_in;
    // Groups with sequences of their own have rows to add when they are padded alike.
    if (axes.empty() && p.layout.equal_rows) axes = routed->rows;
    if (axes.empty()) continue;
    return Insert(p, i + 1, {.kind = StepKind::kAllReduce, .dst = Reg::kRouted, .axes = axes});
  }
  return NoPlace(
      "behind the experts every rank has the same rows: use a contract that exchanges rows");
}

Outcome SharedPerRank(Patient p) {
  const auto use = Find(p.steps(), UsesShared);
  if (!use) return NoPlace(std::string(kNoShared));
  const Value& shared = *p.After(*use - 1, Reg::kShared);
  const AxisSet owed = shared.Owed();
  const AxisSet axes = owed.empty() ? p.mesh().all() - shared.rows : owed;
  if (p.mesh().Size(axes) > 1) {
    return Insert(p, *use, {.kind = StepKind::kAllReduce, .dst = Reg::kShared, .axes = axes});
  }
  if (p.mesh().ranks() == 1) return NoPlace("there is one rank");
  // Every rank has its own rows: nobody can sum them, but all can be counted.
  const Step add = p.steps()[*use];
  for (int i = 1; i < p.mesh().ranks(); ++i) {
    p.steps().insert(p.steps().begin() + static_cast<std::ptrdiff_t>(*use), add);
  }
  return Done(p.Inserted(*use));
}

Outcome ScaleShared(Patient p, Rational factor) {
  const auto use = Find(p.steps(), UsesShared);
  if (!use) return NoPlace(std::string(kNoShared));
  return Insert(p, *use, {.kind = StepKind::kScale, .dst = Reg::kShared, .coefficient = factor});
}

// Rows stay at home and meet the experts that are there.
Outcome StayAtHome(Patient p, size_t dispatch) {
  std::vector<Step> steps;
  Step local{.kind = StepKind::kExperts,
             .dst = Reg::kRouted,
             .src = p.steps()[dispatch].src,
             .axes = p.steps()[dispatch].axes};
  for (const Step& s : p.steps()) {
    if (s.kind == StepKind::kRunExperts) local.width_axes = s.width_axes;
    if (s.dst == Reg::kDispatched || s.dst == Reg::kExpertOut) continue;
    if (s.kind == StepKind::kCombine) local.dst = s.dst;
    steps.push_back(s.kind == StepKind::kCombine ? local : s);
  }
  p.steps() = std::move(steps);
  return Done("dispatch and combine left out: " + local.ToString(p.mesh()));
}

Outcome LocalExperts(Patient p) {
  if (const auto dispatch =
          Find(p.steps(), [](const Step& s) { return s.kind == StepKind::kDispatch; })) {
    return StayAtHome(p, *dispatch);
  }
  const auto sum =
      Find(p.steps(), [](const Step& s) { return IsSum(s) && s.source() == Reg::kRouted; });
  if (!sum) return NoPlace("no rank has experts that another has not");
  const Step step = p.steps()[*sum];
  p.steps().erase(p.steps().begin() + static_cast<std::ptrdiff_t>(*sum));
  const auto keep_rows = [&](size_t at) {
    if (step.kind != StepKind::kReduceScatter) return;
    p.steps().insert(p.steps().begin() + static_cast<std::ptrdiff_t>(at),
                     {.kind = StepKind::kSlice, .dst = Reg::kRouted, .axes = step.axes});
  };
  // The shared expert, where it shared the sum, is completed all the same.
  const auto join = Find(p.steps(), UsesShared);
  const bool joined = join && *join < *sum && p.steps()[*join].kind == StepKind::kAdd;
  if (joined || step.also == Reg::kShared) {
    const size_t at = joined ? *join : *sum;
    keep_rows(at);
    p.steps().insert(p.steps().begin() + static_cast<std::ptrdiff_t>(at),
                     {.kind = step.kind, .dst = Reg::kShared, .axes = step.axes});
  } else {
    keep_rows(*sum);
  }
  return Done("left out: " + step.ToString(p.mesh()));
}

// Rows name experts in one numbering, whoever reads them counts in another.
Outcome IdsOffByOne(Patient p) {
  if (!Find(p.steps(), MakesRouted)) return NoPlace("the layer has no experts");
  if (p.phase.context.runner) {
    IdSpace& ids = p.phase.context.runner->ids;
    ids = ids == IdSpace::kLocal ? IdSpace::kGlobal : IdSpace::kLocal;
  } else {
    p.phase.context.slot_is_expert = false;
    std::erase_if(p.steps(), [](const Step& s) {
      return s.kind == StepKind::kRemapIds && s.dst == Reg::kRouting;
    });
  }
  return Done("every expert is taken for the next one on its rank");
}

Outcome WeightsTwice(Patient p) {
  const auto run = Find(p.steps(), [](const Step& s) { return s.kind == StepKind::kRunExperts; });
  const auto combine = Find(p.steps(), [](const Step& s) { return s.kind == StepKind::kCombine; });
  if (!run || !combine) {
    return NoPlace("only one step knows the router weights: use a contract that exchanges rows");
  }
  p.steps()[*run].weigh = p.steps()[*combine].weigh = true;
  return Done("runner and combine both multiply by the router weights");
}

Outcome ScalingTwice(Patient p) {
  std::optional<Rational> factor;
  for (const Step& s : p.steps()) {
    const bool scales = s.kind == StepKind::kRoute || s.kind == StepKind::kScale;
    if (scales && s.coefficient != Rational{}) factor = s.coefficient;
  }
  const auto made = Find(p.steps(), MakesRouted);
  if (!factor || !made) return NoPlace("the model has no routed scaling factor");
  return Insert(p, *made + 1,
                {.kind = StepKind::kScale, .dst = Reg::kRouted, .coefficient = *factor});
}

Outcome GlobalSharedSlot(Patient p) {
  const auto append =
      Find(p.steps(), [](const Step& s) { return s.kind == StepKind::kAppendShared; });
  if (!append || p.steps()[*append].axes.empty()) {
    return NoPlace(
        "the shared expert is not fused into a slot that every rank has a copy of: use "
        "--shared-experts fused where its weights fit");
  }
  p.steps()[*append].axes = {};
  return Done("the weight is not divided over the copies");
}

Outcome PoisonRow(Patient p) {
  const auto& context = p.phase.context;
  if (!context.runner || !context.contract || context.contract->tail != TailRows::kPoison) {
    return NoPlace("no rows are delivered that the back end leaves unwritten");
  }
  p.phase.context.runner->reads_tail = true;
  std::erase_if(p.steps(), [](const Step& s) {
    return s.kind == StepKind::kMaskTail && s.dst == Reg::kDispatched;
  });
  return Done("the last row of every group is read one row too far");
}

Outcome ReplicaPerRank(Patient p) {
  if (p.layout.config.redundant_experts == 0) {
    return NoPlace("every expert has one slot: use --ep-num-redundant-experts");
  }
  const auto remap = Find(p.steps(), [](const Step& s) {
    return s.kind == StepKind::kRemapIds && s.dst == Reg::kRouting;
  });
  if (!remap) return NoPlace("the layer has no experts");
  const AxisSet same_rows = p.cut.experts - p.After(*remap, Reg::kRouting)->rows;
  if (p.mesh().Size(same_rows) == 1) {
    return NoPlace("one rank sends each row: whichever replica it chooses is right");
  }
  p.steps()[*remap].axes = p.cut.experts;
  return Done(p.steps()[*remap].ToString(p.mesh()));
}

Outcome NormBeforeSum(Patient p) {
  const auto norm = Find(p.steps(), [](const Step& s) {
    return s.kind == StepKind::kNorm && s.norm == NormRole::kLatent;
  });
  const auto sum =
      Find(p.steps(), [](const Step& s) { return IsSum(s) && s.source() == Reg::kRouted; });
  if (!norm || !sum || *sum > *norm) {
    return NoPlace("no norm stands behind a sum of routed experts");
  }
  const auto begin = p.steps().begin();
  std::rotate(begin + static_cast<std::ptrdiff_t>(*sum), begin + static_cast<std::ptrdiff_t>(*norm),
              begin + static_cast<std::ptrdiff_t>(*norm) + 1);
  return Done("before the sum: " + p.steps()[*sum].ToString(p.mesh()));
}

Outcome Break(Patient p, LayoutFault fault) {
  switch (fault) {
    case LayoutFault::kSumScatteredRows:
      return SumScatteredRows(p);
    case LayoutFault::kSharedPerRank:
      return SharedPerRank(p);
    case LayoutFault::kSharedHalved:
      return ScaleShared(p, {1, 2});
    case LayoutFault::kSharedDoubled:
      return ScaleShared(p, {2, 1});
    case LayoutFault::kLocalExperts:
      return LocalExperts(p);
    case LayoutFault::kIdsOffByOne:
      return IdsOffByOne(p);
    case LayoutFault::kWeightsTwice:
      return WeightsTwice(p);
    case LayoutFault::kScalingTwice:
      return ScalingTwice(p);
    case LayoutFault::kGlobalSharedSlot:
      return GlobalSharedSlot(p);
    case LayoutFault::kPoisonRow:
      return PoisonRow(p);
    case LayoutFault::kReplicaPerRank:
      return ReplicaPerRank(p);
    case LayoutFault::kNormBeforeSum:
      return NormBeforeSum(p);
    case LayoutFault::kCount:
      break;
  }
  SB_CHECK(false) << "no such fault";
  return {};
}

}  // namespace

Result<FaultyLayout> InjectFault(const LayoutPlan& layout, LayoutFault fault) {
  FaultyLayout faulty{.declared = layout,
                      .in_steps = fault != LayoutFault::kPoisonRow &&
                                  fault != LayoutFault::kIdsOffByOne &&
                                  fault != LayoutFault::kWeightsTwice};
  std::string why = "there is no layer with experts";
  for (KindPlan& kind : faulty.declared.kinds) {
    if (kind.cut.slots == 0) continue;
    for (PhasePlan& phase : kind.phases) {
      const CheckedPlan checked = phase.checked;
      const Outcome outcome =
          Break({.layout = layout, .cut = kind.cut, .checked = checked, .phase = phase}, fault);
      if (!outcome.done) {
        why = outcome.text;
      } else if (faulty.change.empty()) {
        faulty.change = outcome.text;
      }
    }
  }
  if (!faulty.change.empty()) return faulty;
  return InvalidArgument({.what = "this layout has no place for the mistake",
                          .where = fmt::format("--inject {}", ToString(fault)),
                          .found = why});
}

Status CheckFaulty(const FaultyLayout& faulty) {
  for (const KindPlan& kind : faulty.declared.kinds) {
    for (const PhasePlan& phase : kind.phases) {
      SB_RETURN_IF_ERROR(CheckPlan(phase.plan, phase.context).status());
    }
  }
  return OkStatus();
}

}  // namespace signalbox
