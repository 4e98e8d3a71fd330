// SPDX-License-Identifier: Apache-2.0
#include "signalbox/model/layer_math.h"

#include <algorithm>
#include <cmath>

#include "signalbox/base/check.h"
#include "signalbox/model/math_util.h"

namespace signalbox {
namespace {

const float* BiasOrNull(const LayerWeights& w, Role role) {
  return w.has(role) ? w.vector(role).data() : nullptr;
}

// Per-head norm: `stride` floats between heads of x, compact result.
void HeadNorm(const MathContext& ctx, std::span<const float> weight, const float* x, int64_t stride,
              int64_t rows, float* y) {
  const int64_t width = static_cast<int64_t>(weight.size());
  ctx.ops.RmsNorm({.x = x,
                   .x_stride = stride,
                   .rows = rows,
                   .width = width,
                   .weight = weight.data(),
                   .offset = ctx.norm_offset,
                   .eps = ctx.norm_eps,
                   .y = y,
                   .y_stride = width});
}

void GatedMlp(const MathContext& ctx, const MatrixView& gate, const MatrixView& up,
              const MatrixView& down, const float* y, int64_t tokens, float* out) {
  Scratch::Scope scope(ctx.scratch);
  const int64_t inner = gate.rows;
  float* g = ctx.scratch.Take(tokens * inner);
  float* u = ctx.scratch.Take(tokens * inner);
  MatMul(ctx, gate, y, ctx.hidden, tokens, g, inner);
  MatMul(ctx, up, y, ctx.hidden, tokens, u, inner);
  ctx.ops.Glu(ctx.activation, g, u, tokens * inner, g);
  MatMul(ctx, down, g, inner, tokens, out, down.rows);
}

// Rotations of the lowest YaRN dims are kept, those of the highest are divided by the factor, with
// a linear ramp between the dims that turn beta_fast and beta_slow times over the original context.
void ApplyYarn(const RopeFacts& f, RopeTable* table) {
  const auto dim_of_turns = [&](double turns) {
    return static_cast<double>(f.rotary) * std::log(f.yarn_original / (turns * 2 * M_PI)) /
           (2 * std::log(f.theta));
  };
  const double last = static_cast<double>(f.rotary) - 1;
  const double low = std::max(std::floor(dim_of_turns(f.yarn_beta_fast)), 0.0);
  const double high = std::min(std::ceil(dim_of_turns(f.yarn_beta_slow)), last);
  for (size_t i = 0; i < table->inv_freq.size(); ++i) {
    const double ramp =
        std::clamp((static_cast<double>(i) - low) / std::max(high - low, 1e-3), 0.0, 1.0);
    const double plain = table->inv_freq[i];
    table->inv_freq[i] = static_cast<float>(plain * (1 - ramp) + plain / f.yarn_factor * ramp);
  }
  table->scale = static_cast<float>(
      f.yarn_attention_factor > 0 ? f.yarn_attention_factor : 0.1 * std::log(f.yarn_factor) + 1);
}

}  // namespace

RopeTable MakeRopeTable(const RopeFacts& facts) {
  RopeTable table;
  for (int64_t i = 0; i < facts.rotary / 2; ++i) {
    table.inv_freq.push_back(static_cast<float>(
        std::pow(facts.theta, -2.0 * static_cast<double>(i) / static_cast<double>(facts.rotary))));
  }
  if (facts.yarn_factor > 0) ApplyYarn(facts, &table);
  return table;
}

void RunNorm(const MathContext& ctx, std::span<const float> weight, const float* x, int64_t rows,
             float* y) {
  const int64_t width = static_cast<int64_t>(weight.size());
  ctx.ops.RmsNorm({.x = x,
                   .x_stride = width,
                   .rows = rows,
                   .width = width,
                   .weight = weight.data(),
                   .offset = ctx.norm_offset,
                   .eps = ctx.norm_eps,
                   .y = y,
                   .y_stride = width});
}

void RunMix(const MathContext& ctx, std::span<const float> norm, std::span<const float> query,
            const MixBank& bank, const float* x, int64_t rows, float* y) {
  ctx.ops.Mix({.bank = bank.rows,
               .snapshots = bank.snapshots,
               .x = x,
               .rows = rows,
               .width = ctx.hidden,
               .norm = norm.data(),
               .query = query.data(),
               .eps = ctx.norm_eps,
               .y = y});
}

void RunProjection(const MathContext& ctx, const MatrixView& w, const float* x, int64_t rows,
                   float* y) {
  MatMul(ctx, w, x, w.cols, rows, y, w.rows);
}

void RunAttention(const MathContext& ctx, const AttentionFacts& facts, const RopeTable& rope,
                  const LayerWeights& w, const TokenBatch& batch, const AttentionState& state,
                  const float* y, float* out) {
  Scratch::Scope scope(ctx.scratch);
  const int64_t tokens = batch.tokens;
  const int64_t dim = facts.head_dim;
  const int64_t query_width = facts.output_gate ? 2 * dim : dim;  // per head in the projection
  const MatrixView& wq = w.matrix(Role::kQuery);
  const int64_t heads = wq.rows / query_width;
  const int64_t kv_heads = LocalKvHeads(facts, w);

  float* projected = ctx.scratch.Take(tokens * wq.rows);  // [tokens, heads, query | gate]
  float* k = ctx.scratch.Take(tokens * kv_heads * dim);   // [tokens, kv_heads, dim]
  float* v = ctx.scratch.Take(tokens * kv_heads * dim);   // [tokens, kv_heads, dim]
  MatMul(ctx, wq, y, ctx.hidden, tokens, projected, wq.rows, BiasOrNull(w, Role::kQueryBias));
  MatMul(ctx, w.matrix(Role::kKey), y, ctx.hidden, tokens, k, kv_heads * dim,
         BiasOrNull(w, Role::kKeyBias));
  MatMul(ctx, w.matrix(Role::kValue), y, ctx.hidden, tokens, v, kv_heads * dim,
         BiasOrNull(w, Role::kValueBias));

  float* q = projected;  // [tokens, heads, dim]
  if (facts.qk_norm) {
    q = ctx.scratch.Take(tokens * heads * dim);
    HeadNorm(ctx, w.vector(Role::kQueryNorm), projected, query_width, tokens * heads, q);
    HeadNorm(ctx, w.vector(Role::kKeyNorm), k, dim, tokens * kv_heads, k);
  }
  SB_CHECK(facts.qk_norm || !facts.output_gate)
      << "gated queries are interleaved: only the norm separates them";
  for (auto [x, n] : {std::pair{q, heads}, std::pair{k, kv_heads}}) {
    ctx.ops.Rope({.x = x,
                  .x_stride = n * dim,
                  .tokens = tokens,
                  .heads = n,
                  .head_dim = dim,
                  .rotary = facts.rope.rotary,
                  .positions = batch.positions.data(),
                  .inv_freq = rope.inv_freq.data(),
                  .scale = rope.scale});
  }
  float* attended = ctx.scratch.Take(tokens * heads * dim);  // [tokens, heads, dim]
  ctx.ops.Attention({.q = q,
                     .q_stride = heads * dim,
                     .k = k,
                     .k_stride = kv_heads * dim,
                     .v = v,
                     .v_stride = kv_heads * dim,
                     .heads = heads,
                     .kv_heads = kv_heads,
                     .head_dim = dim,
                     .value_dim = dim,
                     .scale = 1.f / std::sqrt(static_cast<float>(dim)),
                     .sequences = batch.sequences,
                     .block_tables = state.block_tables,
                     .kv = state.kv,
                     .out = attended,
                     .out_stride = heads * dim});
  if (facts.output_gate) {
    ctx.ops.SigmoidMul(attended, dim, projected + dim, query_width, dim, tokens * heads, dim);
  }
  MatMul(ctx, w.matrix(Role::kOut), attended, heads * dim, tokens, out, ctx.hidden);
}

namespace {

// What the delta rule reads beside q, k and v.
struct DecayGates {
  const float* g;     // [tokens, value_heads] or [tokens, value_heads, key_dim]
  const float* beta;  // [tokens, value_heads]
};

DecayGates RunDecayGates(const MathContext& ctx, const DeltaNetFacts& facts, const LayerWeights& w,
                         int64_t tokens, const float* y) {
  const int64_t heads = LocalValueHeads(w);
  const MatrixView& decay = w.matrix(Role::kDeltaDecay);
  float* a = ctx.scratch.Take(tokens * decay.rows);
  float* b = ctx.scratch.Take(tokens * heads);
  MatMul(ctx, w.matrix(Role::kDeltaBeta), y, ctx.hidden, tokens, b, heads);
  if (facts.decay_rank == 0) {
    MatMul(ctx, decay, y, ctx.hidden, tokens, a, heads);
    float* g = ctx.scratch.Take(tokens * heads);
    float* beta = ctx.scratch.Take(tokens * heads);
    ctx.ops.DeltaGates(a, b, w.vector(Role::kDeltaALog).data(), w.vector(Role::kDeltaDtBias).data(),
                       tokens, heads, g, beta);
    return {g, beta};
  }
  float* rank = ctx.scratch.Take(tokens * facts.decay_rank);
  RunProjection(ctx, w.matrix(Role::kDeltaDecayRank), y, tokens, rank);
  RunProjection(ctx, decay, rank, tokens, a);
  ctx.ops.BoundedDeltaGates({.z = a,
                             .b = b,
                             .a_log = w.vector(Role::kDeltaALog).data(),
                             .dt_bias = w.vector(Role::kDeltaDtBias).data(),
                             .bound = static_cast<float>(facts.decay_bound),
                             .tokens = tokens,
                             .heads = heads,
                             .key_dim = facts.key_dim,
                             .g = a,
                             .beta = b});
  return {a, b};
}

}  // namespace

void RunDeltaNet(const MathContext& ctx, const DeltaNetFacts& facts, const LayerWeights& w,
                 const TokenBatch& batch, const DeltaNetState& state, const float* y, float* out) {
  Scratch::Scope scope(ctx.scratch);
  const int64_t tokens = batch.tokens;
  const MatrixView& wq = w.matrix(Role::kDeltaQuery);
  const MatrixView& wk = w.matrix(Role::kDeltaKey);
  const MatrixView& wv = w.matrix(Role::kDeltaValue);
  const int64_t channels = LocalConvChannels(facts, w);
  const int64_t value_heads = LocalValueHeads(w);
  const int64_t value_width = value_heads * facts.value_dim;

  float* u = ctx.scratch.Take(tokens * channels);  // [tokens, q | k | v]
  MatMul(ctx, wq, y, ctx.hidden, tokens, u, channels);
  MatMul(ctx, wk, y, ctx.hidden, tokens, u + wq.rows, channels);
  MatMul(ctx, wv, y, ctx.hidden, tokens, u + wq.rows + wk.rows, channels);
  float* c = ctx.scratch.Take(tokens * channels);  // [tokens, q | k | v]
  ctx.ops.CausalConv({.x = u,
                      .x_stride = channels,
                      .channels = channels,
                      .kernel = facts.conv_kernel,
                      .weight = w.vector(Role::kDeltaConv).data(),
                      .sequences = batch.sequences,
                      .states = state.conv,
                      .y = c,
                      .y_stride = channels});

  const DecayGates gates = RunDecayGates(ctx, facts, w, tokens, y);
  float* z = ctx.scratch.Take(tokens * value_width);  // [tokens, value_heads, value_dim]
  MatMul(ctx, w.matrix(Role::kDeltaGate), y, ctx.hidden, tokens, z, value_width);

  float* o = ctx.scratch.Take(tokens * value_width);  // [tokens, value_heads, value_dim]
  ctx.ops.DeltaRule({.q = c,
                     .k = c + wq.rows,
                     .v = c + wq.rows + wk.rows,
                     .q_stride = channels,
                     .k_stride = channels,
                     .v_stride = channels,
                     .g = gates.g,
                     .beta = gates.beta,
                     .channel_decay = facts.decay_rank > 0,
                     .key_heads = wq.rows / facts.key_dim,
                     .value_heads = value_heads,
                     .key_dim = facts.key_dim,
                     .value_dim = facts.value_dim,
                     .sequences = batch.sequences,
                     .states = state.recurrent,
                     .chunked = ctx.chunked_delta,
                     .out = o,
                     .out_stride = value_width});
  ctx.ops.GatedRmsNorm({.x = o,
                        .z = z,
                        .rows = tokens * value_heads,
                        .width = facts.value_dim,
                        .weight = w.vector(Role::kDeltaNorm).data(),
                        .gate = facts.gate,
                        .eps = ctx.norm_eps,
                        .y = o});
  MatMul(ctx, w.matrix(Role::kDeltaOut), o, value_width, tokens, out, ctx.hidden);
}

void RunRouter(const MathContext& ctx, const MoeFacts& facts, const LayerWeights& w, const float* y,
               int64_t tokens, int32_t* ids, float* weights) {
  Scratch::Scope scope(ctx.scratch);
  float* logits = ctx.scratch.Take(tokens * facts.experts);  // [tokens, experts]
  MatMul(ctx, w.matrix(Role::kRouter), y, ctx.hidden, tokens, logits, facts.experts);
  ctx.ops.Router({.logits = logits,
                  .tokens = tokens,
                  .experts = facts.experts,
                  .top_k = facts.top_k,
                  .renormalise = facts.renormalise,
                  .scores = facts.scores,
                  .bias = facts.selection_bias ? w.vector(Role::kRouterBias).data() : nullptr,
                  .ids = ids,
                  .weights = weights});
}

void RunShared(const MathContext& ctx, const LayerWeights& w, const float* y, int64_t tokens,
               float* out) {
  GatedMlp(ctx, w.matrix(Role::kSharedGate), w.matrix(Role::kSharedUp), w.matrix(Role::kSharedDown),
           y, tokens, out);
  if (!w.has(Role::kSharedScore)) return;
  Scratch::Scope scope(ctx.scratch);
  float* score = ctx.scratch.Take(tokens);  // [tokens, 1]
  MatMul(ctx, w.matrix(Role::kSharedScore), y, ctx.hidden, tokens, score, 1);
  ctx.ops.SigmoidMul(out, ctx.hidden, score, 1, 1, tokens, ctx.hidden);
}

void RunMlp(const MathContext& ctx, const LayerWeights& w, const float* y, int64_t tokens,
            float* out) {
  GatedMlp(ctx, w.matrix(Role::kDenseGate), w.matrix(Role::kDenseUp), w.matrix(Role::kDenseDown), y,
           tokens, out);
}

int64_t LocalConvChannels(const DeltaNetFacts& facts, const LayerWeights& w) {
  return static_cast<int64_t>(w.vector(Role::kDeltaConv).size()) / facts.conv_kernel;
}

int64_t LocalValueHeads(const LayerWeights& w) {
  return w.matrix(Role::kDeltaBeta).rows;
}

int64_t LocalKvHeads(const AttentionFacts& facts, const LayerWeights& w) {
  return w.matrix(Role::kKey).rows / facts.head_dim;
}

}  // namespace signalbox
