// SPDX-License-Identifier: Apache-2.0
//
// Ops: every numeric operation of a model, as one table that a device implements.
//
// Activations are float, row-major; `*_stride` counts floats between rows. Weights are MatrixViews
// and stay packed. MakeReferenceOps() is the scalar definition of each operation, MakeCpuOps() the
// fast one; both are chosen at run time and tested against each other with tolerances derived from
// the inputs. Formulas without a source of their own follow the released models' published code.
//
// Promises that the engine builds on:
//  * No operation mixes tokens, except Attention, CausalConv and DeltaRule, which mix those of one
//    sequence. Zero tokens, zero rows and zero sequences are legal everywhere.
//  * For every operation but DeltaRule in chunked form, a token's bits depend neither on the other
//    tokens in the call, nor on how its sequence was cut into calls, nor on the number of threads;
//    so greedy text does not depend on batching. They do depend on the instruction set.
//  * Input that is not finite makes results that are not, for the tokens it reaches; no more.
//
// Shapes are the caller's business: pointers are as large as the comments say, outputs overlap no
// input unless said. An Ops has one caller at a time.
//
//   SB_ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops, MakeCpuOps({.threads = 2}));
//   ops->MatMul({.x = x, .x_stride = h, .tokens = t, .w = w, .y = y, .y_stride = w.rows});
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "signalbox/base/status.h"
#include "signalbox/tensor/dtype.h"
#include "signalbox/tensor/matrix.h"

