// SPDX-License-Identifier: Apache-2.0
//
// Laws of the checker over random layouts of up to 16 ranks: a right plan types and computes what
// one rank computes, and whatever else types computes it too.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "signalbox/mesh/parallel_config.h"
#include "signalbox/plan/check.h"
#include "signalbox/plan/exchange.h"
#include "signalbox/plan/simulate_test.h"
#include "signalbox/plan/toy_back_ends_test.h"

namespace signalbox::soundness_test {
namespace {

using enum Reg;
using K = StepKind;

enum class Ffn { kDense, kRouted, kShared, kGatedShared };
enum class Placement { kSliced, kWhole, kOneRank, kGlobal, kPerRank };
enum class BackEnd { kIdeal, kFlatLocal, kFlatGlobal, kExpertMajor };
enum class Factor { kNone, kTopK, kModel };

struct Choice {
  ParallelConfig config;
  Ffn ffn = Ffn::kShared;
  bool latent = false;
  bool bank = false;
  bool snapshot = false;
  bool exchange = false;
  bool keep = false;  // rows stay sharded between layers
  bool permute = false;
  Placement shared = Placement::kSliced;
  BackEnd back_end = BackEnd::kIdeal;
  Factor factor = Factor::kNone;
  bool redundant = false;
};

constexpr Rational kFactor{5, 2};

class Builder {
 public:
  Builder(const Choice& choice, const ParallelMesh& p) : c_(choice), p_(p) {}

  LayerPlan Plan() {
    // Ranks that share rows of the feed-forward part under an exchange.
    split_ = c_.exchange ? p_.attn_tp & p_.moe_ep : AxisSet();
    const AxisSet arriving = c_.keep ? split_ : AxisSet();
    Step({.kind = c_.bank ? K::kMix : K::kNorm, .dst = kMixed, .src = kResidual});
    if (c_.bank && c_.snapshot) Step({.kind = K::kSnapshot, .dst = kBank, .src = kResidual});
    if (c_.bank) Step({.kind = K::kNorm, .dst = kMixed});
    Gather(kMixed, arriving);
    Step({.kind = K::kMixer, .dst = kMixed, .axes = p_.attn_tp});
    Reduce(kMixed, p_.attn_tp - split_);
    if (!split_.empty()) {
      Step({.kind = K::kReduceScatter, .dst = kMixed, .axes = split_});
      if (!c_.keep) {
        Step({.kind = K::kSlice, .dst = kResidual, .axes = split_});
        if (c_.bank) Step({.kind = K::kSlice, .dst = kBank, .axes = split_});
      }
    }
    Add(kResidual, kMixed);
    FeedForwardInput();
    if (c_.ffn == Ffn::kDense) {
      Dense();
    } else if (c_.exchange) {
      Exchanged();
    } else {
      Masked();
    }
    if (!c_.keep) {
      Gather(kResidual, split_);
      if (c_.bank) Gather(kBank, split_);
    }
    return {.kind = "random", .steps = std::move(steps_)};
  }

  // The model's own steps, written without looking at a layout.
  std::vector<signalbox::Step> Program() {
    c_.exchange = c_.keep = c_.redundant = false;
    if (c_.factor == Factor::kTopK) c_.factor = Factor::kModel;
    c_.shared = Placement::kSliced;
    std::vector<signalbox::Step> steps = Plan().steps;
    std::erase_if(steps, [](const signalbox::Step& s) { return IsLayoutStep(s.kind); });
    for (signalbox::Step& s : steps) s.axes = s.width_axes = {};
    return steps;
  }

  CheckContext Context() {
    CheckContext context{.mesh = p_.mesh,
                         .program = Builder(c_, p_).Program(),
                         .rows_in = p_.attn_dp,
                         .sequence_axes = p_.attn_dp,
                         .slot_is_expert = !c_.redundant};
    const AxisSet split = c_.exchange ? p_.attn_tp & p_.moe_ep : AxisSet();
    context.row_multiple = split.empty() ? 1 : p_.mesh.Size(p_.attn_tp);
    if (c_.keep) context.rows_in = context.rows_in | split;
    context.rows_out = context.rows_in;
    if (c_.back_end == BackEnd::kIdeal) return context;
    context.contract = ToyContract(c_.back_end == BackEnd::kFlatLocal    ? "flat-local"
                                   : c_.back_end == BackEnd::kFlatGlobal ? "flat-global"
                                                                         : "expert-major");
    const bool by_expert = c_.permute || c_.back_end == BackEnd::kExpertMajor;
    context.runner = ToyRunner(by_expert ? IdSpace::kPosition : IdSpace::kLocal);
    context.runner->reads_tail = true;
    return context;
  }

