// SPDX-License-Identifier: Apache-2.0
//
// CpuOps cuts operations into tasks, gives them to its thread pool and runs the kernels of one
// instruction set on each. Work too small to be worth a second thread stays on the caller.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "signalbox/base/check.h"
#include "signalbox/base/math.h"
#include "signalbox/base/thread_pool.h"
#include "signalbox/ops/cpu_kernels.h"

namespace signalbox {
namespace {

// Multiply-adds (or moved floats) of a task: 2 to 6 microseconds on one core, several times what
// handing it to a waiting thread costs.
constexpr int64_t kTaskWork = 1 << 17;
// Tokens that share one decoding of a tile of weights; more would push the tile out of the cache.
constexpr int64_t kTokenBlock = 96;
// Queries of an attention task: they share the loads of keys and values.
constexpr int64_t kQueryBlock = 16;

// This thread's scratch, kept between calls. The contents do not survive the next call.
float* Scratch(int64_t floats) {
  thread_local std::vector<float> buffer;
  if (static_cast<int64_t>(buffer.size()) < floats) buffer.resize(floats);
  return buffer.data();
}

// Rows that a task rounds to int8, and what a number of them costs, in multiply-adds.
constexpr int64_t kQuantiseRows = 8;
constexpr int64_t kQuantiseWork = 16;

// Floats of the tile of a product by an expert's matrix, however it is computed.
int64_t ExpertTileFloats(int64_t cols) {
  return std::max(TileFloats(cols), Int8TileFloats(cols));
}

// Rows of a task whose one row costs `row_work`: whole tiles, unless the matrix is smaller.
int64_t RowsPerTask(int64_t row_work, int64_t rows) {
  const int64_t wanted = std::min(kTaskWork / std::max<int64_t>(row_work, 1), rows);
  return std::max(kTileRows, wanted / kTileRows * kTileRows);
}

// Whether the states after this sequence's tokens are kept.
bool KeepsStates(StatesAfter after, const SequenceSpan& span) {
  if (after.empty() || span.count == 0) return false;
  const StatesAfter own = after.subspan(span.first, span.count);
  const int64_t given = span.count - std::count(own.begin(), own.end(), nullptr);
  SB_CHECK(given == 0 || given == span.count) << "a state is kept for some tokens only";
  return given > 0;
}

class CpuOps final : public Ops {
 public:
  CpuOps(const CpuOptions& options, const CpuKernels& kernels)
      : isa_(options.isa), kernels_(kernels), pool_(options.threads) {}

  std::string name() const override { return fmt::format("cpu {}", ToString(isa_)); }

  void Embed(const MatrixView& table, std::span<const int32_t> ids, float* out) override {
    for (size_t t = 0; t < ids.size(); ++t) {
      kernels_.decode_row(table, ids[t], out + static_cast<int64_t>(t) * table.cols);
    }
  }

  void MatMul(const MatMulParams& p) override {
    const int64_t token_block = std::min(p.tokens, kTokenBlock);
    const int64_t task_rows = RowsPerTask(token_block * p.w.cols, p.w.rows);
    const int64_t row_tasks = CeilDiv(p.w.rows, task_rows);
    const int64_t token_tasks = p.tokens == 0 ? 0 : CeilDiv(p.tokens, token_block);
    // Tasks that follow each other read the same tokens.
    ForTasks(row_tasks * token_tasks, p.tokens * p.w.rows * p.w.cols, [&](int64_t task) {
      const int64_t token = task / row_tasks * token_block;
      const int64_t row = task % row_tasks * task_rows;
      kernels_.mat_mul({.x = p.x + token * p.x_stride,
                        .x_stride = p.x_stride,
                        .tokens = std::min(token_block, p.tokens - token),
                        .w = &p.w,
                        .row_begin = row,
                        .row_end = std::min(row + task_rows, p.w.rows),
                        .bias = p.bias != nullptr ? p.bias + row : nullptr,
                        .y = p.y + token * p.y_stride + row,
                        .y_stride = p.y_stride,
                        .tile = Scratch(TileFloats(p.w.cols))});
    });
  }

  void RmsNorm(const RmsNormParams& p) override {
    ForRows(p.rows, p.width, [&](int64_t begin, int64_t end) { kernels_.rms_norm(p, begin, end); });
  }

  void GatedRmsNorm(const GatedRmsNormParams& p) override {
    ForRows(p.rows, 4 * p.width,
            [&](int64_t begin, int64_t end) { kernels_.gated_rms_norm(p, begin, end); });
  }

