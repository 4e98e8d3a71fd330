// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/one_rank.h"

namespace signalbox {

LayerPlan OneRankPlan(const LayerShape& shape) {
  LayerPlan plan{.kind = shape.kind};
  const auto step = [&](StepKind kind, Reg dst, Reg src) {
    plan.steps.push_back({.kind = kind, .dst = dst, .src = src});
  };
  step(StepKind::kNorm, Reg::kNormed, Reg::kResidual);
  step(StepKind::kMixer, Reg::kMixed, Reg::kNormed);
  step(StepKind::kAdd, Reg::kResidual, Reg::kMixed);
  step(StepKind::kNorm, Reg::kNormed, Reg::kResidual);
  plan.steps.back().norm = NormRole::kFeedForwardInput;
  if (shape.moe) {
    step(StepKind::kRoute, Reg::kRouting, Reg::kNormed);
    step(StepKind::kExperts, Reg::kRouted, Reg::kNormed);
    if (shape.shared) {
      step(StepKind::kShared, Reg::kShared, Reg::kNormed);
      plan.steps.back().gated = shape.gated;
      step(StepKind::kAdd, Reg::kRouted, Reg::kShared);
    }
  } else {
    step(StepKind::kMlp, Reg::kRouted, Reg::kNormed);
  }
  step(StepKind::kAdd, Reg::kResidual, Reg::kRouted);
  return plan;
}

}  // namespace signalbox
