// SPDX-License-Identifier: Apache-2.0
//
// Layer math: the model's own operations on one rank's share, in terms of Ops. A function sees
// facts of the whole model, the weights that this rank holds and its rows; how many heads are here
// it reads off the weights. There is no rank count, no back end and no flag in sight: sums that
// other ranks owe are the plan's.
//
//   RunAttention(ctx, facts, weights, batch, state, y, out);   // out partial over the ranks that
//   share heads
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "signalbox/model/facts.h"
#include "signalbox/model/weights.h"
#include "signalbox/ops/ops.h"
#include "signalbox/tensor/scratch.h"

namespace signalbox {

// What every function needs.
struct MathContext {
  Ops& ops;
  Scratch& scratch;
  int64_t hidden;
  float norm_eps;
  float norm_offset;
  Activation activation;       // of gated MLPs
  bool chunked_delta = false;  // chunk form of the delta rule for spans of more than one token
  // Latent attention makes keys and values of a span of more than one token from their latents,
  // instead of moving queries and results to the latent space.
  bool expand_latents = false;
};

// New tokens of several sequences, flattened.
struct TokenBatch {
  int64_t tokens = 0;
  std::span<const SequenceSpan> sequences;
  std::span<const int32_t> positions;  // [tokens]
};

struct AttentionState {
  KvView kv;
  std::span<const int32_t* const> block_tables;  // [sequences]
};

// Snapshots of the residual, beside its rows.
struct MixBank {
  const float* rows = nullptr;  // [rows, snapshots, hidden]
  int64_t snapshots = 0;
};

struct DeltaNetState {
  std::span<float* const> conv;       // [sequences] of [kernel - 1, channels]
  std::span<float* const> recurrent;  // [sequences] of [value_heads, key_dim, value_dim]
  // States in between, for going back to an earlier token.
  StatesAfter conv_after = {};
  StatesAfter recurrent_after = {};
};

// inv_freq [rotary / 2] and the factor on cos and sin, YaRN included.
struct RopeTable {
  std::vector<float> inv_freq;
  float scale = 1.f;
};
// `bf16` rounds the frequencies, as a library does that casts a whole model to BF16.
RopeTable MakeRopeTable(const RopeFacts& facts, bool bf16 = false);

// y [rows, width] <- rms norm of x.
void RunNorm(const MathContext& ctx, std::span<const float> weight, const float* x, int64_t rows,
             float* y);

// y [rows, hidden] <- the mix of x and its snapshots, scored by the two weights.
void RunMix(const MathContext& ctx, std::span<const float> norm, std::span<const float> query,
            const MixBank& bank, const float* x, int64_t rows, float* y);
// y [rows, w.rows] <- w x, x [rows, w.cols].
void RunProjection(const MathContext& ctx, const MatrixView& w, const float* x, int64_t rows,
                   float* y);

// y, out [tokens, hidden].
void RunAttention(const MathContext& ctx, const AttentionFacts& facts, const RopeTable& rope,
                  const LayerWeights& w, const TokenBatch& batch, const AttentionState& state,
                  const float* y, float* out);
void RunLatentAttention(const MathContext& ctx, const LatentAttentionFacts& facts,
                        const LayerWeights& w, const TokenBatch& batch, const AttentionState& state,
                        const float* y, float* out);
void RunDeltaNet(const MathContext& ctx, const DeltaNetFacts& facts, const LayerWeights& w,
                 const TokenBatch& batch, const DeltaNetState& state, const float* y, float* out);

// ids, weights [tokens, top_k]: logical experts in descending weight.
void RunRouter(const MathContext& ctx, const MoeFacts& facts, const LayerWeights& w, const float* y,
               int64_t tokens, int32_t* ids, float* weights);
// out [tokens, hidden] <- shared expert, times its sigmoid gate where the model has one.
void RunShared(const MathContext& ctx, const LayerWeights& w, const float* y, int64_t tokens,
               float* out);
// out [tokens, hidden] <- dense feed-forward.
void RunMlp(const MathContext& ctx, const LayerWeights& w, const float* y, int64_t tokens,
            float* out);

// Channels that this rank's convolution carries, and the sizes of its recurrent state.
int64_t LocalConvChannels(const DeltaNetFacts& facts, const LayerWeights& w);
int64_t LocalValueHeads(const LayerWeights& w);
int64_t LocalKvHeads(const AttentionFacts& facts, const LayerWeights& w);

}  // namespace signalbox
