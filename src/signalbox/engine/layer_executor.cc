// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/layer_executor.h"

#include <algorithm>
#include <string>

#include "signalbox/base/check.h"
#include "signalbox/moe/expert_runner.h"

namespace signalbox {

LayerExecutor::Register& LayerExecutor::Make(Reg reg, AxisSet axes, int64_t width) {
  Register r{.width = width, .axes = axes, .rows = world_.rows->RowsOf(world_.rank, axes)};
  r.data = context_.scratch.Take(r.floats());
  At(reg) = std::move(r);
  return At(reg);
}

LayerExecutor::Register& LayerExecutor::MakeLike(Reg reg, const Register& like, int64_t width) {
  Register r{.width = width, .axes = like.axes, .rows = like.rows};
  r.data = context_.scratch.Take(r.floats());
  At(reg) = std::move(r);
  return At(reg);
}

Status LayerExecutor::Run(const LayerPlan& plan, const LayerRun& run, float* x) {
  Scratch::Scope scope(context_.scratch);
  for (Register& r : registers_) r = Register();
  Register& residual = At(Reg::kResidual);
  residual = {.data = x,
              .width = context_.hidden,
              .axes = world_.rows_in,
              .rows = world_.rows->RowsOf(world_.rank, world_.rows_in)};
  const bool again = std::any_of(plan.steps.begin(), plan.steps.end(),
                                 [](const Step& s) { return s.kind == StepKind::kInput; });
  if (again) {
    input_ = residual;
    input_.data = context_.scratch.Take(residual.floats());
    std::copy_n(x, residual.floats(), input_.data);
  }
  const int64_t rows_in = residual.count();
  if (run.bank != nullptr) {
    input_bank_ = residual;
    input_bank_.data = run.bank->rows;
    input_bank_.width = run.bank->snapshots * context_.hidden;
    At(Reg::kBank) = input_bank_;
  }
  if (addends_ != nullptr) residual.addends = {CopyOf(addend::kResidual, residual, x)};
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (world_.comm != nullptr)
      world_.comm->set_step(run.layer * int64_t{kMaxSteps} + static_cast<int64_t>(i));
    const Status status = addends_ == nullptr ? Execute(step, run) : ExecuteWithAddends(step, run);
    if (!status.ok()) {
      return status.At("layer " + std::to_string(run.layer) + ", step " +
                       step.ToString(*world_.mesh));
    }
    if (observer_ == nullptr || !*observer_) continue;
    const Register& dst = At(step.dst);
    (*observer_)({.layer = run.layer,
                  .step = &step,
                  .data = dst.data,
                  .ids = dst.ids,
                  .rows = dst.count(),
                  .width = dst.width,
                  .numbers = dst.rows});
  }
  const Register& result = At(Reg::kResidual);
  SB_CHECK(result.count() == rows_in)
      << "a layer leaves other rows than it takes: " << result.count();
  if (result.data != x) std::copy_n(result.data, result.floats(), x);
  for (const Addend& a : result.addends)
    addends_->push_back({a.name, {a.data, a.data + result.floats()}});
  if (run.bank == nullptr) return OkStatus();
  const Register& bank = At(Reg::kBank);
  if (bank.data != run.bank->rows) std::copy_n(bank.data, bank.floats(), run.bank->rows);
  run.bank->snapshots = bank.width / context_.hidden;
  return OkStatus();
}

Status LayerExecutor::Execute(const Step& step, const LayerRun& run) {
  return IsLayoutStep(step.kind) ? LayoutStep(step, run) : ModelStep(step, run);
}

Status LayerExecutor::ModelStep(const Step& step, const LayerRun& run) {
  const LayerWeights& w = *run.weights;
  const Register src = At(step.source());  // a copy: dst may be the same register
  switch (step.kind) {
    case StepKind::kNorm:
      Norm(step, run);
      return OkStatus();
    case StepKind::kMix:
      Mix(step, run);
      return OkStatus();
    case StepKind::kSnapshot:
      Snapshot(step);
      return OkStatus();
    case StepKind::kLatentDown:
    case StepKind::kLatentUp: {
      const MatrixView& m =
          w.matrix(step.kind == StepKind::kLatentDown ? Role::kLatentDown : Role::kLatentUp);
      RunProjection(context_, m, src.data, src.count(), MakeLike(step.dst, src, m.rows).data);
      return OkStatus();
    }
    case StepKind::kMixer:
      Mixer(step, run);
      return OkStatus();
    case StepKind::kRoute:
      Route(step, run);
      return OkStatus();
    case StepKind::kExperts:
      CountPairs(run);
      Experts(step, run);
      return OkStatus();
    case StepKind::kRunExperts:
      return ExchangeStep(step, run);
    case StepKind::kAppendShared:
      AppendShared(step, run);
      return OkStatus();
    case StepKind::kShared:
      RunShared(context_, w, src.data, src.count(), MakeLike(step.dst, src, context_.hidden).data);
      return OkStatus();
    case StepKind::kMlp:
      RunMlp(context_, w, src.data, src.count(), MakeLike(step.dst, src, context_.hidden).data);
      return OkStatus();
    case StepKind::kAdd:
      SB_CHECK(src.floats() == At(step.dst).floats()) << "adds values of different rows";
      context_.ops.AddScaled(src.data, 1.f, src.floats(), At(step.dst).data);
      return OkStatus();
    case StepKind::kScale: {
      // x += (c - 1) x: exact for the powers of two, one rounding more than x * c for others.
      const float factor =
          static_cast<float>(step.coefficient.num) / static_cast<float>(step.coefficient.den);
      Register& dst = At(step.dst);
      context_.ops.AddScaled(dst.data, factor - 1.f, dst.floats(), dst.data);
      return OkStatus();
    }
    default:
      return Internal(
          {.what = "the engine has no such operation", .found = std::string(ToString(step.kind))});
  }
}