 private:
  void Step(signalbox::Step step) { steps_.push_back(std::move(step)); }
  void Add(Reg dst, Reg src) { Step({.kind = K::kAdd, .dst = dst, .src = src}); }
  void Reduce(Reg reg, AxisSet axes, Reg also = kCount) {
    if (!axes.empty()) Step({.kind = K::kAllReduce, .dst = reg, .axes = axes, .also = also});
  }
  void Gather(Reg reg, AxisSet axes) {
    if (!axes.empty()) Step({.kind = K::kAllGather, .dst = reg, .axes = axes});
  }
  bool shared() const { return c_.ffn >= Ffn::kShared; }
  bool gated() const { return c_.ffn == Ffn::kGatedShared; }
  bool fused() const { return shared() && c_.shared >= Placement::kOneRank; }

  void FeedForwardInput() {
    Reg from = kResidual;
    if (c_.bank) {
      Step({.kind = K::kMix, .dst = kNormed, .src = kResidual});
      from = kNormed;
    }
    Step({.kind = K::kNorm, .dst = kNormed, .src = from, .norm = NormRole::kFeedForwardInput});
  }

  void Dense() {
    Step({.kind = K::kMlp, .dst = kRouted, .src = kNormed, .axes = p_.attn_tp - split_});
    Reduce(kRouted, p_.attn_tp - split_);
    Add(kResidual, kRouted);
  }

  // Returns the register that experts read.
  Reg Route(AxisSet weight_over) {
    if (c_.latent) Step({.kind = K::kLatentDown, .dst = kLatent, .src = kNormed});
    Step({.kind = K::kRoute,
          .dst = kRouting,
          .src = kNormed,
          .coefficient = c_.factor == Factor::kTopK ? kFactor : Rational{}});
    if (c_.redundant) {
      Step({.kind = K::kRemapIds,
            .dst = kRouting,
            .axes = c_.exchange ? p_.attn_tp : AxisSet(),
            .ids = IdSpace::kGlobal});
    }
    if (fused()) {
      const SharedSlot slot = c_.shared == Placement::kOneRank  ? SharedSlot::kOneRank
                              : c_.shared == Placement::kGlobal ? SharedSlot::kGlobal
                                                                : SharedSlot::kPerRank;
      Step({.kind = K::kAppendShared,
            .dst = kRouting,
            .axes = slot == SharedSlot::kOneRank ? AxisSet() : weight_over,
            .coefficient = c_.factor == Factor::kModel ? Rational{2, 5} : Rational{},
            .gated = gated(),
            .slot = slot});
    }
    Step({.kind = K::kMaskTail, .dst = kRouting});
    return c_.latent ? kLatent : kNormed;
  }

  // `owed`: the axes that complete kRouted; the shared expert may be sliced over `slices`.
  void Join(AxisSet owed, AxisSet slices) {
    if (c_.factor == Factor::kModel) {
      Step({.kind = K::kScale, .dst = kRouted, .coefficient = kFactor});
    }
    const bool separate = shared() && !fused();
    const bool together = separate && c_.shared == Placement::kSliced && slices == owed;
    if (separate) {
      Step({.kind = K::kShared,
            .dst = kShared,
            .src = kNormed,
            .axes = c_.shared == Placement::kSliced ? slices : AxisSet(),
            .gated = gated()});
    }
    if (c_.latent) {
      Reduce(kRouted, owed, together ? kShared : kCount);
      Step({.kind = K::kNorm, .dst = kRouted, .norm = NormRole::kLatent});
      Step({.kind = K::kLatentUp, .dst = kRouted});
      if (separate) Add(kRouted, kShared);
    } else if (together) {
      Add(kRouted, kShared);
      Reduce(kRouted, owed);
    } else {
      Reduce(kRouted, owed);
      if (separate) Add(kRouted, kShared);
    }
  }