namespace signalbox {

// y[t, o] = sum_i x[t, i] * w[o, i] (+ bias[o]).
struct MatMulParams {
  const float* x;  // [tokens, w.cols]
  int64_t x_stride;
  int64_t tokens;
  MatrixView w;                 // [out, in]
  const float* bias = nullptr;  // [out] or null
  float* y;                     // [tokens, w.rows]
  int64_t y_stride;
};

// y = x * rsqrt(mean(x^2) + eps) * (offset + weight), per row of `width`.
struct RmsNormParams {
  const float* x;  // [rows, width]
  int64_t x_stride;
  int64_t rows;
  int64_t width;
  const float* weight;  // [width]
  float offset;         // 1 for zero-centred weights (stored as the offset from one), else 0
  float eps;
  float* y;  // [rows, width]; may be x
  int64_t y_stride;
};

enum class Gate : uint8_t { kSilu, kSigmoid };

// y = rms_norm(x) * weight * gate(z), per row: norm first, then gate (delta rule output).
struct GatedRmsNormParams {
  const float* x;  // [rows, width]
  const float* z;  // [rows, width]
  int64_t rows;
  int64_t width;
  const float* weight;  // [width]
  Gate gate = Gate::kSilu;
  float eps;
  float* y;  // [rows, width]; may be x
};

// Block attention residuals: softmax attention of a row over its snapshots and itself. With v_e the
// row's snapshots in order, then x: s_e = sum(v_e * norm * query) * rsqrt(mean(v_e^2) + eps),
// y = sum_e softmax(s)_e v_e. Without snapshots y = x.
struct MixParams {
  const float* bank;  // [rows, snapshots, width]
  int64_t snapshots;
  const float* x;  // [rows, width]
  int64_t rows;
  int64_t width;
  const float* norm;   // [width]
  const float* query;  // [width]
  float eps;
  float* y;  // [rows, width]; may be x
};

// Rotates dims [0, rotary) of every head in pairs (i, i + rotary/2) by position * inv_freq[i]
// (half-split form).
struct RopeParams {
  float* x;  // [tokens, heads, head_dim], in place
  int64_t x_stride;
  int64_t tokens;
  int64_t heads;
  int64_t head_dim;
  int64_t rotary;
  const int32_t* positions;  // [tokens]
  const float* inv_freq;     // [rotary / 2]
  float scale = 1.f;         // multiplies cos and sin (YaRN)
};

// The new tokens of one sequence inside a flattened batch.
struct SequenceSpan {
  int64_t first;  // row of its first new token in the batch
  int64_t count;  // new tokens
  int64_t past;   // tokens already in the state
};

// Pages of a KV pool for one layer: row of token p of a sequence = block_table[p / block] * block +
// p % block. Numbers are rounded when they are stored, to nearest even; kF8E4m3 has no scale and
// saturates at 448, infinities too.
struct KvView {
  void* keys;     // [blocks * block, kv_heads, head_dim]
  void* values;   // [blocks * block, kv_heads, value_dim]; null: a value is the first value_dim
                  // numbers of its key
  int64_t block;  // tokens per page
  DType dtype = DType::kF32;  // kF32, kBf16 or kF8E4m3
};

// Causal attention of new tokens over past and new ones; writes the new keys and values to the
// pages first, and reads all of them as they are stored there, so that a token's numbers do not
// depend on which call brought its keys. Query head h reads kv head h / (heads / kv_heads); softmax
// in float. A block table covers past + count tokens; no two sequences of a call write to the same
// page.
struct AttentionParams {
  const float* q;  // [tokens, heads, head_dim]
  int64_t q_stride;
  const float* k;  // [tokens, kv_heads, head_dim], after norm and rotation
  int64_t k_stride;
  const float* v;  // [tokens, kv_heads, value_dim]; not read where values lie in keys
  int64_t v_stride;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t value_dim;
  float scale;
  std::span<const SequenceSpan> sequences;
  std::span<const int32_t* const> block_tables;  // one per sequence
  KvView kv;
  float* out;  // [tokens, heads, value_dim]
  int64_t out_stride;
};

// CausalConv and DeltaRule carry a state per sequence: states[s] is all that is known of what came
// before its first token here, and the caller clears it for a new sequence. By default it is
// updated in place. A caller that may have to go back to an earlier token keeps the states in
// between: after[t] is where the state after token t goes. The tokens of one sequence have a
// pointer each, to different buffers, or are all null (in place). With pointers, states[s] is read
// for the first token alone, so one of them may be states[s]; else it stays as it was. Bits are
// those of one call per token.
using StatesAfter = std::span<float* const>;  // empty (all in place) or [tokens]

// Causal depthwise convolution with kernel K over the tokens of each sequence, then SiLU.
// y_t[c] = silu(sum_j w[c, j] * in_{t-(K-1)+j}[c]); the state holds the last K-1 inputs.
struct CausalConvParams {
  const float* x;  // [tokens, channels]
  int64_t x_stride;
  int64_t channels;
  int64_t kernel;
  const float* weight;  // [channels, kernel]; the last tap is the current token
  std::span<const SequenceSpan> sequences;
  std::span<float* const> states;  // one per sequence: [kernel - 1, channels], oldest first
  StatesAfter after = {};
  float* y;  // [tokens, channels]
  int64_t y_stride;
};

// Gated delta rule per value head (Gated DeltaNet; with per-channel decay Kimi Delta Attention):
//   S <- e^g S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T q.
// q and k are l2-normalised here (eps 1e-6 inside the root) and q scaled by key_dim^-0.5.
struct DeltaRuleParams {
  const float* q;  // [tokens, key_heads, key_dim]
  const float* k;  // [tokens, key_heads, key_dim]
  const float* v;  // [tokens, value_heads, value_dim]
  int64_t q_stride;
  int64_t k_stride;
  int64_t v_stride;
  const float*
      g;  // [tokens, value_heads] log decay <= 0; with channel_decay [tokens, value_heads, key_dim]
  const float* beta;  // [tokens, value_heads]
  bool channel_decay = false;
  int64_t key_heads;
  int64_t value_heads;  // head j pairs with key head j / (value_heads / key_heads)
  int64_t key_dim;
  int64_t value_dim;
  std::span<const SequenceSpan> sequences;
  std::span<float* const> states;  // one per sequence: [value_heads, key_dim, value_dim]
  StatesAfter after = {};
  // Chunk form for spans of more than one token: faster on prompts, equal up to rounding. Sequences
  // with `after` take the recurrent form all the same: a chunk has no states in between.
  bool chunked = false;
  float* out;  // [tokens, value_heads, value_dim]
  int64_t out_stride;
};

// Log decays in (bound, 0) for every key channel (Kimi Delta Attention), and beta:
//   g = bound * sigmoid(exp(a_log[h]) * (z + dt_bias)),  beta = sigmoid(b).
struct BoundedDeltaGatesParams {
  const float* z;        // [tokens, heads, key_dim]
  const float* b;        // [tokens, heads]
  const float* a_log;    // [heads]
  const float* dt_bias;  // [heads, key_dim]
  float bound;           // negative
  int64_t tokens;
  int64_t heads;
  int64_t key_dim;
  float* g;     // [tokens, heads, key_dim]; may be z
  float* beta;  // [tokens, heads]; may be b
};

// What a gated MLP makes of gate g and up u.
//   kSilu  silu(g) * u
//   kSitu  b tanh(g / b) sigmoid(g) * c tanh(u / c), b = gate_bound, c = up_bound
struct Activation {
  enum class Kind : uint8_t { kSilu, kSitu };
  Kind kind = Kind::kSilu;
  float gate_bound = 0;
  float up_bound = 0;
};

// y[t, h, :] = w_h x[t, h, :], or w_h^T x[t, h, :] with `transposed`, where w_h are rows
// [h * head_rows + first, + rows) of w.
struct HeadMatMulParams {
  const float* x;  // [tokens, heads, w.cols]; transposed [tokens, heads, rows]
  int64_t x_stride;
  int64_t x_head_stride;  // floats between heads
  int64_t tokens;
  int64_t heads;
  MatrixView w;  // [heads * head_rows, cols]
  int64_t head_rows;
  int64_t first;
  int64_t rows;
  bool transposed = false;
  float* y;  // [tokens, heads, rows]; transposed [tokens, heads, w.cols]
  int64_t y_stride;
  int64_t y_head_stride;
};

enum class RouterScores : uint8_t { kSoftmax, kSigmoid };

// Scores of all experts, the k largest of score + bias (ties: lower id first), weighed by their
// scores, optionally renormalised over the k. Ids are distinct and in range whatever the logits.
// 1 <= top_k <= experts.
struct RouterParams {
  const float* logits;  // [tokens, experts]
  int64_t tokens;
  int64_t experts;
  int64_t top_k;
  bool renormalise;
  RouterScores scores = RouterScores::kSoftmax;
  const float* bias = nullptr;  // [experts] or null; with kSigmoid only
  int32_t* ids;                 // [tokens, top_k], descending score + bias
  float* weights;               // [tokens, top_k]
};

struct ExpertWeights {
  MatrixView gate;  // [inner, in]
  MatrixView up;    // [inner, in]
  MatrixView down;  // [out, inner]
};

// What a product makes of its activations first.
//   kFloat  nothing
//   kInt8   where the weights are MXFP4, rounds them to int8 with a scale per 32 columns (int8.h):
//           faster, and the same bits on every instruction set; other weights as with kFloat
enum class ActivationPrecision : uint8_t { kFloat, kInt8 };
std::string_view ToString(ActivationPrecision precision);

// Gated MLPs over rows already grouped by expert: y = down(activation(gate x, up x)) for rows
// [offsets[e], offsets[e+1]). No router weight is applied. The weights of an expert without rows
// are not touched.
struct GroupedMlpParams {
  const float* x;  // [rows, in]
  int64_t x_stride;
  std::span<const int64_t> offsets;  // [experts + 1]
  std::span<const ExpertWeights> experts;
  Activation activation;
  // Of x for gate and up, and of the hidden rows for down.
  ActivationPrecision precision = ActivationPrecision::kFloat;
  float* y;  // [rows, out]
  int64_t y_stride;
};

// out[i, :] = in[rows[i], :]; a negative row gives zeros.
struct GatherRowsParams {
  const void* in;     // of `dtype`
  int64_t in_stride;  // in elements
  int64_t width;
  std::span<const int64_t> rows;
  float* out;
  int64_t out_stride;
  DType dtype = DType::kF32;  // as KvView's
};

class Ops {
 public:
  virtual ~Ops() = default;
  // "reference", "cpu avx512", ...
  virtual std::string name() const = 0;

