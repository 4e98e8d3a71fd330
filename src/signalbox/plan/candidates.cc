// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/candidates.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "signalbox/plan/epilogue.h"

namespace signalbox::planning {
namespace {

using enum Reg;
using K = StepKind;

// Which rows a register holds and who owes its sum.
struct Held {
  AxisSet rows;
  AxisSet owed;
  friend bool operator==(const Held&, const Held&) = default;
};

class Composer {
 public:
  Composer(const Choice& choice, const Situation& situation)
      : c_(choice), s_(situation), p_(situation.parallel), mesh_(p_.mesh) {}

  std::vector<Step> Run() {
    Copy(s_.program.before);
    Attention();
    Copy(s_.program.between);
    if (s_.program.route) {
      Moe();
    } else {
      Dense();
    }
    Put({.kind = K::kAdd, .dst = kResidual, .src = kRouted});
    Leave();
    return std::move(steps_);
  }

 private:
  void Put(Step step) { steps_.push_back(std::move(step)); }
  void Copy(const std::vector<Step>& steps) {
    steps_.insert(steps_.end(), steps.begin(), steps.end());
  }
  void AllReduce(Reg reg, AxisSet axes, std::string reason = "", Reg also = kCount) {
    if (axes.empty()) return;
    Put({.kind = K::kAllReduce,
         .dst = reg,
         .axes = axes,
         .also = also,
         .reason = std::move(reason)});
  }
  // No-ops over nothing, so that one rank gets the model's own program.
  void Move(K kind, Reg dst, AxisSet axes, std::string reason = "", Reg src = kCount) {
    if (axes.empty()) return;
    Put({.kind = kind, .dst = dst, .src = src, .axes = axes, .reason = std::move(reason)});
  }
  AxisSet all() const { return p_.moe_ep | p_.moe_tp; }

  void Attention() {
    Step mixer = s_.program.mixer;
    mixer.axes = p_.attn_tp;
    Put(mixer);
    const AxisSet s = c_.scatter;
    Move(K::kReduceScatter, kMixed, s,
         fmt::format("each row is normed, routed and sent once, not {} times, for the bytes of "
                     "the all-reduce",
                     mesh_.Size(s)));
    AllReduce(kMixed, p_.attn_tp - s);
    Move(K::kSlice, kResidual, s);
    if (s_.program.bank) Move(K::kSlice, kBank, s);
    rows_ = p_.attn_dp | s;
  }

  void Leave() {
    const AxisSet s = c_.scatter;
    Move(K::kAllGather, kResidual, s, "attention reads whole sequences");
    if (!s_.program.bank || s.empty()) return;
    if (s_.program.snapshot) {
      Move(K::kAllGather, kBank, s);
    } else {
      Put({.kind = K::kInput,
           .dst = kBank,
           .axes = p_.attn_dp,
           .reason = "this layer took no snapshot: its input still holds the rows"});
    }
  }

  void Dense() {
    Step mlp = s_.program.mlp;
    mlp.axes = s_.cut.dense_width;
    if (mlp.axes != p_.attn_tp) mlp.reason = "its width does not divide further";
    Put(mlp);
    AllReduce(kRouted, mlp.axes);
  }

  void Moe() {
    const AxisSet gather = Gathered(c_, s_);
    if (SeparateShared()) SharedFromOwnRows(gather);
    if (!c_.gather_latent) GatherInput(gather);
    if (SeparateShared() && !shared_) SharedFromGathered(gather);
    const Reg experts_read = Route();
    if (c_.gather_latent) {
      Move(K::kAllGather, kLatent, gather, "latent rows are narrower than y");
      Move(K::kAllGather, kRouting, gather);
    }
    routed_ = {rows_ - gather, s_.contract ? p_.moe_tp : all()};
    if (s_.contract) {
      Exchange(experts_read);
    } else {
      Step experts = s_.program.experts;
      experts.src = experts_read;
      experts.axes = p_.moe_ep;
      experts.width_axes = p_.moe_tp;
      Put(experts);
    }
    Finish();
  }

  bool SeparateShared() const {
    return s_.cut.shared == SharedPlacement::kSharded ||
           s_.cut.shared == SharedPlacement::kReplicated;
  }

  Step SharedStep(Reg src, std::string reason) const {
    Step step = *s_.program.shared;
    step.src = src;
    step.axes = s_.cut.shared_width;
    step.reason = std::move(reason);
    return step;
  }

