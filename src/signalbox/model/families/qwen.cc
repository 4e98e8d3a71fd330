// SPDX-License-Identifier: Apache-2.0
//
// Qwen MoE: Qwen2-MoE, Qwen3-MoE, Qwen3-Next and Qwen3.5-MoE. Facts and weight map only.
#include <algorithm>

#include <nlohmann/json.hpp>

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

// Newer configs keep RoPE under rope_parameters, older ones flat with an optional rope_scaling.
RopeFacts ParseRope(ConfigReader& c, int64_t head_dim, double default_fraction) {
  ConfigReader nested = c.Object("rope_parameters");
  ConfigReader scaling = nested.Has("rope_type") ? nested : c.Object("rope_scaling");
  RopeFacts rope;
  rope.theta = nested.NumberOr("rope_theta", c.NumberOr("rope_theta", 1e7));
  const double fraction = nested.NumberOr("partial_rotary_factor",
                                          c.NumberOr("partial_rotary_factor", default_fraction));
  rope.rotary = static_cast<int64_t>(static_cast<double>(head_dim) * fraction);
  if (fraction <= 0 || fraction > 1 || rope.rotary % 2 != 0) {
    c.Fail("partial_rotary_factor", std::to_string(fraction),
           "a fraction in (0, 1] of an even number of dims");
  }
  if (!(rope.theta > 0)) c.Fail("rope_theta", std::to_string(rope.theta), "a positive number");
  const std::string type = scaling.StringOr("rope_type", scaling.StringOr("type", "default"));
  if (type == "yarn") {
    rope.yarn_factor = scaling.NumberOr("factor", 1.0);
    rope.yarn_original =
        scaling.NumberOr("original_max_position_embeddings",
                         static_cast<double>(c.PositiveOr("max_position_embeddings", 32768)));
    rope.yarn_beta_fast = scaling.NumberOr("beta_fast", 32);
    rope.yarn_beta_slow = scaling.NumberOr("beta_slow", 1);
    rope.yarn_attention_factor = scaling.NumberOr("attention_factor", 0);
    if (!(rope.yarn_factor >= 1))
      c.Fail("rope_scaling.factor", std::to_string(rope.yarn_factor), "at least 1");
  } else if (type != "default") {
    c.Fail("rope_type", Quoted(type), "'default' or 'yarn'");
  }
  for (ConfigReader* r : {&nested, &scaling}) {
    if (!r->status().ok()) c.Fail("rope_parameters", r->status().message(), "usable values");
  }
  return rope;
}

AttentionFacts ParseAttention(ConfigReader& c, bool gate, bool qk_norm, bool bias,
                              double rotary_fraction) {
  AttentionFacts a;
  a.heads = c.Positive("num_attention_heads");
  a.kv_heads = c.PositiveOr("num_key_value_heads", a.heads);
  a.head_dim = c.Has("head_dim") ? c.Positive("head_dim")
                                 : c.Positive("hidden_size") / std::max<int64_t>(a.heads, 1);
  a.output_gate = gate;
  a.qk_norm = qk_norm;
  a.bias = bias;
  if (a.kv_heads > 0 && a.heads % a.kv_heads != 0) {
    c.Fail("num_key_value_heads", std::to_string(a.kv_heads),
           "a divisor of num_attention_heads " + std::to_string(a.heads));
  }
  a.rope = ParseRope(c, a.head_dim, rotary_fraction);
  if (c.BoolOr("use_sliding_window", false)) {
    c.Fail("use_sliding_window", "true", "false",
           "no released Qwen MoE model uses a sliding window");
  }
  return a;
}