  void Mix(const MixParams& p) override {
    ForRows(p.rows, 4 * p.width * (p.snapshots + 1), [&](int64_t begin, int64_t end) {
      kernels_.mix(p, begin, end, Scratch(p.snapshots + 1));
    });
  }

  void Rope(const RopeParams& p) override {
    const int64_t half = p.rotary / 2;
    ForRows(p.tokens, p.rotary * (p.heads + 16), [&](int64_t begin, int64_t end) {
      float* cos = Scratch(p.rotary);
      float* sin = cos + half;
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t i = 0; i < half; ++i) {
          const float angle = static_cast<float>(p.positions[t]) * p.inv_freq[i];
          cos[i] = std::cos(angle) * p.scale;
          sin[i] = std::sin(angle) * p.scale;
        }
        kernels_.rope(p.x + t * p.x_stride, p.heads, p.head_dim, p.rotary, cos, sin);
      }
    });
  }

  void Attention(const AttentionParams& p) override;
  void StoreKv(const AttentionParams& p) override;
  void HeadMatMul(const HeadMatMulParams& p) override;

  void CausalConv(const CausalConvParams& p) override {
    int64_t tokens = 0;
    for (const SequenceSpan& s : p.sequences) {
      tokens += s.count;
      KeepsStates(p.after, s);  // for its check
    }
    const int64_t task_channels = 256;  // a multiple of any instruction set's lanes
    const int64_t tasks = p.sequences.empty() ? 0 : CeilDiv(p.channels, task_channels);
    ForTasks(tasks, 4 * tokens * p.channels, [&](int64_t task) {
      kernels_.causal_conv({.x = p.x,
                            .x_stride = p.x_stride,
                            .channels = p.channels,
                            .kernel = p.kernel,
                            .weight = p.weight,
                            .sequences = p.sequences.data(),
                            .states = p.states.data(),
                            .after = p.after.empty() ? nullptr : p.after.data(),
                            .sequence_count = static_cast<int64_t>(p.sequences.size()),
                            .y = p.y,
                            .y_stride = p.y_stride,
                            .begin = task * task_channels,
                            .end = std::min((task + 1) * task_channels, p.channels),
                            .scratch = Scratch((task_channels + 15) * p.kernel)});
    });
  }

  void DeltaRule(const DeltaRuleParams& p) override;

  void Router(const RouterParams& p) override {
    ForRows(p.tokens, 4 * p.experts, [&](int64_t begin, int64_t end) {
      kernels_.router(p, begin, end, Scratch(2 * p.experts));
    });
  }

  void GroupedMlp(const GroupedMlpParams& p) override;