  // The shared expert on the rows that this rank holds, or on those of a subgroup, gathered for it
  // and scattered again; left alone where the experts' gather brings the rows anyway.
  void SharedFromOwnRows(AxisSet gather) {
    const AxisSet width = s_.cut.shared_width;
    const AxisSet foreign = width & rows_;
    if (foreign.empty()) {
      Put(SharedStep(kNormed, width.empty() ? Replicated() : OneSum()));
      shared_ = Held{rows_, width};
    } else if (c_.gather_latent || !gather.Contains(foreign)) {
      Move(K::kAllGather, kShared, foreign, "a slice of the shared expert needs the rows of all",
           kNormed);
      Put(SharedStep(kShared, ""));
      Move(K::kReduceScatter, kShared, foreign);
      shared_ = Held{rows_, width - foreign};
    }
  }
  void SharedFromGathered(AxisSet gather) {
    Put(SharedStep(kNormed, OneSum()));
    shared_ = Held{rows_ - gather, s_.cut.shared_width};
  }
  std::string OneSum() const {
    return s_.program.latent_down ? "" : "one sum completes it with the routed experts";
  }
  std::string Replicated() const {
    const int copies = mesh_.Size(all() - rows_);
    if (mesh_.ranks() == 1) return "";
    return copies == 1 ? "whole on this rank's own rows: nothing is repeated, nothing summed"
                       : fmt::format("whole: {} ranks repeat it", copies);
  }

  void GatherInput(AxisSet gather) {
    Move(K::kAllGather, kNormed, gather,
         s_.contract ? "ranks with slices of the same experts need the same rows"
                     : "nothing is exchanged: each rank sees all rows and runs its own experts");
  }

  // Returns the register that experts read.
  Reg Route() {
    const ProgramParts& program = s_.program;
    if (program.latent_down) Put(*program.latent_down);
    Step route = *program.route;
    const bool fused = s_.cut.shared == SharedPlacement::kFusedGlobal ||
                       s_.cut.shared == SharedPlacement::kFusedOwn;
    if (const Step* scale = Scale(); fused && scale != nullptr) {
      route.coefficient = scale->coefficient;
      route.reason = "the scaling factor must not reach the shared expert in the same slots";
    }
    Put(route);
    if (!s_.slot_is_expert) {
      Put({.kind = K::kRemapIds,
           .dst = kRouting,
           .ids = IdSpace::kGlobal,
           .reason = s_.cut.shared == SharedPlacement::kFusedOwn
                         ? "slots are numbered with the shared one behind each rank's own"
                         : "all ranks choose replicas alike"});
    }
    if (fused) AppendShared();
    if (s_.row_multiple > 1)
      Put({.kind = K::kMaskTail, .dst = kRouting, .reason = PaddingReason()});
    return program.latent_down ? kLatent : kNormed;
  }

  std::string PaddingReason() const {
    if (!s_.contract) return "padding rows ask for no expert";
    return s_.contract->negative_ids == NegativeIds::kSkip
               ? "padding rows ask for no expert and do not travel"
               : "the back end takes no id -1: padding rows stay out of the call";
  }

  const Step* Scale() const {
    const auto scale = std::ranges::find(s_.program.behind, K::kScale, &Step::kind);
    return scale == s_.program.behind.end() ? nullptr : &*scale;
  }

  void AppendShared() {
    const bool global = s_.cut.shared == SharedPlacement::kFusedGlobal;
    Put({.kind = K::kAppendShared,
         .dst = kRouting,
         .axes = global ? p_.moe_ep : AxisSet(),
         .gated = s_.program.shared->gated,
         .slot = global ? SharedSlot::kGlobal : SharedSlot::kPerRank,
         .reason = global ? fmt::format("{} ranks have a copy: each adds its share",
                                        mesh_.Size(p_.moe_ep))
                          : "its rows stay on their rank"});
  }

  void Exchange(Reg src) {
    const Contract& contract = *s_.contract;
    const bool fused = contract.shape == RowShape::kFused;
    const Epilogue e = *EpilogueFor(contract, c_.runner);
    Put({.kind = K::kDispatch,
         .dst = kDispatched,
         .src = src,
         .axes = p_.moe_ep,
         .reason = fused ? "one call of the back end: dispatch, experts and combine" : ""});
    Copy(e.before);
    Put({.kind = K::kRunExperts,
         .dst = kExpertOut,
         .src = kDispatched,
         .width_axes = p_.moe_tp,
         .weigh = e.runner_weighs});
    Copy(e.after);
    Put({.kind = K::kCombine,
         .dst = kRouted,
         .src = kExpertOut,
         .axes = p_.moe_ep,
         .weigh = contract.weighting != Weighting::kCaller});
  }

  // Completes the routed experts and adds the shared one: wherever both owe the same sum, first.
  void Finish() {
    const bool latent = s_.program.latent_down.has_value();
    const bool fused = !SeparateShared();
    bool summed = false;
    for (const Step& step : s_.program.behind) {
      const bool scale = step.kind == K::kScale;
      if (scale && fused && s_.cut.shared != SharedPlacement::kNone) continue;  // in the router
      if (!scale && !summed) {
        CompleteRouted(latent);
        summed = true;
      }
      Put(step);
    }
    if (!summed) CompleteRouted(latent);
    if (!shared_) return;
    Move(K::kReduceScatter, kShared, rows_ - shared_->rows);
    AllReduce(kShared, shared_->owed - (rows_ - shared_->rows));
    AddShared();
  }

