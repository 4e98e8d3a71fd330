// SPDX-License-Identifier: Apache-2.0
//
// Step and Plan: how a layer runs, as data. The engine executes exactly these steps, the checker
// types them, `signalbox plan` prints them. A step that moves rows or sums is a layout step; with
// all of those removed the list is the model's own one-rank program.
//
//   LayerPlan p = OneRankPlan(facts);
//   for (const Step& s : p.steps) fmt::print("{}\n", s.ToString(mesh));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "signalbox/mesh/mesh.h"
#include "signalbox/plan/value.h"

namespace signalbox {

// The activations a layer works on.
enum class Reg : uint8_t {
  kResidual,    // x [tokens, hidden], the stream between layers
  kNormed,      // y [tokens, hidden], input of the mixer or of the feed-forward part
  kMixed,       // h [tokens, hidden], output of the mixer
  kRouting,     // ids and weights [tokens, top_k]
  kDispatched,  // rows as the contract delivers them, with ids, weights and counts
  kExpertOut,   // expert results in the rows of kDispatched
  kRouted,      // sum of routed experts [tokens, hidden]
  kShared,      // shared expert [tokens, hidden]
  kCount,
};
std::string_view ToString(Reg reg);

enum class StepKind : uint8_t {
  // the model's own operations
  kNorm,     // dst <- norm(src); `norm` says which weight
  kMixer,    // dst <- mixer(src), heads over `axes` (output partial over them)
  kRoute,    // kRouting <- router(src)
  kExperts,  // dst <- experts that this rank of `axes` holds, all rows in src; width over
             // `width_axes`
  kShared,   // dst <- shared expert(src), width over `axes`
  kMlp,      // dst <- dense feed-forward(src), width over `axes`
  kAdd,      // dst += src
  kScale,    // dst *= coefficient
  // layout steps
  kAllReduce,      // dst summed over `axes`
  kReduceScatter,  // dst summed over `axes`, each rank keeps its rows
  kAllGather,      // rows of dst from all ranks of `axes`
  kSlice,          // dst keeps this rank's rows
  kDispatch,       // kDispatched <- rows of src, routed over `axes` by the contract
  kRunExperts,     // kExpertOut <- runner(kDispatched), width over `width_axes`
  kCombine,        // dst <- kExpertOut returned to its senders
};
std::string_view ToString(StepKind kind);
bool IsLayoutStep(StepKind kind);

enum class NormRole : uint8_t { kMixerInput, kFeedForwardInput, kLatent };

struct Step {
  StepKind kind;
  Reg dst;
  Reg src = Reg::kCount;
  AxisSet axes;
  AxisSet width_axes;
  NormRole norm = NormRole::kMixerInput;
  Rational coefficient;
  std::string reason;  // why the planner chose it; empty when there was no choice

  std::string ToString(const Mesh& mesh) const;
};

// What a layer does in one phase. Layers of the same kind share one plan.
enum class Phase : uint8_t { kPrefill, kDecode, kVerify };

struct LayerPlan {
  std::string kind;  // "gated delta net + moe"
  Phase phase = Phase::kPrefill;
  std::vector<Step> steps;
};

}  // namespace signalbox