DeltaNetFacts ParseDeltaNet(ConfigReader& c) {
  DeltaNetFacts d;
  d.key_heads = c.Positive("linear_num_key_heads");
  d.value_heads = c.Positive("linear_num_value_heads");
  d.key_dim = c.Positive("linear_key_head_dim");
  d.value_dim = c.Positive("linear_value_head_dim");
  d.conv_kernel = c.PositiveOr("linear_conv_kernel_dim", 4);
  if (d.key_heads > 0 && d.value_heads % d.key_heads != 0) {
    c.Fail("linear_num_value_heads", std::to_string(d.value_heads),
           "a multiple of linear_num_key_heads " + std::to_string(d.key_heads));
  }
  return d;
}

MoeFacts ParseMoe(ConfigReader& c, bool renormalise, bool may_share) {
  MoeFacts m;
  // transformers 5 renames the key for some families.
  m.experts =
      c.Has("num_local_experts") ? c.Positive("num_local_experts") : c.Positive("num_experts");
  m.top_k = c.Positive("num_experts_per_tok");
  m.inner = c.Positive("moe_intermediate_size");
  m.renormalise = renormalise;
  // Some configs carry a stray zero: no shared expert.
  if (may_share) m.shared_inner = c.CountOr("shared_expert_intermediate_size", 0);
  if (m.top_k > m.experts) {
    c.Fail("num_experts_per_tok", std::to_string(m.top_k),
           "at most num_experts " + std::to_string(m.experts));
  }
  return m;
}

ModelFacts ParseCommon(ConfigReader& c, std::string family, float norm_offset) {
  ModelFacts f;
  f.family = std::move(family);
  f.hidden = c.Positive("hidden_size");
  f.vocab = c.Positive("vocab_size");
  f.max_position = c.PositiveOr("max_position_embeddings", 32768);
  f.norm_eps = c.NumberOr("rms_norm_eps", 1e-6);
  f.norm_offset = norm_offset;
  f.tied_embeddings = c.BoolOr("tie_word_embeddings", false);
  const std::string act = c.StringOr("hidden_act", "silu");
  if (act != "silu") c.Fail("hidden_act", Quoted(act), "'silu'");
  return f;
}

// Layers without experts: those that mlp_only_layers names, and those between the steps of
// decoder_sparse_step.
std::vector<bool> DenseLayers(ConfigReader& c, int64_t layers) {
  const int64_t step = std::max<int64_t>(c.PositiveOr("decoder_sparse_step", 1), 1);
  const std::vector<int64_t> named = c.Integers("mlp_only_layers");
  std::vector<bool> dense;
  for (int64_t l = 0; l < layers; ++l) {
    dense.push_back((l + 1) % step != 0 || std::find(named.begin(), named.end(), l) != named.end());
  }
  return dense;
}

// Softmax attention in every layer.
Result<ModelFacts> ParseSoftmaxModel(ConfigReader& c, ModelFacts f, const AttentionFacts& attention,
                                     bool may_share) {
  const MoeFacts moe = ParseMoe(c, c.BoolOr("norm_topk_prob", false), may_share);
  for (bool dense : DenseLayers(c, c.LayerCount())) {
    LayerFacts layer{.mixer = attention, .ffn = moe};
    if (dense) layer.ffn = DenseFacts{.inner = c.Positive("intermediate_size")};
    f.layers.push_back(layer);
  }
  SB_RETURN_IF_ERROR(c.status());
  return f;
}

Result<ModelFacts> ParseQwen2(ConfigReader& c) {
  ModelFacts f = ParseCommon(c, "qwen2_moe", 0.f);
  const AttentionFacts a = ParseAttention(c, false, false, c.BoolOr("qkv_bias", true), 1.0);
  return ParseSoftmaxModel(c, std::move(f), a, true);
}

Result<ModelFacts> ParseQwen3(ConfigReader& c) {
  ModelFacts f = ParseCommon(c, "qwen3_moe", 0.f);
  const AttentionFacts a = ParseAttention(c, false, true, c.BoolOr("attention_bias", false), 1.0);
  return ParseSoftmaxModel(c, std::move(f), a, false);
}

