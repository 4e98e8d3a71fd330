// SPDX-License-Identifier: Apache-2.0
//
// CpuKernels: the single-thread kernels of one instruction set, as a table. CpuOps (cpu_ops.cc)
// cuts an operation into tasks for its thread pool; a kernel computes one task.
//
// A kernel's sums have an order that depends on the length of the sum, the weight format and the
// instruction set alone: never on how many tokens or rows the task holds or where it begins.
// Arguments are plain pointers, and what kernels call from this header is static: a function shared
// between files must not be compiled in one that has instruction-set flags.
//
//   const CpuKernels& k = KernelsOf(DetectIsa());
//   k.mat_mul({.x = x, .x_stride = 64, .tokens = 3, .w = &w, .row_end = w.rows, .y = y, ...});
#pragma once

#include <cstddef>
#include <cstdint>

#include "signalbox/ops/int8.h"
#include "signalbox/ops/ops.h"
#include "signalbox/tensor/matrix.h"

namespace signalbox {

// Weight rows that mat_mul decodes at a time; a task of a multiple of these wastes nothing.
inline constexpr int64_t kTileRows = 16;
// Floats of MatMulTask::tile for `cols` columns. Rows of a power of two would fall on one another
// in the cache: a line is left between them.
static constexpr int64_t TileFloats(int64_t cols) {
  return kTileRows * ((cols + 15) / 16 * 16 + 16);
}

// y[t, r - row_begin] for all tokens and rows [row_begin, row_end) of w.
struct MatMulTask {
  const float* x;  // [tokens, w->cols]
  int64_t x_stride;
  int64_t tokens;
  const MatrixView* w;
  int64_t row_begin;
  int64_t row_end;
  const float* bias;  // [row_end - row_begin] or null
  float* y;           // [tokens, row_end - row_begin]
  int64_t y_stride;
  float* tile;  // scratch of TileFloats(w->cols)
};

// Floats of Int8MatMulTask::tile for `cols` columns: kTileRows of bytes and scales, and what
// aligning them takes.
static constexpr int64_t Int8TileFloats(int64_t cols) {
  return kTileRows * (cols / 4 + cols / kMxBlock + 1);
}

// y[t, r - row_begin] for all tokens and rows [row_begin, row_end) of an MXFP4 matrix: Int8Dot(),
// which it equals in bits.
struct Int8MatMulTask {
  const Int8Block* x;  // [tokens, w->cols / 32]
  int64_t x_stride;    // in blocks
  int64_t tokens;
  const MatrixView* w;
  int64_t row_begin;
  int64_t row_end;
  float* y;  // [tokens, row_end - row_begin]
  int64_t y_stride;
  float* tile;  // scratch of Int8TileFloats(w->cols)
};

// Keys that attention takes at a time; blocks begin at absolute positions that are multiples of it.
inline constexpr int64_t kKeyBlock = 64;
// Floats of AttentionTask::scratch. `row` is those of a token's key and value that have to be
// converted, 0 where they are floats.
constexpr int64_t AttentionFloats(int64_t queries, int64_t group, int64_t row) {
  return queries * group * (kKeyBlock + 2) + kKeyBlock * row;
}

// Consecutive queries of one sequence for the query heads of one kv head.
struct AttentionTask {
  const float* q;  // [queries, group, head_dim]
  int64_t q_stride;
  int64_t queries;
  int64_t position;  // of the first query
  int64_t group;     // query heads that share the kv head
  int64_t head_dim;
  int64_t value_dim;
  float scale;
  const std::byte* keys;    // of this kv head in page row 0
  const std::byte* values;  // likewise; null: they are the front of the keys
  int64_t key_bytes;        // between page rows
  int64_t value_bytes;
  DType dtype;  // of keys and values
  const int32_t* block_table;
  int64_t block;
  float* out;  // [queries, group, value_dim]
  int64_t out_stride;
  float* scratch;
};

// Channels [begin, end) of every sequence.
struct CausalConvTask {
  const float* x;
  int64_t x_stride;
  int64_t channels;
  int64_t kernel;
  const float* weight;
  const SequenceSpan* sequences;
  float* const* states;
  float* const* after;  // [tokens of the batch] or null
  int64_t sequence_count;
  float* y;
  int64_t y_stride;
  int64_t begin;
  int64_t end;
  float* scratch;  // (end - begin + 15) * kernel floats
};

// Tokens of a chunk of the chunked delta rule, and tokens whose keys the recurrent one prepares at
// a time.
inline constexpr int64_t kDeltaChunk = 64;
inline constexpr int64_t kDeltaPrepared = 16;
// Floats of DeltaRuleTask::scratch.
constexpr int64_t DeltaFloats(int64_t key_dim, int64_t value_dim, bool chunked) {
  return chunked ? kDeltaChunk * (4 * key_dim + value_dim + 2 * kDeltaChunk + 1)
                 : kDeltaPrepared * 4 * key_dim;
}

// One value head of one sequence. The pointers are at the span's first token and at the head.
struct DeltaRuleTask {
  const float* q;  // [tokens, key_dim]
  const float* k;  // [tokens, key_dim]
  const float* v;  // [tokens, value_dim]
  int64_t q_stride;
  int64_t k_stride;
  int64_t v_stride;
  const float* g;  // [tokens] or, with channel_decay, [tokens, key_dim]
  int64_t g_stride;
  const float* beta;  // [tokens]
  int64_t beta_stride;
  bool channel_decay;
  int64_t tokens;
  int64_t key_dim;
  int64_t value_dim;
  float* state;         // [key_dim, value_dim]
  float* const* after;  // [tokens], or null: in place
  int64_t after_head;   // floats from a pointer of `after` to this head
  float* out;           // [tokens, value_dim]
  int64_t out_stride;
  float* scratch;
};

struct CpuKernels {
  void (*mat_mul)(const MatMulTask& task);
  // QuantiseRow(), which it equals in bits.
  void (*quantise)(const float* x, int64_t cols, Int8Block* out);
  void (*mat_mul_int8)(const Int8MatMulTask& task);
  // y[t, i] = sum_r x[t, r - row_begin] * w[r, i] over the task's rows: x [tokens, rows of the
  // task], y [tokens, w->cols].
  void (*mat_mul_transposed)(const MatMulTask& task);
  void (*decode_row)(const MatrixView& w, int64_t row, float* out);  // out [cols]
  // LoadFloats(), which it equals in bits.
  void (*load_floats)(const void* in, int64_t n, DType dtype, float* out);
  void (*rms_norm)(const RmsNormParams& p, int64_t begin, int64_t end);
  void (*gated_rms_norm)(const GatedRmsNormParams& p, int64_t begin, int64_t end);
  // weights [snapshots + 1]
  void (*mix)(const MixParams& p, int64_t begin, int64_t end, float* weights);
  // All heads of one token; cos and sin are [rotary / 2].
  void (*rope)(float* x, int64_t heads, int64_t head_dim, int64_t rotary, const float* cos,
               const float* sin);
  void (*attention)(const AttentionTask& task);
  void (*causal_conv)(const CausalConvTask& task);
  void (*delta_recurrent)(const DeltaRuleTask& task);
  void (*delta_chunked)(const DeltaRuleTask& task);
  // scratch [2 * experts]
  void (*router)(const RouterParams& p, int64_t begin, int64_t end, float* scratch);
  void (*glu)(const Activation& activation, const float* gate, const float* up, int64_t n,
              float* y);
  // gate is [width], or one number for all of x.
  void (*sigmoid_mul)(float* x, const float* gate, bool one_gate, int64_t width);
  void (*add_scaled)(const float* x, float a, int64_t n, float* y);
  // g = bound * sigmoid(slope * (z + bias))
  void (*bounded_decay)(const float* z, const float* bias, float slope, float bound, int64_t n,
                        float* g);
};

const CpuKernels& PortableKernels();
#if defined(__x86_64__)
const CpuKernels& Avx2Kernels();        // needs AVX2, FMA, F16C
const CpuKernels& Avx512Kernels();      // needs AVX-512 F, BW, VL, DQ and the above
const CpuKernels& Avx512VnniKernels();  // needs AVX-512 VNNI and the above
#endif
// The table of an instruction set, which this machine need not have.
const CpuKernels& KernelsOf(Isa isa);

}  // namespace signalbox
