// SPDX-License-Identifier: Apache-2.0
//
// Speed of the operations that carry a model, on all instruction sets of this machine. Weights are
// larger than the caches where a decode step would find them in memory.
//
//   ops_benchmark --benchmark_filter='MatMul/mxfp4.*avx512'
//
// Counters: bytes_per_second counts weights (or state) once per call, flops two per multiply-add.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <cstring>
#include <string>
#include <vector>

#include "signalbox/base/check.h"
#include "signalbox/ops/ops.h"

namespace signalbox {
namespace {

// Any bytes are weights as good as any other; exponents are kept where products stay finite.
struct Weight {
  std::vector<std::byte> data;
  std::vector<std::byte> scale;
  MatrixView view;
};

Weight MakeWeight(WeightFormat format, int64_t rows, int64_t cols) {
  Weight w;
  const int64_t row_bytes = PackedBytes(format, cols);
  w.data.resize(rows * row_bytes);
  uint32_t state = 1;
  for (std::byte& b : w.data) {
    state = state * 1664525 + 1013904223;
    b = static_cast<std::byte>(format == WeightFormat::kMxfp4 ? state >> 24 : 0x3c);
  }
  w.scale.assign(rows * cols / kMxBlock, std::byte{120});
  w.view = {.format = format,
            .rows = rows,
            .cols = cols,
            .data = w.data.data(),
            .row_bytes = row_bytes,
            .scale = w.scale.data(),
            .scale_row_bytes = cols / kMxBlock};
  return w;
}

std::unique_ptr<Ops> Make(Isa isa, int threads) {
  auto ops = MakeCpuOps({.threads = threads, .isa = isa});
  SB_CHECK(ops.ok()) << ops.status().ToString();
  return std::move(*ops);
}

void Report(benchmark::State& state, double multiply_adds, double bytes) {
  state.counters["flops"] =
      benchmark::Counter(2 * multiply_adds, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["bytes_per_second"] =
      benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
}

// A projection of one of `matrices` weights, in turn.
void MatMul(benchmark::State& state, Isa isa, int threads, WeightFormat format, int64_t tokens,
            int64_t rows, int64_t cols, int64_t matrices) {
  const auto ops = Make(isa, threads);
  std::vector<Weight> weights;
  for (int64_t i = 0; i < matrices; ++i) weights.push_back(MakeWeight(format, rows, cols));
  const std::vector<float> x(tokens * cols, 0.5f);
  std::vector<float> y(tokens * rows);
  size_t i = 0;
  for (auto _ : state) {
    ops->MatMul({.x = x.data(),
                 .x_stride = cols,
                 .tokens = tokens,
                 .w = weights[i++ % weights.size()].view,
                 .y = y.data(),
                 .y_stride = rows});
  }
  Report(state, static_cast<double>(tokens * rows * cols),
         static_cast<double>(weights[0].view.bytes()));
}

// MXFP4 experts with `tokens` rows each.
void GroupedMlp(benchmark::State& state, Isa isa, int threads, int64_t experts, int64_t tokens,
                int64_t hidden, int64_t inner,
                ActivationPrecision precision = ActivationPrecision::kFloat) {
  const auto ops = Make(isa, threads);
  std::vector<Weight> storage;
  for (int64_t e = 0; e < experts; ++e) {
    storage.push_back(MakeWeight(WeightFormat::kMxfp4, inner, hidden));
    storage.push_back(MakeWeight(WeightFormat::kMxfp4, inner, hidden));
    storage.push_back(MakeWeight(WeightFormat::kMxfp4, hidden, inner));
  }
  std::vector<ExpertWeights> weights;
  std::vector<int64_t> offsets = {0};
  int64_t bytes = 0;
  for (int64_t e = 0; e < experts; ++e) {
    weights.push_back({storage[3 * e].view, storage[3 * e + 1].view, storage[3 * e + 2].view});
    offsets.push_back(offsets.back() + tokens);
    for (int64_t m = 0; m < 3; ++m) bytes += storage[3 * e + m].view.bytes();
  }
  const std::vector<float> x(experts * tokens * hidden, 0.5f);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    ops->GroupedMlp({.x = x.data(),
                     .x_stride = hidden,
                     .offsets = offsets,
                     .experts = weights,
                     .precision = precision,
                     .y = y.data(),
                     .y_stride = hidden});
  }
  Report(state, static_cast<double>(3 * experts * tokens * hidden * inner),
         static_cast<double>(bytes));
}

// 32 value heads of 128 x 128, the released size.
void DeltaRule(benchmark::State& state, Isa isa, int threads, int64_t sequences, int64_t tokens,
               bool chunked) {
  constexpr int64_t kHeads = 32;
  constexpr int64_t kDim = 128;
  const auto ops = Make(isa, threads);
  const int64_t all = sequences * tokens;
  std::vector<float> qkv(all * kHeads * kDim, 0.3f);
  const std::vector<float> g(all * kHeads, -0.1f);
  const std::vector<float> beta(all * kHeads, 0.5f);
  std::vector<float> out(all * kHeads * kDim);
  std::vector<std::vector<float>> states(sequences, std::vector<float>(kHeads * kDim * kDim, 0.1f));
  std::vector<SequenceSpan> spans;
  std::vector<float*> pointers;
  for (int64_t s = 0; s < sequences; ++s) {
    spans.push_back({s * tokens, tokens, 0});
    pointers.push_back(states[s].data());
  }
  for (auto _ : state) {
    ops->DeltaRule({.q = qkv.data(),
                    .k = qkv.data(),
                    .v = qkv.data(),
                    .q_stride = kHeads * kDim,
                    .k_stride = kHeads * kDim,
                    .v_stride = kHeads * kDim,
                    .g = g.data(),
                    .beta = beta.data(),
                    .key_heads = kHeads,
                    .value_heads = kHeads,
                    .key_dim = kDim,
                    .value_dim = kDim,
                    .sequences = spans,
                    .states = pointers,
                    .chunked = chunked,
                    .out = out.data(),
                    .out_stride = kHeads * kDim});
  }
  Report(state, static_cast<double>(4 * all * kHeads * kDim * kDim),
         static_cast<double>(2 * sequences * kHeads * kDim * kDim) * sizeof(float));
}

// One layer of a 32-head, 4-kv-head model; `past` tokens in pages of 16.
void Attention(benchmark::State& state, Isa isa, int threads, int64_t tokens, int64_t past,
               DType dtype) {
  constexpr int64_t kHeads = 32;
  constexpr int64_t kKvHeads = 4;
  constexpr int64_t kDim = 128;
  constexpr int64_t kBlock = 16;
  const auto ops = Make(isa, threads);
  const int64_t pages = (past + tokens + kBlock - 1) / kBlock;
  // Zeros of any type.
  std::vector<std::byte> keys(pages * kBlock * kKvHeads * kDim * ByteSize(dtype));
  std::vector<std::byte> values = keys;
  std::vector<int32_t> table(pages);
  for (int64_t i = 0; i < pages; ++i) table[i] = static_cast<int32_t>(i);
  const std::vector<float> qkv(tokens * kHeads * kDim, 0.1f);
  std::vector<float> out(qkv.size());
  const SequenceSpan span = {0, tokens, past};
  const int32_t* tables[] = {table.data()};
  for (auto _ : state) {
    ops->Attention({.q = qkv.data(),
                    .q_stride = kHeads * kDim,
                    .k = qkv.data(),
                    .k_stride = kKvHeads * kDim,
                    .v = qkv.data(),
                    .v_stride = kKvHeads * kDim,
                    .heads = kHeads,
                    .kv_heads = kKvHeads,
                    .head_dim = kDim,
                    .value_dim = kDim,
                    .scale = 0.088f,
                    .sequences = {&span, 1},
                    .block_tables = tables,
                    .kv = {keys.data(), values.data(), kBlock, dtype},
                    .out = out.data(),
                    .out_stride = kHeads * kDim});
  }
  const double pairs = static_cast<double>(tokens) * (past + 0.5 * static_cast<double>(tokens + 1));
  Report(state, 2 * pairs * kHeads * kDim,
         2.0 * static_cast<double>(past + tokens) * kKvHeads * kDim *
             static_cast<double>(ByteSize(dtype)));
}

// The read probe of the same run: what a decode step could reach.
void ReadProbe(benchmark::State& state) {
  std::vector<uint64_t> data(size_t{1} << 24, 1);
  uint64_t sum = 0;
  for (auto _ : state) {
    for (size_t i = 0; i < data.size(); i += 8) {
      sum += data[i] ^ data[i + 1] ^ data[i + 2] ^ data[i + 3] ^ data[i + 4] ^ data[i + 5] ^
             data[i + 6] ^ data[i + 7];
    }
    benchmark::DoNotOptimize(sum);
  }
  Report(state, 0, static_cast<double>(data.size() * sizeof(uint64_t)));
}

template <typename Fn>
void Register(const std::string& name, Isa isa, int threads, Fn fn) {
  benchmark::RegisterBenchmark(
      fmt::format("{}/{}/threads:{}", name, ToString(isa), threads).c_str(), fn)
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

const bool kRegistered = [] {
  benchmark::RegisterBenchmark("ReadProbe/threads:1", ReadProbe)->UseRealTime();
  for (const Isa isa : kAllIsas) {
    if (!IsaAvailable(isa)) continue;
    for (const int threads : {1, 2}) {
      for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kBf16}) {
        for (const int64_t tokens : {1, 4, 16, 512}) {
          Register(fmt::format("MatMul/{}/2048x2048/tokens:{}", ToString(format), tokens), isa,
                   threads, [=](benchmark::State& s) {
                     MatMul(s, isa, threads, format, tokens, 2048, 2048, tokens < 16 ? 64 : 1);
                   });
        }
        Register(fmt::format("MatMul/{}/256x256/tokens:16", ToString(format)), isa, threads,
                 [=](benchmark::State& s) { MatMul(s, isa, threads, format, 16, 256, 256, 1); });
      }
      for (const auto precision : {ActivationPrecision::kFloat, ActivationPrecision::kInt8}) {
        for (const int64_t tokens : {1, 4, 32, 96}) {
          const int64_t experts = tokens > 4 ? 2 : 32;  // in the cache or in memory
          Register(fmt::format("Experts/{}/tokens:{}", ToString(precision), tokens), isa, threads,
                   [=](benchmark::State& s) {
                     GroupedMlp(s, isa, threads, experts, tokens, 2048, 768, precision);
                   });
        }
      }
      Register("GroupedMlp/128x8/hidden:2048/inner:768", isa, threads,
               [=](benchmark::State& s) { GroupedMlp(s, isa, threads, 128, 8, 2048, 768); });
      Register("GroupedMlp/64x1/hidden:2048/inner:768", isa, threads,
               [=](benchmark::State& s) { GroupedMlp(s, isa, threads, 64, 1, 2048, 768); });
      Register("GroupedMlp/16x2/hidden:256/inner:128", isa, threads,
               [=](benchmark::State& s) { GroupedMlp(s, isa, threads, 16, 2, 256, 128); });
      Register("DeltaRule/decode/sequences:16", isa, threads,
               [=](benchmark::State& s) { DeltaRule(s, isa, threads, 16, 1, false); });
      Register("DeltaRule/recurrent/tokens:256", isa, threads,
               [=](benchmark::State& s) { DeltaRule(s, isa, threads, 1, 256, false); });
      Register("DeltaRule/chunked/tokens:256", isa, threads,
               [=](benchmark::State& s) { DeltaRule(s, isa, threads, 1, 256, true); });
      for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF8E4m3}) {
        Register(fmt::format("Attention/decode/past:4096/{}", ToString(dtype)), isa, threads,
                 [=](benchmark::State& s) { Attention(s, isa, threads, 1, 4096, dtype); });
        Register(fmt::format("Attention/prefill/tokens:512/{}", ToString(dtype)), isa, threads,
                 [=](benchmark::State& s) { Attention(s, isa, threads, 512, 0, dtype); });
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace signalbox
