// SPDX-License-Identifier: Apache-2.0
#include "signalbox/model/layer_math.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>

#include "signalbox/base/check.h"
#include "signalbox/model/math_util.h"
#include "signalbox/tensor/dtype.h"

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

RopeTable MakeRopeTable(const RopeFacts& facts, bool bf16) {
  RopeTable table;
  for (int64_t i = 0; i < facts.rotary / 2; ++i) {
    table.inv_freq.push_back(static_cast<float>(
        std::pow(facts.theta, -2.0 * static_cast<double>(i) / static_cast<double>(facts.rotary))));
  }
  if (facts.yarn_factor > 0) ApplyYarn(facts, &table);
  for (float& f : table.inv_freq) f = bf16 ? Bf16ToFloat(FloatToBf16(f)) : f;
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

// What the projections of a gated delta net yield.
struct DeltaInputs {
  float* u;  // [tokens, q | k | v]
  float* z;  // [tokens, value_heads, value_dim]
  float* b;  // [tokens, value_heads]
  float* a;  // [tokens, value_heads] or [tokens, value_heads, key_dim]
};

// A run of columns of every group of a grouped projection.
struct GroupPart {
  int64_t first;
  int64_t width;
};

// y [tokens, part, groups, width of part] <- those parts of x [tokens, groups, group_width].
void Ungroup(const MathContext& ctx, const float* x, int64_t tokens, int64_t groups,
             int64_t group_width, std::initializer_list<GroupPart> parts, float* y) {
  int64_t unit = group_width;  // floats that always move together
  for (const GroupPart& p : parts) unit = std::gcd(unit, std::gcd(p.first, p.width));
  std::vector<int64_t> order;
  for (int64_t t = 0; t < tokens; ++t) {
    for (const GroupPart& p : parts) {
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = ((t * groups + g) * group_width + p.first) / unit;
        for (int64_t i = 0; i < p.width / unit; ++i) order.push_back(first + i);
      }
    }
  }
  ctx.ops.GatherRows(
      {.in = x, .in_stride = unit, .width = unit, .rows = order, .out = y, .out_stride = unit});
}

void ProjectGrouped(const MathContext& ctx, const DeltaNetFacts& facts, const LayerWeights& w,
                    int64_t tokens, const float* y, const DeltaInputs& out) {
  Scratch::Scope scope(ctx.scratch);
  const MatrixView& all = w.matrix(Role::kDeltaGrouped);
  const MatrixView& rates = w.matrix(Role::kDeltaGroupedRates);
  const int64_t ratio = facts.value_heads / facts.key_heads;
  const int64_t k = facts.key_dim;
  const int64_t v = ratio * facts.value_dim;
  const int64_t width = 2 * k + 2 * v;
  const int64_t groups = all.rows / width;
  float* x = ctx.scratch.Take(tokens * all.rows);    // [tokens, groups, q | k | v | z]
  float* r = ctx.scratch.Take(tokens * rates.rows);  // [tokens, groups, b | a]
  RunProjection(ctx, all, y, tokens, x);
  RunProjection(ctx, rates, y, tokens, r);
  Ungroup(ctx, x, tokens, groups, width, {{0, k}, {k, k}, {2 * k, v}}, out.u);
  Ungroup(ctx, x, tokens, groups, width, {{2 * k + v, v}}, out.z);
  Ungroup(ctx, r, tokens, groups, 2 * ratio, {{0, ratio}}, out.b);
  Ungroup(ctx, r, tokens, groups, 2 * ratio, {{ratio, ratio}}, out.a);
}

void ProjectEach(const MathContext& ctx, const DeltaNetFacts& facts, const LayerWeights& w,
                 int64_t tokens, const float* y, const DeltaInputs& out) {
  const int64_t channels = LocalConvChannels(facts, w);
  int64_t at = 0;
  for (Role role : {Role::kDeltaQuery, Role::kDeltaKey, Role::kDeltaValue}) {
    const MatrixView& m = w.matrix(role);
    MatMul(ctx, m, y, ctx.hidden, tokens, out.u + at, channels);
    at += m.rows;
  }
  RunProjection(ctx, w.matrix(Role::kDeltaGate), y, tokens, out.z);
  RunProjection(ctx, w.matrix(Role::kDeltaBeta), y, tokens, out.b);
  if (facts.decay_rank == 0) {
    RunProjection(ctx, w.matrix(Role::kDeltaDecay), y, tokens, out.a);
    return;
  }
  Scratch::Scope scope(ctx.scratch);
  float* rank = ctx.scratch.Take(tokens * facts.decay_rank);
  RunProjection(ctx, w.matrix(Role::kDeltaDecayRank), y, tokens, rank);
  RunProjection(ctx, w.matrix(Role::kDeltaDecay), rank, tokens, out.a);
}