  // out[t, :] = table[ids[t], :].
  virtual void Embed(const MatrixView& table, std::span<const int32_t> ids, float* out) = 0;
  virtual void MatMul(const MatMulParams& p) = 0;
  virtual void RmsNorm(const RmsNormParams& p) = 0;
  virtual void GatedRmsNorm(const GatedRmsNormParams& p) = 0;
  virtual void Mix(const MixParams& p) = 0;
  virtual void Rope(const RopeParams& p) = 0;
  virtual void Attention(const AttentionParams& p) = 0;
  // The first half of Attention: writes the new keys and values to the pages.
  virtual void StoreKv(const AttentionParams& p) = 0;
  virtual void HeadMatMul(const HeadMatMulParams& p) = 0;
  virtual void CausalConv(const CausalConvParams& p) = 0;
  virtual void DeltaRule(const DeltaRuleParams& p) = 0;
  virtual void Router(const RouterParams& p) = 0;
  virtual void GroupedMlp(const GroupedMlpParams& p) = 0;
  virtual void GatherRows(const GatherRowsParams& p) = 0;
  // y[i] = activation(gate[i], up[i]); y may be gate or up.
  virtual void Glu(const Activation& activation, const float* gate, const float* up, int64_t n,
                   float* y) = 0;
  // x[t, :] *= sigmoid(gate[t, :]) (gate_width == width), or one gate per row (gate_width == 1).
  virtual void SigmoidMul(float* x, int64_t x_stride, const float* gate, int64_t gate_stride,
                          int64_t gate_width, int64_t rows, int64_t width) = 0;
  // y[i] += a * x[i].
  virtual void AddScaled(const float* x, float a, int64_t n, float* y) = 0;
  // beta = sigmoid(b); g = -exp(a_log) * softplus(a + dt_bias); all [tokens, heads], a_log and
  // dt_bias [heads]. g may be a, and beta b.
  virtual void DeltaGates(const float* a, const float* b, const float* a_log, const float* dt_bias,
                          int64_t tokens, int64_t heads, float* g, float* beta) = 0;
  virtual void BoundedDeltaGates(const BoundedDeltaGatesParams& p) = 0;
};

// The scalar definition, one thread, plain loops in float with double accumulators where sums are
// long.
std::unique_ptr<Ops> MakeReferenceOps();

enum class Isa : uint8_t { kPortable, kAvx2, kAvx512, kAvx512Vnni };
inline constexpr Isa kAllIsas[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni};
std::string_view ToString(Isa isa);
// The processor has it and the operating system saves its registers.
bool IsaAvailable(Isa isa);
// Best instruction set of this machine.
Isa DetectIsa();

struct CpuOptions {
  int threads = 1;
  Isa isa = DetectIsa();
};
// Refused when this machine lacks `isa`.
Result<std::unique_ptr<Ops>> MakeCpuOps(const CpuOptions& options);

}  // namespace signalbox