// layer_types when given, else every full_attention_interval-th layer is full attention.
std::vector<bool> FullAttentionLayers(ConfigReader& c, int64_t layers) {
  std::vector<bool> full;
  if (c.Has("layer_types")) {
    const auto& types = c.Raw("layer_types");
    if (!types.is_array() || static_cast<int64_t>(types.size()) != layers) {
      c.Fail("layer_types", std::to_string(types.size()) + " entries",
             std::to_string(layers) + " entries, one per layer");
      return full;
    }
    for (const auto& t : types) {
      full.push_back(t == "full_attention");
      if (t != "full_attention" && t != "linear_attention") {
        c.Fail("layer_types", t.dump(), "'full_attention' or 'linear_attention'");
      }
    }
    return full;
  }
  const int64_t interval = std::max<int64_t>(c.PositiveOr("full_attention_interval", 4), 1);
  for (int64_t l = 0; l < layers; ++l) full.push_back((l + 1) % interval == 0);
  return full;
}

// Gated delta nets, and gated softmax attention in every fourth layer or so.
Result<ModelFacts> ParseHybridModel(ConfigReader& c, ModelFacts f, const MoeFacts& moe,
                                    const std::vector<bool>& dense, bool grouped, bool draft) {
  const AttentionFacts attention = ParseAttention(c, c.BoolOr("attn_output_gate", true), true,
                                                  c.BoolOr("attention_bias", false), 0.25);
  const std::vector<bool> full = FullAttentionLayers(c, static_cast<int64_t>(dense.size()));
  SB_RETURN_IF_ERROR(c.status());
  for (size_t l = 0; l < dense.size(); ++l) {
    LayerFacts layer{.mixer = attention, .ffn = moe};
    if (!full[l]) {
      DeltaNetFacts delta = ParseDeltaNet(c);
      delta.grouped = grouped;
      layer.mixer = delta;
    }
    if (dense[l]) layer.ffn = DenseFacts{.inner = c.Positive("intermediate_size")};
    f.layers.push_back(layer);
  }
  if (draft) f.mtp = LayerFacts{.mixer = attention, .ffn = moe};
  SB_RETURN_IF_ERROR(c.status());
  return f;
}

Result<ModelFacts> ParseQwen3Next(ConfigReader& c) {
  ModelFacts f = ParseCommon(c, "qwen3_next", 1.f);
  const MoeFacts moe = ParseMoe(c, c.BoolOr("norm_topk_prob", true), true);
  return ParseHybridModel(c, std::move(f), moe, DenseLayers(c, c.LayerCount()), true,
                          c.CountOr("num_nextn_predict_layers", 1) > 0);
}

// Its configs have no say in renormalisation or dense layers; keys of others are strays.
Result<ModelFacts> ParseQwen35(ConfigReader& c) {
  ModelFacts f = ParseCommon(c, "qwen3_5_moe", 1.f);
  const MoeFacts moe = ParseMoe(c, true, true);
  const std::vector<bool> dense(static_cast<size_t>(c.LayerCount()), false);
  return ParseHybridModel(c, std::move(f), moe, dense, false,
                          c.CountOr("mtp_num_hidden_layers", 1) > 0);
}

// ------------------------------------------------------------------------------------------ weight
// map