  void GatherRows(const GatherRowsParams& p) override {
    const auto rows = static_cast<int64_t>(p.rows.size());
    ForRows(rows, p.width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* out = p.out + i * p.out_stride;
        if (p.rows[i] < 0) {
          std::fill_n(out, p.width, 0.f);
        } else {
          kernels_.load_floats(ElementAt(p.in, p.rows[i] * p.in_stride, p.dtype), p.width, p.dtype,
                               out);
        }
      }
    });
  }

  void Glu(const Activation& activation, const float* gate, const float* up, int64_t n,
           float* y) override {
    constexpr int64_t kPiece = 4096;
    ForRows(CeilDiv(n, kPiece), 2 * kPiece, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kPiece;
      const int64_t count = std::min(end * kPiece, n) - first;
      kernels_.glu(activation, gate + first, up + first, count, y + first);
    });
  }

  void SigmoidMul(float* x, int64_t x_stride, const float* gate, int64_t gate_stride,
                  int64_t gate_width, int64_t rows, int64_t width) override {
    ForRows(rows, 2 * width, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        kernels_.sigmoid_mul(x + r * x_stride, gate + r * gate_stride, gate_width == 1, width);
      }
    });
  }

  void AddScaled(const float* x, float a, int64_t n, float* y) override {
    constexpr int64_t kPiece = 4096;
    ForRows(CeilDiv(n, kPiece), kPiece, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kPiece;
      kernels_.add_scaled(x + first, a, std::min(end * kPiece, n) - first, y + first);
    });
  }

  void DeltaGates(const float* a, const float* b, const float* a_log, const float* dt_bias,
                  int64_t tokens, int64_t heads, float* g, float* beta) override {
    ForRows(tokens, 64 * heads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * heads; i < end * heads; ++i) {
        const float z = a[i] + dt_bias[i % heads];
        const float softplus = z > 20.f ? z : std::log1p(std::exp(z));
        g[i] = -std::exp(a_log[i % heads]) * softplus;
        beta[i] = 1.f / (1.f + std::exp(-b[i]));
      }
    });
  }

  void BoundedDeltaGates(const BoundedDeltaGatesParams& p) override {
    ForRows(p.tokens, 8 * p.heads * p.key_dim, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * p.heads; i < end * p.heads; ++i) {
        const int64_t h = i % p.heads;
        const float* z = p.z + i * p.key_dim;
        const float* bias = p.dt_bias + h * p.key_dim;
        kernels_.bounded_decay(z, bias, std::exp(p.a_log[h]), p.bound, p.key_dim,
                               p.g + i * p.key_dim);
        p.beta[i] = 1.f / (1.f + std::exp(-p.b[i]));
      }
    });
  }

 private:
  // fn(task) for tasks [0, n) that cost `work` together.
  template <typename Fn>
  void ForTasks(int64_t n, int64_t work, Fn fn) {
    const auto range = [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) fn(task);
    };
    if (work < 2 * kTaskWork) {
      range(0, n);
    } else {
      pool_.ParallelFor(n, 1, range);
    }
  }

  // fn(begin, end) over rows that cost `row_work` each.
  template <typename Fn>
  void ForRows(int64_t rows, int64_t row_work, Fn fn) {
    const int64_t grain = std::max<int64_t>(1, kTaskWork / std::max<int64_t>(row_work, 1));
    if (rows <= 0) return;
    if (rows <= grain) {
      fn(int64_t{0}, rows);
    } else {
      pool_.ParallelFor(rows, grain, fn);
    }
  }

  // Rows [begin, end) of one expert's matrix, for its tokens [token, token + tokens).
  struct ExpertTask {
    int64_t expert;
    int64_t token;
    int64_t tokens;
    int64_t begin;
    int64_t end;
  };
  static void AddExpertTasks(int64_t expert, int64_t first, int64_t tokens, int64_t rows,
                             int64_t row_work, std::vector<ExpertTask>& tasks);
  // Rows that GroupedMlp multiplies; with int8, quantised_ holds them too.
  struct ExpertInput {
    const float* rows;  // [rows, stride]
    int64_t stride;
    bool int8 = false;
    int64_t int8_stride = 0;  // in blocks
  };
  void Project(const ExpertInput& x, const ExpertTask& task, const MatrixView& w, float* y,
               int64_t y_stride, float* tile);
  void GateAndUp(const GroupedMlpParams& p, const ExpertInput& x, const ExpertTask& task,
                 float* hidden, int64_t hidden_stride);
  template <typename Cols>
  void QuantiseInput(const GroupedMlpParams& p, ExpertInput& x, Cols cols);

  Isa isa_;
  const CpuKernels& kernels_;
  ThreadPool pool_;
  // Of GroupedMlp, kept between calls.
  std::vector<float> hidden_;
  std::vector<ExpertTask> up_tasks_;
  std::vector<ExpertTask> down_tasks_;
  std::vector<Int8Block> quantised_;
  std::vector<ExpertTask> row_tasks_;
};

// ---- Attention

// Queries [first, first + count) of a sequence for one kv head.
struct QueryTask {
  size_t sequence;
  int64_t kv_head;
  int64_t first;
  int64_t count;
};

// Of one sequence.
void AppendKv(const AttentionParams& p, size_t s) {
  const SequenceSpan& span = p.sequences[s];
  const int64_t key_width = p.kv_heads * p.head_dim;
  const int64_t value_width = p.kv_heads * p.value_dim;
  for (int64_t i = 0; i < span.count; ++i) {
    const int64_t position = span.past + i;
    const int64_t row =
        p.block_tables[s][position / p.kv.block] * p.kv.block + position % p.kv.block;
    const int64_t t = span.first + i;
    StoreFloats(p.k + t * p.k_stride, key_width, p.kv.dtype,
                ElementAt(p.kv.keys, row * key_width, p.kv.dtype));
    if (p.kv.values == nullptr) continue;
    StoreFloats(p.v + t * p.v_stride, value_width, p.kv.dtype,
                ElementAt(p.kv.values, row * value_width, p.kv.dtype));
  }
}

void CpuOps::StoreKv(const AttentionParams& p) {
  for (size_t s = 0; s < p.sequences.size(); ++s) AppendKv(p, s);
}

