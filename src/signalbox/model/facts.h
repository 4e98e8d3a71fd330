// SPDX-License-Identifier: Apache-2.0
//
// ModelFacts: what a model is, once its config.json has been read. Numbers and kinds only; no
// layout, no device, no rank. The planner, the weight map and the layer math all start from this
// value.
//
//   SB_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig("models/tiny"));
//   config.facts.layers[3].is_attention();   // full attention or a linear mixer
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "signalbox/ops/ops.h"

namespace signalbox {

struct RopeFacts {
  int64_t rotary = 0;  // leading dims of a head that rotate
  double theta = 10000.0;
  double yarn_factor = 0;    // 0: plain RoPE
  double yarn_original = 0;  // positions the model was trained on before stretching
  double yarn_beta_fast = 32;
  double yarn_beta_slow = 1;
  double yarn_attention_factor = 0;  // 0: derived from yarn_factor
};

// Softmax attention with grouped key/value heads.
struct AttentionFacts {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  bool output_gate = false;  // q_proj yields [query, gate] per head; output *= sigmoid(gate)
  bool qk_norm = false;      // per-head RMS norm of q and k before rotation
  bool bias = false;         // q, k and v have biases
  RopeFacts rope;
};

// Softmax attention whose keys and values are linear maps of one latent per token (multi-head
// latent attention). Nothing rotates: part of a head's query meets a key that all heads share.
struct LatentAttentionFacts {
  int64_t heads = 0;
  int64_t query_rank = 0;  // queries come from a normed projection of this width
  int64_t latent = 0;      // width of the normed latent
  int64_t own_dim = 0;     // dims of a head's query that meet its own key
  int64_t shared_dim = 0;  // and dims that meet the shared one
  int64_t value_dim = 0;
  double norm_eps = 1e-6;  // of the two inner norms

  int64_t query_dim() const { return own_dim + shared_dim; }
  int64_t cached() const { return latent + shared_dim; }  // floats that a token leaves behind
};

// Gated DeltaNet: causal convolution, gated delta rule, gated norm. With a decay rank it is Kimi
// Delta Attention: every key channel decays on its own.
struct DeltaNetFacts {
  int64_t key_heads = 0;
  int64_t value_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t conv_kernel = 0;
  int64_t decay_rank = 0;   // of the projection that gives a decay per channel; 0: one per head
  double decay_bound = 0;   // per channel: log decays lie in (bound, 0)
  Gate gate = Gate::kSilu;  // of the output norm
  // Projections are stored in two pieces, query | key | value | gate and beta | decay, each in
  // groups of one key head and its value heads: cuts fall between key heads.
  bool grouped = false;

  int64_t key_width() const { return key_heads * key_dim; }
  int64_t value_width() const { return value_heads * value_dim; }
  int64_t conv_channels() const { return 2 * key_width() + value_width(); }
};

struct MoeFacts {
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t inner = 0;         // width of a routed expert
  bool renormalise = false;  // weights divided by the sum over the top_k
  int64_t shared_inner = 0;  // width of the shared expert, 0 for none
  RouterScores scores = RouterScores::kSoftmax;
  bool selection_bias = false;  // chooses by scores plus a bias, weighs by scores
  int64_t latent = 0;           // width that experts work in; 0: hidden
  bool latent_norm = false;     // of the experts' sum, before it is projected up
  double routed_scale = 1;      // multiplies the experts' sum
};

struct DenseFacts {
  int64_t inner = 0;
};

struct LayerFacts {
  std::variant<AttentionFacts, DeltaNetFacts, LatentAttentionFacts> mixer;
  std::variant<MoeFacts, DenseFacts> ffn;
  bool snapshot = false;  // ModelFacts::mixes: a snapshot of the residual is taken here

  // Over all past tokens; else a recurrence.
  bool is_attention() const { return !std::holds_alternative<DeltaNetFacts>(mixer); }
  bool is_moe() const { return std::holds_alternative<MoeFacts>(ffn); }
};

// "attention", "latent attention", "gated delta net", "kimi delta attention".
std::string_view MixerName(const LayerFacts& layer);

struct ModelFacts {
  std::string family;  // "qwen3_5_moe", ...
  int64_t hidden = 0;
  int64_t vocab = 0;  // rows of the embedding, unused ids included
  int64_t max_position = 0;
  double norm_eps = 1e-6;
  float norm_offset = 0;  // 1 where norm weights are stored as the offset from one
  bool tied_embeddings = false;
  Activation activation;  // of all gated MLPs
  // Mixer, feed-forward part and final norm read a mix of the residual and its snapshots (block
  // attention residuals).
  bool mixes = false;
  std::vector<LayerFacts> layers;
  // The draft layer behind the last one (multi-token prediction); its weights may be absent from a
  // file.
  std::optional<LayerFacts> mtp;
};

}  // namespace signalbox