void AddAttention(const AttentionFacts& a, int64_t hidden, std::vector<TensorRule>* rules) {
  const int64_t q = a.heads * a.head_dim;
  const int64_t kv = a.kv_heads * a.head_dim;
  const std::string p = "self_attn.";
  rules->push_back(Matrix(p + "q_proj", Role::kQuery, a.output_gate ? 2 * q : q, hidden,
                          Split::kHeads, a.heads));
  rules->push_back(Matrix(p + "k_proj", Role::kKey, kv, hidden, Split::kSharedHeads, a.kv_heads));
  rules->push_back(Matrix(p + "v_proj", Role::kValue, kv, hidden, Split::kSharedHeads, a.kv_heads));
  rules->push_back(MatrixByCols(p + "o_proj", Role::kOut, hidden, q, Split::kHeads, a.heads));
  if (a.bias) {
    rules->push_back(Vector(p + "q_proj.bias", Role::kQueryBias, a.output_gate ? 2 * q : q,
                            Split::kHeads, a.heads));
    rules->push_back(
        Vector(p + "k_proj.bias", Role::kKeyBias, kv, Split::kSharedHeads, a.kv_heads));
    rules->push_back(
        Vector(p + "v_proj.bias", Role::kValueBias, kv, Split::kSharedHeads, a.kv_heads));
  }
  if (a.qk_norm) {
    rules->push_back(Vector(p + "q_norm.weight", Role::kQueryNorm, a.head_dim));
    rules->push_back(Vector(p + "k_norm.weight", Role::kKeyNorm, a.head_dim));
  }
}

void AddDeltaProjections(const DeltaNetFacts& d, int64_t hidden, const std::string& p,
                         std::vector<TensorRule>* rules) {
  const int64_t k = d.key_width();
  const int64_t v = d.value_width();
  if (d.grouped) {
    rules->push_back(Matrix(p + "in_proj_qkvz", Role::kDeltaGrouped, 2 * k + 2 * v, hidden,
                            Split::kHeads, d.key_heads));
    rules->push_back(Matrix(p + "in_proj_ba", Role::kDeltaGroupedRates, 2 * d.value_heads, hidden,
                            Split::kHeads, d.key_heads));
    return;
  }
  rules->push_back({.kind = Kind::kMatrix,
                    .name = p + "in_proj_qkv",
                    .parts = {{Role::kDeltaQuery, k, Split::kSharedHeads, d.key_heads},
                              {Role::kDeltaKey, k, Split::kSharedHeads, d.key_heads},
                              {Role::kDeltaValue, v, Split::kHeads, d.value_heads}},
                    .other = hidden});
  rules->push_back(
      Matrix(p + "in_proj_z", Role::kDeltaGate, v, hidden, Split::kHeads, d.value_heads));
  rules->push_back(Matrix(p + "in_proj_b", Role::kDeltaBeta, d.value_heads, hidden, Split::kHeads,
                          d.value_heads));
  rules->push_back(Matrix(p + "in_proj_a", Role::kDeltaDecay, d.value_heads, hidden, Split::kHeads,
                          d.value_heads));
}

void AddDeltaNet(const DeltaNetFacts& d, int64_t hidden, std::vector<TensorRule>* rules) {
  const std::string p = "linear_attn.";
  const int64_t k = d.key_width();
  const int64_t v = d.value_width();
  AddDeltaProjections(d, hidden, p, rules);
  rules->push_back({.kind = Kind::kVector,
                    .name = p + "conv1d.weight",
                    .parts = {{Role::kDeltaConv, k, Split::kSharedHeads, d.key_heads},
                              {Role::kDeltaConv, k, Split::kSharedHeads, d.key_heads},
                              {Role::kDeltaConv, v, Split::kHeads, d.value_heads}},
                    .trailing = {1, d.conv_kernel}});
  rules->push_back(
      Vector(p + "A_log", Role::kDeltaALog, d.value_heads, Split::kHeads, d.value_heads));
  rules->push_back(
      Vector(p + "dt_bias", Role::kDeltaDtBias, d.value_heads, Split::kHeads, d.value_heads));
  rules->push_back(Vector(p + "norm.weight", Role::kDeltaNorm, d.value_dim));
  rules->push_back(
      MatrixByCols(p + "out_proj", Role::kDeltaOut, hidden, v, Split::kHeads, d.value_heads));
}

