// SPDX-License-Identifier: Apache-2.0
//
// LayoutFacts: what the planner has to know about a model, and no more. Numbers per kind of layer,
// the model's own program for it, and the bytes of its parts. Layers of one kind share one plan.
//
// What the program says is not said again here: whether there is a latent space with a norm behind
// the experts, a gate on the shared expert, a routed scaling factor or snapshots of the residual.
//
//   LayoutFacts facts{.hidden = 4096};
//   facts.kinds.push_back({.kind = "attention + moe", .layers = 15, .program = program,
//                          .heads = {{"heads", 32}, {"kv heads", 2, true}},
//                          .moe = MoeLayout{.experts = 512, .top_k = 10, .inner = 1024,
//                                           .format = {"mxfp4", 32}}});
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "signalbox/plan/step.h"

namespace signalbox {

// A number of heads that attention TP has to divide.
struct HeadCount {
  std::string name;  // "kv heads"
  int64_t count = 0;
  bool may_repeat = false;  // more ranks than heads: several ranks hold the same one
};

// How a weight is stored, as read from its tensors.
struct WidthFormat {
  std::string name = "bf16";
  int64_t block = 1;  // a rank's share of the width must be a multiple of it
  friend bool operator==(const WidthFormat&, const WidthFormat&) = default;
};

struct MoeLayout {
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t inner = 0;  // width of one expert
  WidthFormat format;
};

// A feed-forward part that every token goes through: the shared expert or a dense layer's MLP.
struct MlpLayout {
  int64_t inner = 0;
  WidthFormat format;
};

// Bytes of one layer, all ranks' together when every part is cut.
struct LayerBytes {
  int64_t mixer = 0;               // cut like the heads
  int64_t experts = 0;             // all routed experts, one slot each
  int64_t shared = 0;              // the shared expert
  int64_t dense = 0;               // the dense MLP
  int64_t whole = 0;               // on every rank: norms, router, latent projections
  int64_t cache_per_token = 0;     // keys and values, cut like the heads, but into no more shares
                                   // than there are heads of those that may repeat
  int64_t cache_per_sequence = 0;  // recurrent state, cut like the heads
  int64_t cache_per_sequence_repeated = 0;  // more of it, cut like the keys and values
};

struct LayerKindFacts {
  std::string kind;           // "gated delta net + moe"
  int64_t layers = 0;         // of this kind
  std::vector<Step> program;  // what one rank computes (OneRankPlan)
  std::vector<HeadCount> heads;
  std::optional<MoeLayout> moe;  // else `dense`
  std::optional<MlpLayout> shared;
  std::optional<MlpLayout> dense;
  int64_t latent = 0;  // width that experts work in; 0: hidden
  LayerBytes bytes;
};

struct LayoutFacts {
  int64_t hidden = 0;
  std::vector<LayerKindFacts> kinds;
  int64_t trunk_bytes = 0;  // embedding, head and what leads into a draft layer, on every rank
};

}  // namespace signalbox
