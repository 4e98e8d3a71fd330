// SPDX-License-Identifier: Apache-2.0
//
// Multi-head latent attention without rotation. A token leaves one normed latent and one shared key
// behind, whatever the number of heads. With W_k and W_v the two halves of a head's kKeyValue:
//   score(q, j) = (q_own . W_k l_j + q_shared . s_j) / sqrt(query_dim),  out = sum_j p_j W_v l_j
// Absorbed, W_k moves to the query and W_v behind the sum: attention over [l; s] as one key head,
// whose front is the value. Expanded, keys and values of all heads are made from the latents.
#include <cmath>
#include <numeric>
#include <vector>

#include "signalbox/model/layer_math.h"
#include "signalbox/model/math_util.h"

namespace signalbox {
namespace {

class LatentAttention {
 public:
  LatentAttention(const MathContext& ctx, const LatentAttentionFacts& facts, const LayerWeights& w,
                  const AttentionState& state, int64_t tokens)
      : ctx_(ctx),
        f_(facts),
        w_(w),
        state_(state),
        heads_(w.matrix(Role::kQuery).rows / facts.query_dim()),
        query_(ctx.scratch.Take(tokens * heads_ * f_.query_dim())),
        cached_(ctx.scratch.Take(tokens * f_.cached())),
        attended_(ctx.scratch.Take(tokens * heads_ * f_.value_dim)),
        scale_(1.f / std::sqrt(static_cast<float>(f_.query_dim()))) {}

  // Queries of all heads, and what the tokens leave behind.
  void Project(const float* y, int64_t tokens) {
    Scratch::Scope scope(ctx_.scratch);
    float* rank = ctx_.scratch.Take(tokens * f_.query_rank);
    RunProjection(ctx_, w_.matrix(Role::kQueryLatent), y, tokens, rank);
    Norm(Role::kQueryLatentNorm, f_.query_rank, f_.query_rank, tokens, rank);
    RunProjection(ctx_, w_.matrix(Role::kQuery), rank, tokens, query_);
    RunProjection(ctx_, w_.matrix(Role::kKeyLatent), y, tokens, cached_);
    Norm(Role::kKeyLatentNorm, f_.latent, f_.cached(), tokens, cached_);
  }

  // Spans of the batch whose tokens lie in rows [first, first + count) of one sequence each.
  void Absorbed(std::span<const SequenceSpan> spans, std::span<const int32_t* const> tables,
                int64_t first, int64_t count) {
    Scratch::Scope scope(ctx_.scratch);
    const int64_t width = f_.cached();
    float* q = ctx_.scratch.Take(count * heads_ * width);         // [count, heads, latent | shared]
    float* sums = ctx_.scratch.Take(count * heads_ * f_.latent);  // [count, heads, latent]
    const float* query = query_ + first * heads_ * f_.query_dim();
    ctx_.ops.HeadMatMul({.x = query,
                         .x_stride = heads_ * f_.query_dim(),
                         .x_head_stride = f_.query_dim(),
                         .tokens = count,
                         .heads = heads_,
                         .w = w_.matrix(Role::kKeyValue),
                         .head_rows = f_.own_dim + f_.value_dim,
                         .first = 0,
                         .rows = f_.own_dim,
                         .transposed = true,
                         .y = q,
                         .y_stride = heads_ * width,
                         .y_head_stride = width});
    Copy(query + f_.own_dim, f_.query_dim(), f_.shared_dim, count * heads_, q + f_.latent, width);
    std::vector<SequenceSpan> moved(spans.begin(), spans.end());
    for (SequenceSpan& s : moved) s.first -= first;
    ctx_.ops.Attention({.q = q,
                        .q_stride = heads_ * width,
                        .k = cached_ + first * width,
                        .k_stride = width,
                        .v = nullptr,
                        .v_stride = 0,
                        .heads = heads_,
                        .kv_heads = 1,
                        .head_dim = width,
                        .value_dim = f_.latent,
                        .scale = scale_,
                        .sequences = moved,
                        .block_tables = tables,
                        .kv = state_.kv,
                        .out = sums,
                        .out_stride = heads_ * f_.latent});
    ctx_.ops.HeadMatMul({.x = sums,
                         .x_stride = heads_ * f_.latent,
                         .x_head_stride = f_.latent,
                         .tokens = count,
                         .heads = heads_,
                         .w = w_.matrix(Role::kKeyValue),
                         .head_rows = f_.own_dim + f_.value_dim,
                         .first = f_.own_dim,
                         .rows = f_.value_dim,
                         .y = attended_ + first * heads_ * f_.value_dim,
                         .y_stride = heads_ * f_.value_dim,
                         .y_head_stride = f_.value_dim});
  }

