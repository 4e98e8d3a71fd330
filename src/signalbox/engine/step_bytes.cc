// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/step_bytes.h"

#include <cmath>

namespace signalbox {
namespace {

// Of one rank, without the draft layer: it has no part in a step of the target.
CacheShape TargetShape(const RankRunner& rank) {
  CacheShape shape = rank.cache().shape();
  if (!rank.has_draft()) return shape;
  if (rank.facts().mtp->is_attention()) {
    shape.attention.pop_back();
  } else {
    shape.linear.pop_back();
  }
  return shape;
}

double DenseBytes(const ModelWeights& w) {
  int64_t bytes = w.trunk.bytes() - w.trunk.matrix(Role::kEmbedding).bytes();
  for (const LayerWeights& layer : w.layers) bytes += layer.bytes();
  return static_cast<double>(bytes);
}

// Copies of an expert share its tokens; they count once.
double ExpertBytes(const RankRunner& rank, const PlannedModel& planned, int64_t tokens) {
  double all = 0;
  for (size_t l = 0; l < rank.facts().layers.size(); ++l) {
    const auto* const moe = std::get_if<MoeFacts>(&rank.facts().layers[l].ffn);
    if (moe == nullptr) continue;
    const LayerCut& cut = planned.layout.kinds[planned.model.kind_of_layer[l]].cut;
    int64_t bytes = 0;
    // A fused shared expert lies behind the routed slots and counts as dense.
    for (int64_t s = 0; s < cut.slots_per_rank; ++s) {
      const ExpertWeights& e = rank.weights().layers[l].experts[static_cast<size_t>(s)];
      bytes += e.gate.bytes() + e.up.bytes() + e.down.bytes();
    }
    const double copies = static_cast<double>(cut.slots) / static_cast<double>(moe->experts);
    all +=
        static_cast<double>(bytes) / copies * ShareOfExpertsHit(moe->experts, moe->top_k, tokens);
  }
  return all;
}

}  // namespace

StepBytes& StepBytes::operator+=(const StepBytes& other) {
  dense += other.dense;
  experts += other.experts;
  kv += other.kv;
  state += other.state;
  return *this;
}

double ShareOfExpertsHit(int64_t experts, int64_t top_k, int64_t tokens) {
  const double missed = 1 - static_cast<double>(top_k) / static_cast<double>(experts);
  return 1 - std::pow(missed, static_cast<double>(tokens));
}

StepBytes BytesOfStep(const Engine& engine, const StepLoad& load) {
  const LayoutPlan& layout = engine.planned().layout;
  const double parts = layout.mesh().Size(layout.parallel.attn_dp);
  StepBytes here;
  for (const RankRunner* rank : engine.ranks()) {
    const CacheShape shape = TargetShape(*rank);
    here.dense += DenseBytes(rank->weights());
    here.experts += ExpertBytes(*rank, engine.planned(), load.tokens);
    here.kv += static_cast<double>(shape.bytes_per_token() * load.kv_tokens) / parts;
    here.state += static_cast<double>(shape.bytes_per_sequence() * load.sequences) / parts;
  }
  // Ranks hold equal shares.
  const double more =
      static_cast<double>(layout.mesh().ranks()) / static_cast<double>(engine.ranks().size());
  return {here.dense * more, here.experts * more, here.kv * more, here.state * more};
}

}  // namespace signalbox
