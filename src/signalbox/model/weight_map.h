// SPDX-License-Identifier: Apache-2.0
//
// Weight map: where a model's weights lie in a checkpoint, as data. One TensorRule per tensor of
// the file says its name, its shape, which parts it holds and how a part is cut among ranks.
// Loading, `inspect` and `synth` all walk the same rules; a family adds rules, not code.
//
//   for (const TensorRule& r : LayerRules(facts, 3)) fmt::print("{} {}\n", r.name, r.parts.size());
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/model/facts.h"

namespace signalbox {

// What a weight is to the layer math.
enum class Role : uint8_t {
  kEmbedding,  // [vocab, hidden]
  kHead,       // [vocab, hidden]
  kFinalNorm,  // [hidden]
  kInputNorm,  // [hidden]
  kFfnNorm,    // [hidden]
  kQuery,  // [heads * head_dim, hidden]; with an output gate [heads * 2 head_dim, hidden], per head
           // query then gate
  kKey,    // [kv_heads * head_dim, hidden]
  kValue,  // [kv_heads * head_dim, hidden]
  kOut,    // [hidden, heads * head_dim]
  kQueryBias,        // [heads * head_dim]
  kKeyBias,          // [kv_heads * head_dim]
  kValueBias,        // [kv_heads * head_dim]
  kQueryLatent,      // [query_rank, hidden]
  kQueryLatentNorm,  // [query_rank]; kQuery is [heads * query_dim, query_rank] behind it
  kKeyLatent,        // [latent + shared_dim, hidden]
  kKeyLatentNorm,    // [latent]
  kKeyValue,         // [heads * (own_dim + value_dim), latent], per head key then value
  kOutGate,          // [heads * value_dim, hidden]
  kQueryNorm,        // [head_dim]
  kKeyNorm,          // [head_dim]
  kDeltaQuery,       // [key_heads * key_dim, hidden]
  kDeltaKey,         // [key_heads * key_dim, hidden]
  kDeltaValue,       // [value_heads * value_dim, hidden]
  kDeltaGate,        // [value_heads * value_dim, hidden] (z)
  kDeltaBeta,        // [value_heads, hidden] (b)
  kDeltaDecay,       // [value_heads, hidden] (a); per channel [value_heads * key_dim, decay_rank]
  kDeltaDecayRank,   // [decay_rank, hidden]
  // Of grouped projections, per key head, with its r value heads:
  kDeltaGrouped,  // [key_heads * (2 key_dim + 2 r value_dim), hidden]: query | key | value | gate
  kDeltaGroupedRates,  // [key_heads * 2 r, hidden]: beta | decay
  kDeltaConv,          // [channels, kernel]: query, key and value channels
  kDeltaALog,          // [value_heads]
  kDeltaDtBias,        // [value_heads]; per channel [value_heads * key_dim]
  kDeltaNorm,          // [value_dim]
  kDeltaOut,           // [hidden, value_heads * value_dim]
  kRouter,             // [experts, hidden]
  kRouterBias,         // [experts]: added to scores for the choice only
  kLatentDown,         // [latent, hidden]
  kLatentNorm,         // [latent]
  kLatentUp,           // [hidden, latent]
  kExpertGate,         // per expert [inner, hidden or latent]
  kExpertUp,           // per expert [inner, hidden or latent]
  kExpertDown,         // per expert [hidden or latent, inner]
  kSharedGate,         // [shared_inner, hidden]
  kSharedUp,           // [shared_inner, hidden]
  kSharedDown,         // [hidden, shared_inner]
  kSharedScore,        // [1, hidden]: the shared expert's own sigmoid gate
  kDenseGate,          // [dense inner, hidden]
  kDenseUp,            // [dense inner, hidden]
  kDenseDown,          // [hidden, dense inner]
  kMixerMixNorm,    // [hidden]: norm of what the mixer's mix reads, and the query it is scored by
  kMixerMixQuery,   // [hidden]
  kFfnMixNorm,      // [hidden]
  kFfnMixQuery,     // [hidden]
  kOutputMixNorm,   // [hidden]
  kOutputMixQuery,  // [hidden]
  kPadding,         // entries of a vector that mean nothing
  kMtpProject,      // [hidden, 2 hidden]
  kMtpEmbedNorm,    // [hidden]
  kMtpHiddenNorm,   // [hidden]
  kMtpFinalNorm,    // [hidden]
  kCount,
};
std::string_view ToString(Role role);

// What a dimension is divided into when ranks share it; kWhole is never cut.
enum class Split : uint8_t {
  kWhole,
  kHeads,        // attention heads (query, or Gated DeltaNet value heads)
  kSharedHeads,  // key/value heads: repeated when there are more ranks than heads
  kExpertWidth,
  kSharedWidth,
  kDenseWidth,
};

// A run of rows (or columns) of one file tensor that is one weight.
struct TensorPart {
  Role role;
  int64_t size = 0;  // rows or columns of it in the file
  Split split = Split::kWhole;
  int64_t units = 1;             // heads or width that `size` is made of; cuts fall between units
  std::string expert_name = {};  // per-expert spelling with {} for the id, for expert rules
};

struct TensorRule {
  enum class Kind : uint8_t {
    kMatrix,   // `name` without ".weight": [sum of parts, other] or, with axis 1, [other, sum of
               // parts]
    kVector,   // full `name`, shape [sum of parts, trailing...]; read as float
    kExperts,  // fused `name` [experts, ...] or one tensor per expert and part
  };
  Kind kind = Kind::kMatrix;
  std::string name;  // relative to the layer's prefix
  std::vector<TensorPart> parts;
  int axis = 0;                        // dimension that the parts divide
  int64_t other = 0;                   // extent of the other dimension of a matrix
  std::vector<int64_t> trailing = {};  // further dimensions of a vector rule
  int64_t experts = 0;                 // kExperts: how many
  bool fused_release = false;          // kExperts: BF16 releases store the fused form

  int64_t total() const;  // sum of the parts' sizes
};

// The model's own prefix for the trunk's tensors, and everything else that a family says about its
// files.
struct FamilyFiles {
  // Candidates in order; the one under which the embedding is found is used.
  std::vector<std::string> trunk_prefixes;
  std::string mtp_prefix;  // empty when the family has no draft layer
  std::string head_prefix = {};
  std::string_view packed_suffix = ".weight";  // of MXFP4 nibbles as `synth` writes them
  // Tensors of parts that this engine knowingly leaves out: glob pattern and reason.
  std::vector<std::array<std::string, 2>> skipped;
};

FamilyFiles FilesOf(const ModelFacts& facts);
// Embedding, final norm and what the family adds (relative to the trunk prefix).
std::vector<TensorRule> TrunkRules(const ModelFacts& facts);
// The head; empty when embeddings are tied. Full names.
std::vector<TensorRule> HeadRules(const ModelFacts& facts);
// Relative to "<trunk>layers.<index>.".
std::vector<TensorRule> LayerRules(const ModelFacts& facts, const LayerFacts& layer);
// Of the draft module outside its decoder layer, relative to the MTP prefix.
std::vector<TensorRule> MtpRules(const ModelFacts& facts);

}  // namespace signalbox
