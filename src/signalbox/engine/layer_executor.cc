// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/layer_executor.h"

#include <string>

#include "signalbox/base/check.h"
#include "signalbox/moe/expert_runner.h"

namespace signalbox {

float* LayerExecutor::Buffer(Reg reg, Registers& regs, int64_t floats) {
  if (regs[reg] == nullptr) regs[reg] = context_.scratch.Take(floats);
  return regs[reg];
}

Status LayerExecutor::Run(const LayerPlan& plan, const LayerRun& run, float* x) {
  Scratch::Scope scope(context_.scratch);
  Registers regs;
  regs[Reg::kResidual] = x;
  for (const Step& step : plan.steps) {
    SB_RETURN_IF_ERROR(Execute(step, run, regs));
    if (observer_ == nullptr || !*observer_) continue;
    const bool routing = step.dst == Reg::kRouting;
    (*observer_)({.layer = run.layer,
                  .step = &step,
                  .data = regs[step.dst],
                  .ids = routing ? regs.ids : nullptr,
                  .rows = run.batch.tokens,
                  .width = routing ? std::get<MoeFacts>(run.facts->ffn).top_k : context_.hidden});
  }
  return OkStatus();
}

Status LayerExecutor::Execute(const Step& step, const LayerRun& run, Registers& regs) {
  const int64_t tokens = run.batch.tokens;
  const int64_t floats = tokens * context_.hidden;
  const LayerWeights& w = *run.weights;
  switch (step.kind) {
    case StepKind::kNorm: {
      const Role role = step.norm == NormRole::kMixerInput ? Role::kInputNorm : Role::kFfnNorm;
      RunNorm(context_, w.vector(role), regs[step.src], tokens, Buffer(step.dst, regs, floats));
      return OkStatus();
    }
    case StepKind::kMixer: {
      float* out = Buffer(step.dst, regs, floats);
      if (run.facts->is_attention()) {
        RunAttention(context_, std::get<AttentionFacts>(run.facts->mixer), *run.rope, w, run.batch,
                     run.attention, regs[step.src], out);
      } else {
        RunDeltaNet(context_, std::get<DeltaNetFacts>(run.facts->mixer), w, run.batch, run.delta,
                    regs[step.src], out);
      }
      return OkStatus();
    }
    case StepKind::kRoute: {
      const MoeFacts& moe = std::get<MoeFacts>(run.facts->ffn);
      if (regs.ids == nullptr) regs.ids = context_.scratch.TakeInts(tokens * moe.top_k);
      RunRouter(context_, moe, w, regs[step.src], tokens, regs.ids,
                Buffer(step.dst, regs, tokens * moe.top_k));
      return OkStatus();
    }
    case StepKind::kExperts:
      RunFlatExperts(context_.ops, context_.scratch, w.experts,
                     {.x = regs[step.src],
                      .hidden = context_.hidden,
                      .rows = tokens,
                      .ids = regs.ids,
                      .weights = regs[Reg::kRouting],
                      .top_k = std::get<MoeFacts>(run.facts->ffn).top_k},
                     Buffer(step.dst, regs, floats));
      return OkStatus();
    case StepKind::kShared:
      RunShared(context_, w, regs[step.src], tokens, Buffer(step.dst, regs, floats));
      return OkStatus();
    case StepKind::kMlp:
      RunMlp(context_, w, regs[step.src], tokens, Buffer(step.dst, regs, floats));
      return OkStatus();
    case StepKind::kAdd:
      context_.ops.AddScaled(regs[step.src], 1.f, floats, regs[step.dst]);
      return OkStatus();
    default:
      return Internal({.what = "a plan for one rank has a layout step",
                       .found = std::string(ToString(step.kind))});
  }
}

}  // namespace signalbox
