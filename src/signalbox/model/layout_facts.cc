// SPDX-License-Identifier: Apache-2.0
#include "signalbox/model/layout_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "signalbox/plan/one_rank.h"

namespace signalbox {
namespace {

WidthFormat FormatOf(const MatrixView& m) {
  const int64_t block = m.format == WeightFormat::kMxfp4 ? kMxBlock : 1;
  return {.name = std::string(ToString(m.format)), .block = block};
}

int64_t BytesOf(const LayerWeights& w, std::initializer_list<Role> roles) {
  int64_t bytes = 0;
  for (Role role : roles) {
    if (w.has(role)) bytes += w.matrix(role).bytes();
  }
  return bytes;
}

constexpr auto kFloat = static_cast<int64_t>(sizeof(float));  // states are kept in float

struct DescribeMixer {
  LayerKindFacts* kind;
  DType kv_dtype;

  void operator()(const AttentionFacts& a) const {
    kind->heads = {{"heads", a.heads}, {"kv heads", a.kv_heads, /*may_repeat=*/true}};
    kind->bytes.cache_per_token = 2 * a.kv_heads * a.head_dim * ByteSize(kv_dtype);
  }
  void operator()(const LatentAttentionFacts& a) const {
    kind->heads = {{"heads", a.heads}, {"latents", 1, /*may_repeat=*/true}};
    kind->bytes.cache_per_token = a.cached() * ByteSize(kv_dtype);
  }
  void operator()(const DeltaNetFacts& d) const {
    kind->heads = {{"value heads", d.value_heads}};
    // Without key heads of its own a value head needs none beside it.
    if (d.key_heads < d.value_heads) {
      kind->heads.push_back({"key heads", d.key_heads, /*may_repeat=*/!d.grouped});
    }
    const int64_t tail = (d.conv_kernel - 1) * kFloat;  // of a channel of the convolution
    kind->bytes.cache_per_sequence =
        tail * d.value_width() + d.value_heads * d.key_dim * d.value_dim * kFloat;
    kind->bytes.cache_per_sequence_repeated = tail * 2 * d.key_width();
  }
};

// The model's routed scaling factor as an exact fraction.
Rational ScaleOf(const MoeFacts& moe) {
  return Rational::Parse(fmt::format("{:.6f}", moe.routed_scale)).value_or(Rational{});
}

LayerKindFacts DescribeLayer(const ModelFacts& facts, const LayerFacts& layer,
                             const LayerWeights& w, DType kv_dtype) {
  LayerKindFacts kind{.layers = 1};
  LayerShape shape{.mixes = facts.mixes, .snapshot = layer.snapshot};
  kind.kind = MixerName(layer);
  std::visit(DescribeMixer{&kind, kv_dtype}, layer.mixer);
  kind.bytes.mixer = BytesOf(
      w, {Role::kQuery, Role::kKey, Role::kValue, Role::kKeyValue, Role::kOutGate, Role::kOut,
          Role::kDeltaQuery, Role::kDeltaKey, Role::kDeltaValue, Role::kDeltaGate, Role::kDeltaBeta,
          Role::kDeltaDecay, Role::kDeltaGrouped, Role::kDeltaGroupedRates, Role::kDeltaOut});
  kind.bytes.whole = BytesOf(w, {Role::kQueryLatent, Role::kKeyLatent, Role::kDeltaDecayRank});
  if (layer.is_moe()) {
    const MoeFacts& m = std::get<MoeFacts>(layer.ffn);
    shape.moe = true;
    shape.shared = m.shared_inner > 0;
    shape.gated = w.has(Role::kSharedScore);
    shape.latent = m.latent > 0;
    shape.latent_norm = m.latent_norm;
    shape.routed_scale = ScaleOf(m);
    kind.latent = m.latent;
    // The strictest block of all experts decides where a width may be cut.
    WidthFormat format = FormatOf(w.experts.front().down);
    for (const ExpertWeights& e : w.experts) {
      kind.bytes.experts += e.gate.bytes() + e.up.bytes() + e.down.bytes();
      if (FormatOf(e.down).block > format.block) format = FormatOf(e.down);
    }
    kind.moe =
        MoeLayout{.experts = m.experts, .top_k = m.top_k, .inner = m.inner, .format = format};
    if (shape.shared) {
      kind.shared =
          MlpLayout{.inner = m.shared_inner, .format = FormatOf(w.matrix(Role::kSharedDown))};
    }
    kind.bytes.shared = BytesOf(w, {Role::kSharedGate, Role::kSharedUp, Role::kSharedDown});
    kind.bytes.whole +=
        BytesOf(w, {Role::kRouter, Role::kSharedScore, Role::kLatentDown, Role::kLatentUp});
    kind.kind += fmt::format(" + {}{} experts{}", shape.latent ? "latent " : "", format.name,
                             shape.shared ? " + shared expert" : "");
  } else {
    const DenseFacts& d = std::get<DenseFacts>(layer.ffn);
    kind.dense = MlpLayout{.inner = d.inner, .format = FormatOf(w.matrix(Role::kDenseDown))};
    kind.bytes.dense = BytesOf(w, {Role::kDenseGate, Role::kDenseUp, Role::kDenseDown});
    kind.kind += " + dense";
  }
  if (layer.snapshot) kind.kind += ", snapshot";
  shape.kind = kind.kind;
  kind.program = OneRankPlan(shape).steps;
  return kind;
}

}  // namespace

ModelLayout DescribeLayout(const ModelFacts& facts, const ModelWeights& whole, DType kv_dtype) {
  ModelLayout layout;
  layout.facts.hidden = facts.hidden;
  layout.facts.trunk_bytes = BytesOf(whole.trunk, {Role::kEmbedding});
  if (!facts.tied_embeddings) layout.facts.trunk_bytes += BytesOf(whole.trunk, {Role::kHead});
  if (whole.mtp) layout.facts.trunk_bytes += BytesOf(whole.mtp->module, {Role::kMtpProject});
  const auto add = [&](const LayerFacts& layer, const LayerWeights& w) {
    LayerKindFacts kind = DescribeLayer(facts, layer, w, kv_dtype);
    auto& kinds = layout.facts.kinds;
    const auto it = std::find_if(kinds.begin(), kinds.end(),
                                 [&](const LayerKindFacts& k) { return k.kind == kind.kind; });
    layout.kind_of_layer.push_back(static_cast<size_t>(it - kinds.begin()));
    if (it == kinds.end()) {
      kinds.push_back(std::move(kind));
    } else {
      ++it->layers;
    }
  };
  for (size_t l = 0; l < facts.layers.size(); ++l) add(facts.layers[l], whole.layers[l]);
  if (whole.mtp) add(*facts.mtp, whole.mtp->layer);
  return layout;
}

}  // namespace signalbox