void CpuOps::Attention(const AttentionParams& p) {
  const bool own_values = p.kv.values != nullptr;
  const int64_t row = p.kv.dtype == DType::kF32 ? 0 : p.head_dim + (own_values ? p.value_dim : 0);
  const int64_t size = ByteSize(p.kv.dtype);
  const auto of_head = [&](const void* pages, int64_t head, int64_t width) {
    return static_cast<const std::byte*>(ElementAt(pages, head * width, p.kv.dtype));
  };
  const int64_t group = p.heads / p.kv_heads;
  std::vector<QueryTask> tasks;
  int64_t work = 0;
  for (size_t s = 0; s < p.sequences.size(); ++s) {
    AppendKv(p, s);
    const SequenceSpan& span = p.sequences[s];
    work += span.count * (span.past + span.count) * p.heads * (p.head_dim + p.value_dim + 8);
    // Later queries see more keys: longest tasks first.
    for (int64_t block = CeilDiv(span.count, kQueryBlock) - 1; block >= 0; --block) {
      const int64_t first = block * kQueryBlock;
      for (int64_t h = 0; h < p.kv_heads; ++h) {
        tasks.push_back({s, h, first, std::min(kQueryBlock, span.count - first)});
      }
    }
  }
  ForTasks(static_cast<int64_t>(tasks.size()), work, [&](int64_t i) {
    const QueryTask& task = tasks[i];
    const SequenceSpan& span = p.sequences[task.sequence];
    const int64_t t = span.first + task.first;
    const int64_t head = task.kv_head * group;
    kernels_.attention(
        {.q = p.q + t * p.q_stride + head * p.head_dim,
         .q_stride = p.q_stride,
         .queries = task.count,
         .position = span.past + task.first,
         .group = group,
         .head_dim = p.head_dim,
         .value_dim = p.value_dim,
         .scale = p.scale,
         .keys = of_head(p.kv.keys, task.kv_head, p.head_dim),
         .values = own_values ? of_head(p.kv.values, task.kv_head, p.value_dim) : nullptr,
         .key_bytes = p.kv_heads * p.head_dim * size,
         .value_bytes = p.kv_heads * p.value_dim * size,
         .dtype = p.kv.dtype,
         .block_table = p.block_tables[task.sequence],
         .block = p.kv.block,
         .out = p.out + t * p.out_stride + head * p.value_dim,
         .out_stride = p.out_stride,
         .scratch = Scratch(AttentionFloats(task.count, group, row))});
  });
}

void CpuOps::HeadMatMul(const HeadMatMulParams& p) {
  const int64_t token_block = std::min(p.tokens, kTokenBlock);
  const int64_t token_tasks = p.tokens == 0 ? 0 : CeilDiv(p.tokens, token_block);
  ForTasks(p.heads * token_tasks, p.tokens * p.heads * p.rows * p.w.cols, [&](int64_t task) {
    const int64_t h = task / token_tasks;
    const int64_t token = task % token_tasks * token_block;
    const int64_t row = h * p.head_rows + p.first;
    const MatMulTask args = {.x = p.x + token * p.x_stride + h * p.x_head_stride,
                             .x_stride = p.x_stride,
                             .tokens = std::min(token_block, p.tokens - token),
                             .w = &p.w,
                             .row_begin = row,
                             .row_end = row + p.rows,
                             .bias = nullptr,
                             .y = p.y + token * p.y_stride + h * p.y_head_stride,
                             .y_stride = p.y_stride,
                             .tile = Scratch(TileFloats(p.w.cols))};
    (p.transposed ? kernels_.mat_mul_transposed : kernels_.mat_mul)(args);
  });
}

// ---- Delta rule