// Log decays g and step sizes beta, in place of a and b.
void RunDecayGates(const MathContext& ctx, const DeltaNetFacts& facts, const LayerWeights& w,
                   int64_t tokens, const DeltaInputs& in) {
  const float* a_log = w.vector(Role::kDeltaALog).data();
  const float* dt_bias = w.vector(Role::kDeltaDtBias).data();
  if (facts.decay_rank == 0) {
    ctx.ops.DeltaGates(in.a, in.b, a_log, dt_bias, tokens, LocalValueHeads(w), in.a, in.b);
    return;
  }
  ctx.ops.BoundedDeltaGates({.z = in.a,
                             .b = in.b,
                             .a_log = a_log,
                             .dt_bias = dt_bias,
                             .bound = static_cast<float>(facts.decay_bound),
                             .tokens = tokens,
                             .heads = LocalValueHeads(w),
                             .key_dim = facts.key_dim,
                             .g = in.a,
                             .beta = in.b});
}

}  // namespace

void RunDeltaNet(const MathContext& ctx, const DeltaNetFacts& facts, const LayerWeights& w,
                 const TokenBatch& batch, const DeltaNetState& state, const float* y, float* out) {
  Scratch::Scope scope(ctx.scratch);
  const int64_t tokens = batch.tokens;
  const int64_t channels = LocalConvChannels(facts, w);
  const int64_t value_heads = LocalValueHeads(w);
  const int64_t value_width = value_heads * facts.value_dim;
  const int64_t key_width = (channels - value_width) / 2;

  const DeltaInputs in{
      .u = ctx.scratch.Take(tokens * channels),
      .z = ctx.scratch.Take(tokens * value_width),
      .b = ctx.scratch.Take(tokens * value_heads),
      .a = ctx.scratch.Take(tokens * value_heads * (facts.decay_rank > 0 ? facts.key_dim : 1))};
  (facts.grouped ? ProjectGrouped : ProjectEach)(ctx, facts, w, tokens, y, in);
  float* c = ctx.scratch.Take(tokens * channels);  // [tokens, q | k | v]
  ctx.ops.CausalConv({.x = in.u,
                      .x_stride = channels,
                      .channels = channels,
                      .kernel = facts.conv_kernel,
                      .weight = w.vector(Role::kDeltaConv).data(),
                      .sequences = batch.sequences,
                      .states = state.conv,
                      .after = state.conv_after,
                      .y = c,
                      .y_stride = channels});

  RunDecayGates(ctx, facts, w, tokens, in);
  float* o = ctx.scratch.Take(tokens * value_width);  // [tokens, value_heads, value_dim]
  ctx.ops.DeltaRule({.q = c,
                     .k = c + key_width,
                     .v = c + 2 * key_width,
                     .q_stride = channels,
                     .k_stride = channels,
                     .v_stride = channels,
                     .g = in.a,
                     .beta = in.b,
                     .channel_decay = facts.decay_rank > 0,
                     .key_heads = key_width / facts.key_dim,
                     .value_heads = value_heads,
                     .key_dim = facts.key_dim,
                     .value_dim = facts.value_dim,
                     .sequences = batch.sequences,
                     .states = state.recurrent,
                     .after = state.recurrent_after,
                     .chunked = ctx.chunked_delta,
                     .out = o,
                     .out_stride = value_width});
  ctx.ops.GatedRmsNorm({.x = o,
                        .z = in.z,
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
  return static_cast<int64_t>(w.vector(Role::kDeltaALog).size());
}

int64_t LocalKvHeads(const AttentionFacts& facts, const LayerWeights& w) {
  return w.matrix(Role::kKey).rows / facts.head_dim;
}

}  // namespace signalbox