  // One sequence: its past comes back from the pages, all its keys and values are made anew.
  void Expanded(const SequenceSpan& span, const int32_t* table) {
    Scratch::Scope scope(ctx_.scratch);
    const int64_t width = f_.cached();
    const int64_t length = span.past + span.count;
    const int64_t head = f_.own_dim + f_.value_dim;
    Store(span, table);
    std::vector<int64_t> rows(static_cast<size_t>(length));
    for (int64_t p = 0; p < length; ++p) {
      rows[static_cast<size_t>(p)] =
          table[p / state_.kv.block] * state_.kv.block + p % state_.kv.block;
    }
    float* latents = ctx_.scratch.Take(length * width);       // [length, latent | shared]
    float* both = ctx_.scratch.Take(length * heads_ * head);  // [length, heads, k | v]
    float* keys =
        ctx_.scratch.Take(length * heads_ * f_.query_dim());  // [length, heads, query_dim]
    float* values = ctx_.scratch.Take(length * heads_ * f_.value_dim);
    ctx_.ops.GatherRows({.in = state_.kv.keys,
                         .in_stride = width,
                         .width = width,
                         .rows = rows,
                         .out = latents,
                         .out_stride = width,
                         .dtype = state_.kv.dtype});
    MatMul(ctx_, w_.matrix(Role::kKeyValue), latents, width, length, both, heads_ * head);
    Copy(both, head, f_.own_dim, length * heads_, keys, f_.query_dim());
    Copy(both + f_.own_dim, head, f_.value_dim, length * heads_, values, f_.value_dim);
    for (int64_t h = 0; h < heads_; ++h) {
      Copy(latents + f_.latent, width, f_.shared_dim, length,
           keys + h * f_.query_dim() + f_.own_dim, heads_ * f_.query_dim());
    }
    // The new keys are written to where they already lie: one page holds the sequence.
    const int32_t page = 0;
    const int32_t* pages = &page;
    const SequenceSpan moved{.first = 0, .count = span.count, .past = span.past};
    ctx_.ops.Attention({.q = query_ + span.first * heads_ * f_.query_dim(),
                        .q_stride = heads_ * f_.query_dim(),
                        .k = keys + span.past * heads_ * f_.query_dim(),
                        .k_stride = heads_ * f_.query_dim(),
                        .v = values + span.past * heads_ * f_.value_dim,
                        .v_stride = heads_ * f_.value_dim,
                        .heads = heads_,
                        .kv_heads = heads_,
                        .head_dim = f_.query_dim(),
                        .value_dim = f_.value_dim,
                        .scale = scale_,
                        .sequences = {&moved, 1},
                        .block_tables = {&pages, 1},
                        .kv = {.keys = keys, .values = values, .block = length},
                        .out = attended_ + span.first * heads_ * f_.value_dim,
                        .out_stride = heads_ * f_.value_dim});
  }

  void Finish(const float* y, int64_t tokens, float* out) {
    Scratch::Scope scope(ctx_.scratch);
    const int64_t width = heads_ * f_.value_dim;
    float* gate = ctx_.scratch.Take(tokens * width);
    RunProjection(ctx_, w_.matrix(Role::kOutGate), y, tokens, gate);
    ctx_.ops.SigmoidMul(attended_, width, gate, width, width, tokens, width);
    RunProjection(ctx_, w_.matrix(Role::kOut), attended_, tokens, out);
  }

 private:
  void Norm(Role role, int64_t width, int64_t stride, int64_t rows, float* x) {
    ctx_.ops.RmsNorm({.x = x,
                      .x_stride = stride,
                      .rows = rows,
                      .width = width,
                      .weight = w_.vector(role).data(),
                      .offset = ctx_.norm_offset,
                      .eps = static_cast<float>(f_.norm_eps),
                      .y = x,
                      .y_stride = stride});
  }

  void Copy(const float* in, int64_t in_stride, int64_t width, int64_t rows, float* out,
            int64_t out_stride) {
    std::vector<int64_t> order(static_cast<size_t>(rows));
    std::iota(order.begin(), order.end(), 0);
    ctx_.ops.GatherRows({.in = in,
                         .in_stride = in_stride,
                         .width = width,
                         .rows = order,
                         .out = out,
                         .out_stride = out_stride});
  }

  void Store(const SequenceSpan& span, const int32_t* table) {
    ctx_.ops.StoreKv({.q = nullptr,
                      .q_stride = 0,
                      .k = cached_,
                      .k_stride = f_.cached(),
                      .v = nullptr,
                      .v_stride = 0,
                      .heads = heads_,
                      .kv_heads = 1,
                      .head_dim = f_.cached(),
                      .value_dim = f_.latent,
                      .scale = scale_,
                      .sequences = {&span, 1},
                      .block_tables = {&table, 1},
                      .kv = state_.kv,
                      .out = nullptr,
                      .out_stride = 0});
  }

  const MathContext& ctx_;
  const LatentAttentionFacts& f_;
  const LayerWeights& w_;
  const AttentionState& state_;
  const int64_t heads_;    // here
  float* const query_;     // [tokens, heads, own | shared]
  float* const cached_;    // [tokens, latent | shared]
  float* const attended_;  // [tokens, heads, value_dim]
  const float scale_;
};

}  // namespace

void RunLatentAttention(const MathContext& ctx, const LatentAttentionFacts& facts,
                        const LayerWeights& w, const TokenBatch& batch, const AttentionState& state,
                        const float* y, float* out) {
  Scratch::Scope scope(ctx.scratch);
  LatentAttention attention(ctx, facts, w, state, batch.tokens);
  attention.Project(y, batch.tokens);
  if (!ctx.expand_latents) {
    attention.Absorbed(batch.sequences, state.block_tables, 0, batch.tokens);
  }
  for (size_t s = 0; ctx.expand_latents && s < batch.sequences.size(); ++s) {
    const SequenceSpan& span = batch.sequences[s];
    if (span.count > 1) {
      attention.Expanded(span, state.block_tables[s]);
    } else {
      attention.Absorbed({&span, 1}, state.block_tables.subspan(s, 1), span.first, span.count);
    }
  }
  attention.Finish(y, batch.tokens, out);
}

}  // namespace signalbox
