// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/one_rank.h"

namespace signalbox {

LayerPlan OneRankPlan(const LayerShape& shape) {
  LayerPlan plan{.kind = shape.kind};
  const auto step = [&](StepKind kind, Reg dst, Reg src) {
    plan.steps.push_back({.kind = kind, .dst = dst, .src = src});
  };
  // What a half of the layer reads.
  const auto read = [&](NormRole role) {
    if (shape.mixes) {
      step(StepKind::kMix, Reg::kNormed, Reg::kResidual);
      plan.steps.back().norm = role;
    }
    if (shape.snapshot && role == NormRole::kMixerInput) {
      step(StepKind::kSnapshot, Reg::kBank, Reg::kResidual);
    }
    step(StepKind::kNorm, Reg::kNormed, shape.mixes ? Reg::kNormed : Reg::kResidual);
    plan.steps.back().norm = role;
  };
  read(NormRole::kMixerInput);
  step(StepKind::kMixer, Reg::kMixed, Reg::kNormed);
  step(StepKind::kAdd, Reg::kResidual, Reg::kMixed);
  read(NormRole::kFeedForwardInput);
  if (shape.moe) {
    if (shape.latent) step(StepKind::kLatentDown, Reg::kLatent, Reg::kNormed);
    step(StepKind::kRoute, Reg::kRouting, Reg::kNormed);
    step(StepKind::kExperts, Reg::kRouted, shape.latent ? Reg::kLatent : Reg::kNormed);
    if (shape.routed_scale != Rational{}) {
      plan.steps.push_back(
          {.kind = StepKind::kScale, .dst = Reg::kRouted, .coefficient = shape.routed_scale});
    }
    if (shape.latent_norm) {
      step(StepKind::kNorm, Reg::kRouted, Reg::kRouted);
      plan.steps.back().norm = NormRole::kLatent;
    }
    if (shape.latent) step(StepKind::kLatentUp, Reg::kRouted, Reg::kRouted);
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
