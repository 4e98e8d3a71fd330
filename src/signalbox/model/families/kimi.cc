// SPDX-License-Identifier: Apache-2.0
//
// Kimi-K3: Kimi Delta Attention and latent attention without rotation, block attention residuals,
// experts in a latent space. Facts and weight map only.
#include <algorithm>

#include "signalbox/base/text_util.h"
#include "signalbox/model/config_reader.h"
#include "signalbox/model/families/rules.h"
#include "signalbox/model/family.h"

namespace signalbox {
namespace {

using Kind = TensorRule::Kind;
using weight_rules::Matrix;
using weight_rules::MatrixByCols;
using weight_rules::Vector;

// ----------------------------------------------------------------------------------------------
// facts

// The value that `key` must have; the only one that a release uses.
void ExpectText(ConfigReader& c, const std::string& key, const std::string& value) {
  const std::string found = c.StringOr(key, value);
  if (found != value) c.Fail(key, Quoted(found), Quoted(value));
}
void ExpectFlag(ConfigReader& c, const std::string& key, bool value) {
  const auto text = [](bool b) { return std::string(b ? "true" : "false"); };
  if (c.BoolOr(key, value) != value) c.Fail(key, text(!value), text(value));
}
void ExpectCount(ConfigReader& c, const std::string& key, int64_t value) {
  const int64_t found = c.CountOr(key, value);
  if (found != value) c.Fail(key, std::to_string(found), std::to_string(value));
}

Activation ParseActivation(ConfigReader& c) {
  ExpectText(c, "hidden_act", "situ");
  const auto bound = [&](const std::string& key) {
    const double value = c.Number(key);
    if (!(value > 0)) c.Fail(key, std::to_string(value), "a positive number");
    return static_cast<float>(value);
  };
  return {.kind = Activation::Kind::kSitu,
          .gate_bound = bound("activation_situ_beta"),
          .up_bound = bound("activation_situ_linear_beta")};
}

DeltaNetFacts ParseDelta(ConfigReader& c) {
  ConfigReader linear = c.Object("linear_attn_config");
  DeltaNetFacts d;
  d.key_heads = d.value_heads = linear.Positive("num_heads");
  d.key_dim = d.value_dim = d.decay_rank = linear.Positive("head_dim");
  d.conv_kernel = linear.PositiveOr("short_conv_kernel_size", 4);
  d.decay_bound = linear.Number("gate_lower_bound");
  d.gate = Gate::kSigmoid;
  if (!(d.decay_bound < 0)) {
    linear.Fail("gate_lower_bound", std::to_string(d.decay_bound), "a negative number");
  }
  ExpectFlag(linear, "use_full_rank_gate", true);
  if (!linear.status().ok()) c.Adopt(linear.status());
  return d;
}

LatentAttentionFacts ParseLatentAttention(ConfigReader& c) {
  ExpectFlag(c, "mla_use_nope", true);
  ExpectFlag(c, "mla_use_output_gate", true);
  LatentAttentionFacts a;
  a.heads = c.Positive("num_attention_heads");
  a.query_rank = c.Positive("q_lora_rank");
  a.latent = c.Positive("kv_lora_rank");
  a.own_dim = c.Positive("qk_nope_head_dim");
  a.shared_dim = c.Positive("qk_rope_head_dim");
  a.value_dim = c.Positive("v_head_dim");
  // The released code constructs these two norms without the config's epsilon.
  a.norm_eps = 1e-6;
  return a;
}

MoeFacts ParseMoe(ConfigReader& c) {
  ExpectText(c, "moe_router_activation_func", "sigmoid");
  ExpectText(c, "topk_method", "noaux_tc");
  ExpectCount(c, "num_expert_group", 1);
  MoeFacts m;
  m.experts = c.Positive("num_experts");
  m.top_k = c.Positive("num_experts_per_token");
  m.inner = c.Positive("moe_intermediate_size");
  m.renormalise = c.BoolOr("moe_renormalize", true);
  m.shared_inner = c.CountOr("num_shared_experts", 0) * m.inner;
  m.scores = RouterScores::kSigmoid;
  m.selection_bias = true;
  m.latent = c.PositiveOr("routed_expert_hidden_size", 0);
  m.latent_norm = m.latent > 0 && c.BoolOr("latent_moe_use_norm", true);
  m.routed_scale = c.NumberOr("routed_scaling_factor", 1);
  if (m.top_k > m.experts) {
    c.Fail("num_experts_per_token", std::to_string(m.top_k),
           "at most num_experts " + std::to_string(m.experts));
  }
  return m;
}

// Which layers have latent attention; the config counts layers from one and names every layer once.
std::vector<bool> LatentLayers(ConfigReader& c, int64_t layers) {
  ConfigReader linear = c.Object("linear_attn_config");
  std::vector<int> kinds(static_cast<size_t>(layers), 0);  // bit 0: full, bit 1: linear
  for (const auto& [key, bit] : {std::pair{"full_attn_layers", 1}, std::pair{"kda_layers", 2}}) {
    for (const int64_t number : linear.Integers(key)) {
      if (number >= 1 && number <= layers) {
        kinds[static_cast<size_t>(number) - 1] |= bit;
      } else {
        linear.Fail(key, std::to_string(number), "numbers from 1 to " + std::to_string(layers));
      }
    }
  }
  std::vector<bool> full;
  for (size_t l = 0; l < kinds.size(); ++l) {
    full.push_back(kinds[l] == 1);
    if (kinds[l] == 1 || kinds[l] == 2) continue;
    linear.Fail(
        "full_attn_layers",
        "layer " + std::to_string(l + 1) + (kinds[l] == 0 ? " in neither list" : " in both"),
        "every layer either here or in kda_layers");
  }
  if (!linear.status().ok()) c.Adopt(linear.status());
  return full;
}

Result<ModelFacts> ParseK3(ConfigReader& c) {
  ModelFacts f;
  f.family = "kimi_k3";
  f.hidden = c.Positive("hidden_size");
  f.vocab = c.Positive("vocab_size");
  f.max_position = c.PositiveOr("max_position_embeddings", 32768);
  f.norm_eps = c.NumberOr("rms_norm_eps", 1e-5);
  f.tied_embeddings = c.BoolOr("tie_word_embeddings", false);
  f.activation = ParseActivation(c);
  f.mixes = true;
  ExpectCount(c, "num_nextn_predict_layers", 0);
  const DeltaNetFacts delta = ParseDelta(c);
  const LatentAttentionFacts attention = ParseLatentAttention(c);
  const MoeFacts moe = ParseMoe(c);
  const DenseFacts dense{.inner = c.Positive("intermediate_size")};
  const int64_t block = c.Positive("attn_res_block_size");
  const int64_t first_moe = c.CountOr("first_k_dense_replace", 0);
  const int64_t every = c.PositiveOr("moe_layer_freq", 1);
  const int64_t layers = c.LayerCount();
  SB_RETURN_IF_ERROR(c.status());
  const std::vector<bool> full = LatentLayers(c, layers);
  SB_RETURN_IF_ERROR(c.status());
  for (int64_t l = 0; l < layers; ++l) {
    LayerFacts layer{.mixer = delta, .ffn = moe, .snapshot = l % block == 0};
    if (full[static_cast<size_t>(l)]) layer.mixer = attention;
    if (l < first_moe || l % every != 0) layer.ffn = dense;
    f.layers.push_back(layer);
  }
  return f;
}

// ----------------------------------------------------------------------------------------------
// weight map

// Stored as a projection to one feature.
TensorRule MixQuery(std::string name, Role role, int64_t hidden) {
  return {
      .kind = Kind::kVector, .name = std::move(name), .parts = {{role, 1}}, .trailing = {hidden}};
}

void AddDelta(const DeltaNetFacts& d, int64_t hidden, std::vector<TensorRule>* rules) {
  const std::string p = "self_attn.";
  const int64_t width = d.value_width();
  const auto by_head = [&](const std::string& name, Role role, int64_t rows, int64_t cols) {
    rules->push_back(Matrix(p + name, role, rows, cols, Split::kHeads, d.value_heads));
  };
  by_head("q_proj", Role::kDeltaQuery, d.key_width(), hidden);
  by_head("k_proj", Role::kDeltaKey, d.key_width(), hidden);
  by_head("v_proj", Role::kDeltaValue, width, hidden);
  by_head("g_proj", Role::kDeltaGate, width, hidden);
  by_head("b_proj", Role::kDeltaBeta, d.value_heads, hidden);
  rules->push_back(Matrix(p + "f_a_proj", Role::kDeltaDecayRank, d.decay_rank, hidden));
  by_head("f_b_proj", Role::kDeltaDecay, d.key_width(), d.decay_rank);
  for (const auto& [name, channels] :
       {std::pair{"q", d.key_width()}, std::pair{"k", d.key_width()}, std::pair{"v", width}}) {
    TensorRule conv = Vector(p + name + "_conv1d.weight", Role::kDeltaConv, channels, Split::kHeads,
                             d.value_heads);
    conv.trailing = {1, d.conv_kernel};
    rules->push_back(std::move(conv));
  }
  // Stored in 128 entries whatever the number of heads.
  constexpr int64_t kStored = 128;
  TensorRule a_log =
      Vector(p + "A_log", Role::kDeltaALog, d.value_heads, Split::kHeads, d.value_heads);
  if (d.value_heads < kStored) a_log.parts.push_back({Role::kPadding, kStored - d.value_heads});
  rules->push_back(std::move(a_log));
  rules->push_back(
      Vector(p + "dt_bias", Role::kDeltaDtBias, d.key_width(), Split::kHeads, d.value_heads));
  rules->push_back(Vector(p + "o_norm.weight", Role::kDeltaNorm, d.value_dim));
  rules->push_back(
      MatrixByCols(p + "o_proj", Role::kDeltaOut, hidden, width, Split::kHeads, d.value_heads));
}

void AddLatentAttention(const LatentAttentionFacts& a, int64_t hidden,
                        std::vector<TensorRule>* rules) {
  const std::string p = "self_attn.";
  const auto by_head = [&](const std::string& name, Role role, int64_t dim, int64_t cols) {
    rules->push_back(Matrix(p + name, role, a.heads * dim, cols, Split::kHeads, a.heads));
  };
  rules->push_back(Matrix(p + "q_a_proj", Role::kQueryLatent, a.query_rank, hidden));
  rules->push_back(Vector(p + "q_a_layernorm.weight", Role::kQueryLatentNorm, a.query_rank));
  by_head("q_b_proj", Role::kQuery, a.query_dim(), a.query_rank);
  rules->push_back(Matrix(p + "kv_a_proj_with_mqa", Role::kKeyLatent, a.cached(), hidden));
  rules->push_back(Vector(p + "kv_a_layernorm.weight", Role::kKeyLatentNorm, a.latent));
  by_head("kv_b_proj", Role::kKeyValue, a.own_dim + a.value_dim, a.latent);
  by_head("g_proj", Role::kOutGate, a.value_dim, hidden);
  rules->push_back(MatrixByCols(p + "o_proj", Role::kOut, hidden, a.heads * a.value_dim,
                                Split::kHeads, a.heads));
}

void AddMoe(const MoeFacts& m, int64_t hidden, std::vector<TensorRule>* rules) {
  const std::string p = "block_sparse_moe.";
  const Split width = Split::kExpertWidth;
  const int64_t in = m.latent > 0 ? m.latent : hidden;
  rules->push_back(Matrix(p + "gate", Role::kRouter, m.experts, hidden));
  rules->push_back(Vector(p + "gate.e_score_correction_bias", Role::kRouterBias, m.experts));
  if (m.latent > 0) {
    rules->push_back(Matrix(p + "routed_expert_down_proj", Role::kLatentDown, m.latent, hidden));
    rules->push_back(Matrix(p + "routed_expert_up_proj", Role::kLatentUp, hidden, m.latent));
  }
  if (m.latent_norm) {
    rules->push_back(Vector(p + "routed_expert_norm.weight", Role::kLatentNorm, m.latent));
  }
  rules->push_back({.kind = Kind::kExperts,
                    .name = p + "experts.w13",
                    .parts = {{Role::kExpertGate, m.inner, width, m.inner, p + "experts.{}.w1"},
                              {Role::kExpertUp, m.inner, width, m.inner, p + "experts.{}.w3"}},
                    .other = in,
                    .experts = m.experts});
  rules->push_back({.kind = Kind::kExperts,
                    .name = p + "experts.w2",
                    .parts = {{Role::kExpertDown, m.inner, width, m.inner, p + "experts.{}.w2"}},
                    .axis = 1,
                    .other = in,
                    .experts = m.experts});
  if (m.shared_inner == 0) return;
  const Split shared = Split::kSharedWidth;
  const int64_t s = m.shared_inner;
  rules->push_back(Matrix(p + "shared_experts.gate_proj", Role::kSharedGate, s, hidden, shared, s));
  rules->push_back(Matrix(p + "shared_experts.up_proj", Role::kSharedUp, s, hidden, shared, s));
  rules->push_back(
      MatrixByCols(p + "shared_experts.down_proj", Role::kSharedDown, hidden, s, shared, s));
}

std::vector<TensorRule> K3Layer(const ModelFacts& f, const LayerFacts& layer) {
  std::vector<TensorRule> rules = {
      Vector("input_layernorm.weight", Role::kInputNorm, f.hidden),
      Vector("post_attention_layernorm.weight", Role::kFfnNorm, f.hidden),
      Vector("self_attention_res_norm.weight", Role::kMixerMixNorm, f.hidden),
      MixQuery("self_attention_res_proj.weight", Role::kMixerMixQuery, f.hidden),
      Vector("mlp_res_norm.weight", Role::kFfnMixNorm, f.hidden),
      MixQuery("mlp_res_proj.weight", Role::kFfnMixQuery, f.hidden)};
  if (layer.is_attention()) {
    AddLatentAttention(std::get<LatentAttentionFacts>(layer.mixer), f.hidden, &rules);
  } else {
    AddDelta(std::get<DeltaNetFacts>(layer.mixer), f.hidden, &rules);
  }
  if (layer.is_moe()) {
    AddMoe(std::get<MoeFacts>(layer.ffn), f.hidden, &rules);
  } else {
    weight_rules::AddDense(std::get<DenseFacts>(layer.ffn), f.hidden, &rules);
  }
  return rules;
}

std::vector<TensorRule> K3Trunk(const ModelFacts& f) {
  return {Vector("output_attn_res_norm.weight", Role::kOutputMixNorm, f.hidden),
          MixQuery("output_attn_res_proj.weight", Role::kOutputMixQuery, f.hidden)};
}

}  // namespace

std::vector<Family> KimiFamilies() {
  const FamilyFiles files = {.trunk_prefixes = {"language_model.model."},
                             .mtp_prefix = "",
                             .head_prefix = "language_model.",
                             .packed_suffix = ".weight_packed",
                             .skipped = {{"vision_tower.*", "vision tower: text only"},
                                         {"mm_projector.*", "vision projector: text only"}}};
  return {{"kimi_k3", {"kimi_k3"}, ParseK3, files, K3Layer, nullptr, K3Trunk}};
}

}  // namespace signalbox
