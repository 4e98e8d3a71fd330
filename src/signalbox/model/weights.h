// SPDX-License-Identifier: Apache-2.0
//
// Weights of one rank: views into the mapped checkpoint, found by the weight map and cut as
// WeightShards says. Nothing is copied but vectors (norms, biases, convolution taps), which are
// widened to float.
//
// Errors: kBadCheckpoint for whatever is wrong with the files, kRefused when a cut is impossible.
//
//   SB_ASSIGN_OR_RETURN(ModelWeights w, LoadWeights(checkpoint, facts, {}));
//   w.layers[0].matrix(Role::kOut);  // [hidden, heads * head_dim]
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"
#include "signalbox/model/facts.h"
#include "signalbox/model/weight_map.h"
#include "signalbox/ops/ops.h"
#include "signalbox/tensor/checkpoint.h"

namespace signalbox {

// Share number `index` of `count` equal shares.
struct Shard {
  int index = 0;
  int count = 1;
};

struct WeightShards {
  Shard heads;
  Shard expert_width;
  Shard shared_width;
  Shard dense_width;
  // The expert in each slot of this rank, in slot order; none given: all experts, in order.
  std::optional<std::vector<ExpertId>> slots;
};

class LayerWeights {
 public:
  bool has(Role role) const {
    return !matrix_[Index(role)].empty() || !vector_[Index(role)].empty();
  }
  // REQUIRES: has(role).
  const MatrixView& matrix(Role role) const;
  std::span<const float> vector(Role role) const;

  void Set(Role role, const MatrixView& view) { matrix_[Index(role)] = view; }
  // Appends, so that parts of one tensor can follow one another.
  void Append(Role role, std::span<const float> values);

  // Of all matrices and vectors but the experts'.
  int64_t bytes() const;

  std::vector<ExpertWeights> experts;  // [slots]

 private:
  static size_t Index(Role role) { return static_cast<size_t>(role); }
  std::array<MatrixView, static_cast<size_t>(Role::kCount)> matrix_;
  std::array<std::vector<float>, static_cast<size_t>(Role::kCount)> vector_;
};

struct ModelWeights {
  LayerWeights trunk;  // embedding, head, final norm
  std::vector<LayerWeights> layers;
  struct Mtp {
    LayerWeights module;  // projection and norms around the layer
    LayerWeights layer;
  };
  std::optional<Mtp> mtp;
  int64_t bytes = 0;  // of all matrices bound, experts included
};

// Called after every layer with the bytes bound so far.
using LoadProgress = std::function<void(int64_t bytes)>;

// `shards` [layers + draft layer] says how each layer is cut; empty: nothing is.
Result<ModelWeights> LoadWeights(const Checkpoint& checkpoint, const ModelFacts& facts,
                                 std::span<const WeightShards> shards,
                                 const LoadProgress& progress = {});

// The same uncut and without vectors, for plans: every tensor is found and checked, no data is
// read.
Result<ModelWeights> BindWeights(const Checkpoint& checkpoint, const ModelFacts& facts);

// What the engine uses a tensor of the file for, for `inspect`.
struct TensorUse {
  std::string name;  // in the file
  std::string use;   // "layer 3 query", "skipped: vision tower: text only"
};
// One entry per tensor of the checkpoint, by name; unknown tensors have an empty use.
std::vector<TensorUse> DescribeTensors(const Checkpoint& checkpoint, const ModelFacts& facts);

// The prefix under which this checkpoint stores the trunk. kBadCheckpoint when no candidate has the
// embedding.
Result<std::string> TrunkPrefix(const Checkpoint& checkpoint, const ModelFacts& facts);

}  // namespace signalbox