  void Masked() {
    Gather(kNormed, p_.attn_dp);
    const Reg rows = Route(p_.moe_ep);
    Step({.kind = K::kExperts,
          .dst = kRouted,
          .src = rows,
          .axes = p_.moe_ep,
          .width_axes = p_.moe_tp});
    Join(p_.mesh.all(), p_.mesh.all());
    if (!p_.attn_dp.empty()) Step({.kind = K::kSlice, .dst = kRouted, .axes = p_.attn_dp});
    Add(kResidual, kRouted);
  }

  void Exchanged() {
    const Reg rows = Route({});
    const bool library = c_.back_end == BackEnd::kExpertMajor;
    Step({.kind = K::kDispatch, .dst = kDispatched, .src = rows, .axes = p_.moe_ep});
    if (c_.back_end == BackEnd::kFlatGlobal) {
      Step({.kind = K::kMaskTail, .dst = kDispatched});
      Step({.kind = K::kRemapIds, .dst = kDispatched, .ids = IdSpace::kLocal});
    }
    const bool flat = c_.back_end == BackEnd::kFlatLocal || c_.back_end == BackEnd::kFlatGlobal;
    if (library) Step({.kind = K::kMaskTail, .dst = kDispatched});
    if (flat && c_.permute) {
      Step({.kind = K::kPermute, .dst = kDispatched, .shape = RowShape::kExpertMajorPadded});
    }
    Step({.kind = K::kRunExperts,
          .dst = kExpertOut,
          .src = kDispatched,
          .width_axes = p_.moe_tp,
          .weigh = !library && !(flat && c_.permute)});
    if (flat && c_.permute) {
      Step({.kind = K::kPermute, .dst = kExpertOut, .weigh = true, .shape = RowShape::kFlat});
    }
    Step({.kind = K::kCombine,
          .dst = kRouted,
          .src = kExpertOut,
          .axes = p_.moe_ep,
          .weigh = library});
    Join(p_.moe_tp, p_.moe_tp);
    Add(kResidual, kRouted);
  }