void CpuOps::DeltaRule(const DeltaRuleParams& p) {
  const auto heads = p.value_heads;
  int64_t tokens = 0;
  for (const SequenceSpan& s : p.sequences) tokens += s.count;
  const auto sequences = static_cast<int64_t>(p.sequences.size());
  ForTasks(sequences * heads, 4 * tokens * heads * p.key_dim * p.value_dim, [&](int64_t task) {
    const int64_t s = task / heads;
    const int64_t h = task % heads;
    const int64_t key_head = h / (heads / p.key_heads);
    const SequenceSpan& span = p.sequences[s];
    if (span.count == 0) return;
    const bool keep = KeepsStates(p.after, span);
    const bool chunked = p.chunked && span.count > 1 && !keep;
    const int64_t state_head = h * p.key_dim * p.value_dim;
    const int64_t g_width = p.channel_decay ? p.key_dim : 1;
    const DeltaRuleTask args = {.q = p.q + span.first * p.q_stride + key_head * p.key_dim,
                                .k = p.k + span.first * p.k_stride + key_head * p.key_dim,
                                .v = p.v + span.first * p.v_stride + h * p.value_dim,
                                .q_stride = p.q_stride,
                                .k_stride = p.k_stride,
                                .v_stride = p.v_stride,
                                .g = p.g + (span.first * heads + h) * g_width,
                                .g_stride = heads * g_width,
                                .beta = p.beta + span.first * heads + h,
                                .beta_stride = heads,
                                .channel_decay = p.channel_decay,
                                .tokens = span.count,
                                .key_dim = p.key_dim,
                                .value_dim = p.value_dim,
                                .state = p.states[s] + state_head,
                                .after = keep ? p.after.data() + span.first : nullptr,
                                .after_head = state_head,
                                .out = p.out + span.first * p.out_stride + h * p.value_dim,
                                .out_stride = p.out_stride,
                                .scratch = Scratch(DeltaFloats(p.key_dim, p.value_dim, chunked))};
    (chunked ? kernels_.delta_chunked : kernels_.delta_recurrent)(args);
  });
}

// ---- Grouped MLP

void CpuOps::AddExpertTasks(int64_t expert, int64_t first, int64_t tokens, int64_t rows,
                            int64_t row_work, std::vector<ExpertTask>& tasks) {
  for (int64_t token = 0; token < tokens; token += kTokenBlock) {
    const int64_t count = std::min(kTokenBlock, tokens - token);
    const int64_t task_rows = RowsPerTask(row_work * count, rows);
    for (int64_t row = 0; row < rows; row += task_rows) {
      tasks.push_back({expert, first + token, count, row, std::min(row + task_rows, rows)});
    }
  }
}

// y [tokens, y_stride] = rows [task.begin, task.end) of w times the task's tokens of x.
void CpuOps::Project(const ExpertInput& x, const ExpertTask& task, const MatrixView& w, float* y,
                     int64_t y_stride, float* tile) {
  if (x.int8 && w.format == WeightFormat::kMxfp4) {
    const int64_t stride = x.int8_stride;
    kernels_.mat_mul_int8({.x = quantised_.data() + task.token * stride,
                           .x_stride = stride,
                           .tokens = task.tokens,
                           .w = &w,
                           .row_begin = task.begin,
                           .row_end = task.end,
                           .y = y,
                           .y_stride = y_stride,
                           .tile = tile});
    return;
  }
  kernels_.mat_mul({.x = x.rows + task.token * x.stride,
                    .x_stride = x.stride,
                    .tokens = task.tokens,
                    .w = &w,
                    .row_begin = task.begin,
                    .row_end = task.end,
                    .bias = nullptr,
                    .y = y,
                    .y_stride = y_stride,
                    .tile = tile});
}

// hidden[t, begin .. end) = activation(gate x, up x)
void CpuOps::GateAndUp(const GroupedMlpParams& p, const ExpertInput& x, const ExpertTask& task,
                       float* hidden, int64_t hidden_stride) {
  const ExpertWeights& w = p.experts[task.expert];
  const int64_t rows = task.end - task.begin;
  const int64_t tile_floats = ExpertTileFloats(w.gate.cols);
  float* tile = Scratch(tile_floats + task.tokens * rows);
  float* gate = tile + tile_floats;  // [tokens, rows]
  float* up = hidden + task.token * hidden_stride + task.begin;
  Project(x, task, w.gate, gate, rows, tile);
  Project(x, task, w.up, up, hidden_stride, tile);
  for (int64_t t = 0; t < task.tokens; ++t) {
    float* row = up + t * hidden_stride;
    kernels_.glu(p.activation, gate + t * rows, row, rows, row);
  }
}