  void AddShared() {
    Put({.kind = K::kAdd, .dst = kRouted, .src = kShared});
    shared_.reset();
  }

  void CompleteRouted(bool latent) {
    const auto join = [&] {
      if (!latent && shared_ == routed_) AddShared();
    };
    const AxisSet scatter = rows_ - routed_.rows;
    join();
    if (c_.slice_sums) {
      AllReduce(kRouted, routed_.owed);
      Move(K::kSlice, kRouted, scatter);
      return;
    }
    Move(K::kReduceScatter, kRouted, scatter,
         "each rank keeps the rows it came with: fewer bytes than to complete them all");
    routed_ = {rows_, routed_.owed - scatter};
    join();
    const bool together = latent && shared_ == routed_ && !routed_.owed.empty();
    AllReduce(kRouted, routed_.owed, together ? "both travel in one message" : "",
              together ? kShared : kCount);
    if (together) shared_->owed = {};
    routed_.owed = {};
    join();
  }

  const Choice& c_;
  const Situation& s_;
  const ParallelMesh& p_;
  const Mesh& mesh_;
  AxisSet rows_;  // of x in the feed-forward part
  Held routed_;
  std::optional<Held> shared_;  // computed and not yet added
  std::vector<Step> steps_;
};

// Subsets of an axis set, the full one first.
std::vector<AxisSet> Subsets(AxisSet set) {
  std::vector<AxisSet> subsets = {set};
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    if (!set.Has(axis)) continue;
    for (size_t i = 0, n = subsets.size(); i < n; ++i) {
      subsets.push_back(subsets[i] - AxisSet::Single(axis));
    }
  }
  return subsets;
}

}  // namespace

AxisSet Gathered(const Choice& choice, const Situation& situation) {
  const ParallelMesh& p = situation.parallel;
  if (!situation.program.route) return {};
  const AxisSet rows = p.attn_dp | choice.scatter;
  return rows & (situation.contract ? p.moe_tp : p.moe_ep | p.moe_tp);
}

std::vector<Choice> Choices(const Situation& situation, std::span<const RunnerTerms> runners) {
  const ParallelMesh& p = situation.parallel;
  std::vector<Choice> choices;
  const auto add = [&](Choice choice) {
    choices.push_back(choice);
    if (Gathered(choice, situation).empty()) return;
    choice.slice_sums = true;
    choices.push_back(choice);
    if (!situation.program.latent_down) return;
    choice.gather_latent = true;
    choices.push_back(choice);
    choice.slice_sums = false;
    choices.push_back(choice);
  };
  if (!situation.contract) {
    add({});
    return choices;
  }
  for (AxisSet scatter : Subsets(p.attn_tp & p.moe_ep)) {
    if (situation.contract->shape == RowShape::kFused) {
      add({.scatter = scatter});
      continue;
    }
    for (int permutes : {0, 2}) {
      for (const RunnerTerms& runner : runners) {
        const auto epilogue = EpilogueFor(*situation.contract, runner);
        if (!epilogue || epilogue->permutes != permutes) continue;
        add({.scatter = scatter, .runner = runner});
      }
    }
  }
  return choices;
}

std::string DescribeCut(const LayerCut& cut, const Mesh& mesh) {
  if (cut.shared != SharedPlacement::kNone) {
    return fmt::format("shared expert {}{}", ToString(cut.shared),
                       cut.shared_width.empty() ? "" : " over " + mesh.Names(cut.shared_width));
  }
  if (cut.slots > 0) return "";
  return cut.dense_width.empty() ? "MLP whole on every rank"
                                 : "MLP over " + mesh.Names(cut.dense_width);
}

std::string Describe(const Choice& choice, const Situation& situation) {
  const Mesh& mesh = situation.parallel.mesh;
  std::vector<std::string> parts;
  if (situation.contract && !(situation.parallel.attn_tp & situation.parallel.moe_ep).empty()) {
    parts.push_back(choice.scatter.empty() ? "all rows on every rank of attn_tp"
                                           : "rows scattered over " + mesh.Names(choice.scatter));
  }
  if (choice.runner) parts.push_back("runner " + choice.runner->name);
  if (!Gathered(choice, situation).empty()) {
    parts.push_back(choice.slice_sums ? "sums all-reduced, then sliced" : "sums reduce-scattered");
    if (situation.program.latent_down) {
      parts.push_back(choice.gather_latent ? "latent rows gathered" : "hidden rows gathered");
    }
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<Step> Compose(const Choice& choice, const Situation& situation) {
  return Composer(choice, situation).Run();
}

}  // namespace signalbox::planning