void LayerExecutor::Norm(const Step& step, const LayerRun& run) {
  static constexpr Role kRoles[] = {Role::kInputNorm, Role::kFfnNorm, Role::kLatentNorm};
  const Register src = At(step.source());
  RunNorm(context_, run.weights->vector(kRoles[static_cast<size_t>(step.norm)]), src.data,
          src.count(), MakeLike(step.dst, src, src.width).data);
}

void LayerExecutor::Mix(const Step& step, const LayerRun& run) {
  const bool mixer = step.norm == NormRole::kMixerInput;
  const Register src = At(step.source());
  const Register& bank = At(Reg::kBank);
  RunMix(context_, run.weights->vector(mixer ? Role::kMixerMixNorm : Role::kFfnMixNorm),
         run.weights->vector(mixer ? Role::kMixerMixQuery : Role::kFfnMixQuery),
         {.rows = bank.data, .snapshots = bank.width / context_.hidden}, src.data, src.count(),
         MakeLike(step.dst, src, context_.hidden).data);
}

void LayerExecutor::Snapshot(const Step& step) {
  Register& src = At(step.source());
  const Register old = At(Reg::kBank);
  const Register& bank = MakeLike(Reg::kBank, old, old.width + src.width);
  for (int64_t i = 0; i < bank.count(); ++i) {
    std::copy_n(old.data + i * old.width, old.width, bank.data + i * bank.width);
    std::copy_n(src.data + i * src.width, src.width, bank.data + i * bank.width + old.width);
  }
  std::fill_n(src.data, src.floats(), 0.f);
}

void LayerExecutor::Mixer(const Step& step, const LayerRun& run) {
  const Register& src = At(step.source());
  const float* y = src.data;
  Register& dst = MakeLike(step.dst, src, context_.hidden);
  const int64_t tokens = run.batch.tokens;
  const auto& mixer = run.facts->mixer;
  if (const auto* attention = std::get_if<AttentionFacts>(&mixer)) {
    RunAttention(context_, *attention, *run.rope, *run.weights, run.batch, run.attention, y,
                 dst.data);
  } else if (const auto* latent = std::get_if<LatentAttentionFacts>(&mixer)) {
    RunLatentAttention(context_, *latent, *run.weights, run.batch, run.attention, y, dst.data);
  } else {
    RunDeltaNet(context_, std::get<DeltaNetFacts>(mixer), *run.weights, run.batch, run.delta, y,
                dst.data);
  }
  // Padding rows lie behind the tokens; nothing has written them.
  std::fill(dst.data + tokens * context_.hidden, dst.data + dst.floats(), 0.f);
}

void LayerExecutor::Route(const Step& step, const LayerRun& run) {
  const MoeFacts& moe = std::get<MoeFacts>(run.facts->ffn);
  const Register& src = At(step.source());
  const float* y = src.data;
  Register& dst = MakeLike(step.dst, src, moe.top_k);
  dst.ids = context_.scratch.TakeInts(dst.floats());
  dst.space = IdSpace::kLogical;
  RunRouter(context_, moe, *run.weights, y, dst.count(), dst.ids, dst.data);
  const float factor =
      static_cast<float>(step.coefficient.num) / static_cast<float>(step.coefficient.den);
  if (factor != 1.f) context_.ops.AddScaled(dst.data, factor - 1.f, dst.floats(), dst.data);
}

// The place of an id among this rank's slots, or -1. A fused shared expert's copy lies behind the
// routed slots.
int32_t LayerExecutor::LocalSlot(int32_t id, IdSpace space, int position,
                                 const LayerRun& run) const {
  if (id < 0) return -1;
  const LayerCut& cut = *run.cut;
  if (cut.shared == SharedPlacement::kFusedGlobal && id == cut.slots)
    return static_cast<int32_t>(cut.slots_per_rank);
  // Without replicas an expert has one slot, and needs no choice.
  const int32_t slot =
      space == IdSpace::kLogical ? run.placement->SlotsOf(ExpertId(id)).front().value() : id;
  const int64_t place = slot - position * cut.slots_per_rank;
  return place >= 0 && place < cut.slots_per_rank ? static_cast<int32_t>(place) : -1;
}