// Rounds the first cols(w) numbers of every row of x for which that is positive: once a row,
// however many tasks read it.
template <typename Cols>
void CpuOps::QuantiseInput(const GroupedMlpParams& p, ExpertInput& x, Cols cols) {
  int64_t widest = 0;
  int64_t work = 0;
  row_tasks_.clear();
  for (size_t e = 0; e < p.experts.size(); ++e) {
    const int64_t tokens = p.offsets[e + 1] - p.offsets[e];
    const int64_t width = tokens == 0 ? 0 : cols(p.experts[e]);
    widest = std::max(widest, width);
    work += tokens * width * kQuantiseWork;
    for (int64_t token = 0; width > 0 && token < tokens; token += kQuantiseRows) {
      row_tasks_.push_back({.expert = static_cast<int64_t>(e),
                            .token = p.offsets[e] + token,
                            .tokens = std::min(kQuantiseRows, tokens - token),
                            .begin = 0,
                            .end = width});
    }
  }
  x.int8 = true;
  x.int8_stride = widest / kMxBlock;
  const auto blocks = static_cast<size_t>(p.offsets[p.experts.size()] * x.int8_stride);
  if (quantised_.size() < blocks) quantised_.resize(blocks);
  ForTasks(static_cast<int64_t>(row_tasks_.size()), work, [&](int64_t i) {
    const ExpertTask& task = row_tasks_[i];
    for (int64_t t = task.token; t < task.token + task.tokens; ++t) {
      kernels_.quantise(x.rows + t * x.stride, task.end, quantised_.data() + t * x.int8_stride);
    }
  });
}

void CpuOps::GroupedMlp(const GroupedMlpParams& p) {
  up_tasks_.clear();
  down_tasks_.clear();
  int64_t inner = 0;  // widest
  int64_t work = 0;
  for (size_t e = 0; e < p.experts.size(); ++e) {
    const ExpertWeights& w = p.experts[e];
    const int64_t first = p.offsets[e];
    const int64_t tokens = p.offsets[e + 1] - first;
    if (tokens == 0) continue;
    const auto expert = static_cast<int64_t>(e);
    AddExpertTasks(expert, first, tokens, w.gate.rows, 2 * w.gate.cols, up_tasks_);
    AddExpertTasks(expert, first, tokens, w.down.rows, w.down.cols, down_tasks_);
    inner = std::max(inner, w.gate.rows);
    work += tokens * w.gate.rows * (2 * w.gate.cols + w.down.rows);
  }
  if (up_tasks_.empty()) return;
  const bool int8 = p.precision == ActivationPrecision::kInt8;
  const auto packed_cols = [](const MatrixView& w) {
    return w.format == WeightFormat::kMxfp4 ? w.cols : 0;
  };
  const int64_t rows = p.offsets[p.experts.size()];
  if (static_cast<int64_t>(hidden_.size()) < rows * inner) hidden_.resize(rows * inner);
  float* hidden = hidden_.data();
  ExpertInput x = {.rows = p.x, .stride = p.x_stride};
  if (int8) {
    QuantiseInput(p, x, [&](const ExpertWeights& w) {
      return std::max(packed_cols(w.gate), packed_cols(w.up));
    });
  }
  ForTasks(static_cast<int64_t>(up_tasks_.size()), work,
           [&](int64_t i) { GateAndUp(p, x, up_tasks_[i], hidden, inner); });
  ExpertInput down_x = {.rows = hidden, .stride = inner};
  if (int8) QuantiseInput(p, down_x, [&](const ExpertWeights& w) { return packed_cols(w.down); });
  ForTasks(static_cast<int64_t>(down_tasks_.size()), work, [&](int64_t i) {
    const ExpertTask& task = down_tasks_[i];
    const MatrixView& down = p.experts[task.expert].down;
    Project(down_x, task, down, p.y + task.token * p.y_stride + task.begin, p.y_stride,
            Scratch(ExpertTileFloats(down.cols)));
  });
}

}  // namespace

const CpuKernels& KernelsOf(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return Avx2Kernels();
    case Isa::kAvx512:
      return Avx512Kernels();
    case Isa::kAvx512Vnni:
      return Avx512VnniKernels();
#endif
    default:
      return PortableKernels();
  }
}

Result<std::unique_ptr<Ops>> MakeCpuOps(const CpuOptions& options) {
  if (options.threads < 1) {
    return InvalidArgument({.what = "no threads to compute with",
                            .found = std::to_string(options.threads),
                            .expected = "at least 1"});
  }
  if (!IsaAvailable(options.isa)) {
    return Refused({.what = fmt::format("this machine lacks {}", ToString(options.isa)),
                    .expected = fmt::format("at most {}", ToString(DetectIsa())),
                    .remedy = "choose a lower instruction set"});
  }
  return std::unique_ptr<Ops>(std::make_unique<CpuOps>(options, KernelsOf(options.isa)));
}

}  // namespace signalbox