  Choice c_;
  const ParallelMesh& p_;
  AxisSet split_;
  std::vector<signalbox::Step> steps_;
};

int Below(int n) {
  return *rc::gen::resize(100, rc::gen::inRange(0, n));
}
bool Coin() {
  return Below(2) == 1;
}

Choice RandomChoice() {
  Choice c;
  static constexpr int kWorlds[] = {1, 2, 3, 4, 6, 8, 12, 16};
  c.config.tp = kWorlds[Below(std::size(kWorlds))];
  do {
    c.config.dp = 1 + Below(c.config.tp);
    c.config.ep = 1 + Below(c.config.tp);
  } while (!CreateParallelMesh(c.config).ok());
  c.ffn = Ffn(Below(4));
  c.latent = c.ffn != Ffn::kDense && Coin();
  c.bank = Coin();
  c.snapshot = Coin();
  c.shared = Placement(Below(5));
  c.factor = c.ffn == Ffn::kDense ? Factor::kNone : Factor(Below(3));
  c.redundant = Coin();
  c.permute = Coin();
  c.back_end = BackEnd(Below(4));
  // The ranks of moe_tp must hold the same rows, so they lie inside attention TP.
  c.exchange = c.ffn != Ffn::kDense && c.config.dp <= c.config.ep && Coin();
  c.keep = c.exchange && Coin();
  // What no plan can do: experts on latent rows cannot include a shared expert on hidden ones,
  // and a global slot has no destination.
  if (c.latent && c.shared >= Placement::kOneRank) c.shared = Placement::kSliced;
  if (c.exchange && c.shared == Placement::kGlobal) c.shared = Placement::kPerRank;
  return c;
}

ToyWorld WorldOf(const Choice& c) {
  return {.seed = unsigned(Below(1000)),
          .sequences = 1 + Below(5),
          .tokens = 1 + Below(3),
          .redundant_slots = c.redundant ? 2 : 0};
}

RC_GTEST_PROP(Soundness, RightPlansTypeAndComputeWhatOneRankComputes, ()) {
  const Choice c = RandomChoice();
  const ParallelMesh p = *CreateParallelMesh(c.config);
  const LayerPlan plan = Builder(c, p).Plan();
  const CheckContext context = Builder(c, p).Context();
  const Result<CheckedPlan> checked = CheckPlan(plan, context);
  if (!checked.ok()) RC_FAIL(checked.status().ToString() + "\n" + PlanToJson(plan, p.mesh));
  const double error = Simulate(plan, context, WorldOf(c));
  if (!(error < 1e-9)) RC_FAIL(std::to_string(error) + "\n" + PlanToJson(plan, p.mesh));
}

// One random change of one step.
void Mutate(std::vector<Step>& steps, const ParallelMesh& p) {
  const auto pick = [&] { return size_t(Below(int(steps.size()))); };
  const size_t i = pick();
  Step& s = steps[i];
  const auto axis = [&] {
    const int n = int(p.mesh.axes().size());
    return n == 0 ? AxisSet() : AxisSet::Single(Below(n));
  };
  const auto toggle = [](AxisSet set, AxisSet a) { return (set - a) | (a - set); };
  switch (Below(16)) {
    case 0:
    case 14:
    case 15:
      steps.erase(steps.begin() + long(i));
      break;
    case 1:
      std::swap(s, steps[pick()]);
      break;
    case 2:
      steps.insert(steps.begin() + long(pick()), Step(s));
      break;
    case 3:
      s.axes = toggle(s.axes, axis());
      break;
    case 4:
      s.width_axes = toggle(s.width_axes, axis());
      break;
    case 5:
      s.weigh = !s.weigh;
      break;
    case 6:
      s.gated = !s.gated;
      break;
    case 7:
      s.coefficient = Coin() ? Rational{2, 1} : Rational{};
      break;
    case 8:
      s.slot = SharedSlot(Below(4));
      break;
    case 9:
      s.dst = Reg(Below(int(kCount)));
      break;
    case 10:
      s.src = Reg(Below(int(kCount) + 1));
      break;
    case 11:
      s.kind = K(Below(int(K::kCount)));
      break;
    case 12:
      s.ids = IdSpace(Below(5));
      break;
    default:
      steps.insert(steps.begin() + long(i),
                   {.kind = Coin() ? K::kSlice : K::kAllGather, .dst = s.dst, .axes = axis()});
  }
}

// The same model on the same ranks, with another back end, runner or placement, or rows that stay
// elsewhere: what a plan must not have been made for.
Choice Elsewhere(Choice c) {
  const Choice other = RandomChoice();
  c.back_end = other.back_end;
  c.permute = Coin();
  if (Coin()) c.redundant = !c.redundant;
  if (Coin()) c.exchange = !c.exchange && c.config.dp <= c.config.ep;
  c.keep = c.exchange && Coin();
  return c;
}

RC_GTEST_PROP(Soundness, WhateverTypesComputesWhatOneRankComputes, ()) {
  const Choice c = RandomChoice();
  const ParallelMesh p = *CreateParallelMesh(c.config);
  const LayerPlan right = Builder(c, p).Plan();
  for (int i = 0; i < 40; ++i) {
    LayerPlan plan = right;
    const Choice given = Coin() ? c : Elsewhere(c);
    CheckContext context = Builder(given, p).Context();
    if (Coin()) context.rows_out.reset();
    if (Below(4) == 0 && context.runner) {
      context.runner->ids = IdSpace(2 + Below(3));
      context.runner->weights = RunnerWeights(Below(3));
    }
    for (int changes = Below(4); changes > 0 && !plan.steps.empty(); --changes) {
      Mutate(plan.steps, p);
    }
    if (!CheckPlan(plan, context).ok()) continue;
    const double error = Simulate(plan, context, WorldOf(given));
    if (!(error < 1e-9)) RC_FAIL(std::to_string(error) + "\n" + PlanToJson(plan, p.mesh));
  }
}

}  // namespace
}  // namespace signalbox::soundness_test