// What the router asked for, before rows leave.
void LayerExecutor::CountPairs(const LayerRun& run) {
  const Register& routing = At(Reg::kRouting);
  const AxisSet copies = world_.mesh->all() - routing.axes;  // along which the rows are the same
  if (world_.mesh->Position(world_.rank, copies) != 0) return;
  const LayerCut& cut = *run.cut;
  const bool counts_shared =
      routing.space == IdSpace::kGlobal && cut.shared == SharedPlacement::kFusedOwn;
  for (int64_t i = 0; i < routing.floats(); ++i) {
    int64_t slot = routing.ids[i];
    const int64_t row = routing.rows[static_cast<size_t>(i / routing.width)];
    if (slot < 0 || world_.rows->IsPadding(row)) continue;
    if (counts_shared) {
      const int64_t place = slot % (cut.slots_per_rank + 1);
      slot = place == cut.slots_per_rank ? cut.slots : slot - slot / (cut.slots_per_rank + 1);
    }
    // Behind the routed slots there is the fused shared expert, which computes every row.
    if (slot < cut.slots) ++run.pairs[static_cast<size_t>(slot)];
  }
}

// Experts held here, over all rows; other ranks add theirs.
void LayerExecutor::Experts(const Step& step, const LayerRun& run) {
  const Register& src = At(step.source());
  const Register& routing = At(Reg::kRouting);
  const int position = world_.mesh->Position(world_.rank, run.cut->experts);
  const float* y = src.data;
  int32_t* local = context_.scratch.TakeInts(routing.floats());  // [rows, lanes]
  for (int64_t i = 0; i < routing.floats(); ++i)
    local[i] = LocalSlot(routing.ids[i], routing.space, position, run);
  if (const int offset = world_.faults.id_offset; offset != 0) {
    const auto slots = static_cast<int32_t>(run.weights->experts.size());
    for (int64_t i = 0; i < routing.floats(); ++i)
      if (local[i] >= 0) local[i] = (local[i] + offset) % slots;
  }
  Register& dst = MakeLike(step.dst, src, src.width);
  RunFlatExperts(context_.ops, context_.scratch, run.weights->experts,
                 {.x = y,
                  .hidden = dst.width,
                  .rows = dst.count(),
                  .ids = local,
                  .weights = routing.data,
                  .top_k = routing.width,
                  .activation = context_.activation,
                  .precision = world_.precision},
                 dst.data);
}

// One more lane for every row: the shared expert as if the router had chosen it.
void LayerExecutor::AppendShared(const Step& step, const LayerRun& run) {
  const Register old = At(Reg::kRouting);
  const Register& y = At(Reg::kNormed);
  const int64_t lanes = old.width + 1;
  Register& dst = MakeLike(Reg::kRouting, old, lanes);
  dst.ids = context_.scratch.TakeInts(dst.floats());
  dst.space = old.space;
  const LayerCut& cut = *run.cut;
  const int position = world_.mesh->Position(world_.rank, cut.experts);
  const int64_t own = cut.shared == SharedPlacement::kFusedGlobal
                          ? cut.slots
                          : (position + 1) * (cut.slots_per_rank + 1) - 1;
  const float weight = static_cast<float>(step.coefficient.num) /
                       static_cast<float>(step.coefficient.den) /
                       static_cast<float>(world_.mesh->Size(step.axes));
  float* gate = context_.scratch.Take(dst.count());  // [rows, 1]
  std::fill_n(gate, dst.count(), weight);
  if (step.gated) {
    float* score = context_.scratch.Take(dst.count());
    context_.ops.MatMul({.x = y.data,
                         .x_stride = context_.hidden,
                         .tokens = dst.count(),
                         .w = run.weights->matrix(Role::kSharedScore),
                         .y = score,
                         .y_stride = 1});
    context_.ops.SigmoidMul(gate, 1, score, 1, 1, dst.count(), 1);
  }
  for (int64_t i = 0; i < dst.count(); ++i) {
    std::copy_n(old.ids + i * old.width, old.width, dst.ids + i * lanes);
    std::copy_n(old.data + i * old.width, old.width, dst.data + i * lanes);
    const bool padding = world_.rows->IsPadding(dst.rows[static_cast<size_t>(i)]);
    dst.ids[(i + 1) * lanes - 1] = padding ? -1 : static_cast<int32_t>(own);
    dst.data[(i + 1) * lanes - 1] = padding ? 0.f : gate[i];
  }
}

}  // namespace signalbox