void AddMoe(const MoeFacts& m, int64_t hidden, bool fused_release, std::vector<TensorRule>* rules) {
  const std::string p = "mlp.";
  const Split width = Split::kExpertWidth;
  rules->push_back(Matrix(p + "gate", Role::kRouter, m.experts, hidden));
  rules->push_back(
      {.kind = Kind::kExperts,
       .name = p + "experts.gate_up_proj",
       .parts = {{Role::kExpertGate, m.inner, width, m.inner, p + "experts.{}.gate_proj"},
                 {Role::kExpertUp, m.inner, width, m.inner, p + "experts.{}.up_proj"}},
       .other = hidden,
       .experts = m.experts,
       .fused_release = fused_release});
  rules->push_back(
      {.kind = Kind::kExperts,
       .name = p + "experts.down_proj",
       .parts = {{Role::kExpertDown, m.inner, width, m.inner, p + "experts.{}.down_proj"}},
       .axis = 1,
       .other = hidden,
       .experts = m.experts,
       .fused_release = fused_release});
  if (m.shared_inner == 0) return;
  const Split shared = Split::kSharedWidth;
  const int64_t s = m.shared_inner;
  rules->push_back(Matrix(p + "shared_expert.gate_proj", Role::kSharedGate, s, hidden, shared, s));
  rules->push_back(Matrix(p + "shared_expert.up_proj", Role::kSharedUp, s, hidden, shared, s));
  rules->push_back(
      MatrixByCols(p + "shared_expert.down_proj", Role::kSharedDown, hidden, s, shared, s));
  rules->push_back(Matrix(p + "shared_expert_gate", Role::kSharedScore, 1, hidden));
}

std::vector<TensorRule> QwenLayer(const ModelFacts& f, const LayerFacts& layer) {
  std::vector<TensorRule> rules = {
      Vector("input_layernorm.weight", Role::kInputNorm, f.hidden),
      Vector("post_attention_layernorm.weight", Role::kFfnNorm, f.hidden)};
  if (layer.is_attention()) {
    AddAttention(std::get<AttentionFacts>(layer.mixer), f.hidden, &rules);
  } else {
    AddDeltaNet(std::get<DeltaNetFacts>(layer.mixer), f.hidden, &rules);
  }
  if (layer.is_moe()) {
    AddMoe(std::get<MoeFacts>(layer.ffn), f.hidden, f.family == "qwen3_5_moe", &rules);
  } else {
    weight_rules::AddDense(std::get<DenseFacts>(layer.ffn), f.hidden, &rules);
  }
  return rules;
}

std::vector<TensorRule> QwenMtp(const ModelFacts& f) {
  return {Matrix("fc", Role::kMtpProject, f.hidden, 2 * f.hidden),
          Vector("pre_fc_norm_embedding.weight", Role::kMtpEmbedNorm, f.hidden),
          Vector("pre_fc_norm_hidden.weight", Role::kMtpHiddenNorm, f.hidden),
          Vector("norm.weight", Role::kMtpFinalNorm, f.hidden)};
}

}  // namespace

std::vector<Family> QwenFamilies() {
  // Text models are flat; under a text_config they may be the language part of a larger one.
  FamilyFiles flat = {.trunk_prefixes = {"model.", "model.language_model."},
                      .skipped = {{"model.visual.*", "vision tower: text only"}}};
  FamilyFiles draft = flat;
  draft.mtp_prefix = "mtp.";
  FamilyFiles multimodal = draft;
  std::swap(multimodal.trunk_prefixes.front(), multimodal.trunk_prefixes.back());
  return {{"qwen2_moe", {"qwen2_moe"}, ParseQwen2, flat, QwenLayer, nullptr},
          {"qwen3_moe", {"qwen3_moe"}, ParseQwen3, flat, QwenLayer, nullptr},
          {"qwen3_next", {"qwen3_next"}, ParseQwen3Next, draft, QwenLayer, QwenMtp},
          {"qwen3_5_moe",
           {"qwen3_5_moe", "qwen3_5_moe_text"},
           ParseQwen35,
           multimodal,
           QwenLayer,
           QwenMtp}};
}

}  // namespace signalbox
