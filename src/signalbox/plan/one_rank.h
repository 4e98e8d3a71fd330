// SPDX-License-Identifier: Apache-2.0
//
// The model's own program for a layer: what one rank computes, no layout step in it. Every plan of
// every layout must give exactly this list once its layout steps are erased.
//
//   LayerPlan p = OneRankPlan({.kind = "attention + moe", .moe = true, .shared = true});
#pragma once

#include <string>

#include "signalbox/plan/step.h"

namespace signalbox {

// What a layer is made of, as far as its program goes.
struct LayerShape {
  std::string kind;
  bool moe = false;          // routed experts; else a dense feed-forward part
  bool shared = false;       // a shared expert beside the routed ones
  bool gated = false;        // the shared expert has a gate of its own
  bool latent = false;       // experts work in a latent space
  bool latent_norm = false;  // and their sum is normed there
  Rational routed_scale;     // multiplies the experts' sum
  bool mixes = false;        // mixer and feed-forward part read a mix of x and its snapshots
  bool snapshot = false;     // the layer takes a snapshot behind its first mix
};

LayerPlan OneRankPlan(const LayerShape& shape);

}  // namespace signalbox
