// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

#include "signalbox/ops/ops_test_util.h"

namespace signalbox {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kF16,
                                     WeightFormat::kMxfp4, WeightFormat::kFp8Block};

std::vector<float> Product(Ops& ops, const Rows& x, const MatrixView& w, const float* bias,
                           int64_t y_stride) {
  Rows y = EmptyRows(x.rows, w.rows, y_stride);
  ops.MatMul({.x = x.data.data(),
              .x_stride = x.stride,
              .tokens = x.rows,
              .w = w,
              .bias = bias,
              .y = y.data.data(),
              .y_stride = y_stride});
  return y.data;
}

// |fl(sum) - sum| <= (terms in the longest chain) eps sum |x w|; at least 8 lanes share the terms.
std::vector<double> ProductBound(const Rows& x, const MatrixView& w, const float* bias,
                                 int64_t y_stride) {
  std::vector<double> bound(EmptyRows(x.rows, w.rows, y_stride).data.size(), 0);
  const double chain = static_cast<double>(w.cols) / 8 + 8;
  std::vector<float> row(w.cols);
  for (int64_t r = 0; r < w.rows; ++r) {
    w.DecodeRow(r, row);
    for (int64_t t = 0; t < x.rows; ++t) {
      double sum = bias != nullptr ? std::fabs(bias[r]) : 0;
      for (int64_t c = 0; c < w.cols; ++c) {
        sum += std::fabs(static_cast<double>(row[c]) * x.at(t)[c]);
      }
      bound[t * y_stride + r] = chain * kEpsilon * sum;
    }
  }
  return bound;
}

void ExpectProduct(const Rows& x, const MatrixView& w, const float* bias, int64_t y_stride) {
  const std::vector<float> want = Product(Reference(), x, w, bias, y_stride);
  const std::vector<double> bound = ProductBound(x, w, bias, y_stride);
  for (const NamedOps& cpu : AllCpuOps()) {
    EXPECT_LE(WorstError(Product(*cpu.ops, x, w, bias, y_stride), want, bound), 1)
        << cpu.name << " " << w.ToString() << " x " << x.rows;
  }
}

RC_GTEST_PROP(MatMul, AgreesWithTheDefinition, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const WeightFormat format = kFormats[*rc::gen::inRange(0, 5)];
  const int64_t step = format == WeightFormat::kMxfp4 ? kMxBlock : 1;
  const int64_t cols = step * *rc::gen::inRange<int64_t>(1, 200 / step + 1);
  const int64_t rows = *rc::gen::inRange<int64_t>(0, 60);
  const int64_t tokens = *rc::gen::inRange<int64_t>(0, 20);
  const Weight w = RandomWeight(random, format, rows, cols, random.Below(2) == 0);
  const Rows x = RandomRows(random, tokens, cols, cols + random.Below(3));
  const std::vector<float> bias = random.Floats(rows);
  ExpectProduct(x, w.view, random.Below(2) == 0 ? bias.data() : nullptr, rows + random.Below(3));
  RC_ASSERT(!::testing::Test::HasFailure());
}

// Cuts of a matrix: MXFP4 at blocks, FP8 at any row and column inside its blocks.
RC_GTEST_PROP(MatMul, ReadsSlices, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const WeightFormat format = kFormats[*rc::gen::inRange(0, 5)];
  const int64_t step = format == WeightFormat::kMxfp4 ? kMxBlock : 1;
  const Weight whole = RandomWeight(random, format, 150, 320);
  const int64_t r0 = *rc::gen::inRange<int64_t>(0, 149);
  const int64_t c0 = step * *rc::gen::inRange<int64_t>(0, 310 / step);
  const int64_t r1 = *rc::gen::inRange<int64_t>(r0 + 1, 151);
  const int64_t c1 = step * *rc::gen::inRange<int64_t>(c0 / step + 1, 320 / step + 1);
  const MatrixView w = *(*whole.view.Rows(r0, r1)).Cols(c0, c1);
  ExpectProduct(RandomRows(random, 1 + random.Below(7), w.cols, w.cols), w, nullptr, w.rows);
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(MatMul, LargeEnoughToBeShared) {
  Random random(1);
  for (const WeightFormat format : kFormats) {
    const Weight w = RandomWeight(random, format, 203, 544);
    ExpectProduct(RandomRows(random, 101, 544, 550), w.view, nullptr, 207);
  }
}

// Every code of every small format, scale included, comes out as the scalar definition has it: a
// product with unit vectors reads the weights back.
TEST(MatMul, DecodesEveryCodeExactly) {
  constexpr int64_t kCols = 256;
  const auto expect = [&](const MatrixView& w) {
    for (const int64_t tokens : {int64_t{1}, kCols}) {  // in registers, by tiles
      Rows x = EmptyRows(tokens, kCols, kCols);
      for (int64_t first = 0; first < kCols; first += tokens) {
        std::fill(x.data.begin(), x.data.end(), 0.f);
        for (int64_t t = 0; t < tokens; ++t) x.at(t)[first + t] = 1;
        for (const NamedOps& cpu : AllCpuOps()) {
          const std::vector<float> y = Product(*cpu.ops, x, w, nullptr, w.rows);
          for (int64_t r = 0; r < w.rows; ++r) {
            std::vector<float> row(kCols);
            w.DecodeRow(r, row);
            for (int64_t t = 0; t < tokens; ++t) {
              ASSERT_EQ(y[t * w.rows + r], row[first + t])
                  << cpu.name << " " << w.ToString() << " row " << r << " col " << first + t;
            }
          }
        }
      }
    }
  };
  Random random(2);
  Weight fp8 = RandomWeight(random, WeightFormat::kFp8Block, 2, kCols);
  for (int64_t c = 0; c < kCols; ++c) {
    const auto code = static_cast<uint8_t>(c);
    fp8.data[c] = static_cast<std::byte>((code & 0x7f) == 0x7f ? 0 : code);
  }
  expect(fp8.view);

  // Eight blocks of a row: all pairs of nibbles, and scales from the least to the largest that
  // keeps six finite.
  for (const int scale : {0, 1, 2, 100, 127, 200, 252}) {
    Weight mx = RandomWeight(random, WeightFormat::kMxfp4, 2, kCols);
    for (int64_t i = 0; i < 256; ++i) {
      mx.data[i / 128 * mx.view.row_bytes + i % 128] = static_cast<std::byte>(i);
    }
    std::fill(mx.scale.begin(), mx.scale.end(), static_cast<std::byte>(scale));
    expect(mx.view);
  }
}

TEST(MatMul, NanWeightsGiveNan) {
  Random random(3);
  Weight mx = RandomWeight(random, WeightFormat::kMxfp4, 1, 64);
  mx.scale[1] = std::byte{255};
  Weight fp8 = RandomWeight(random, WeightFormat::kFp8Block, 1, 64);
  fp8.data[40] = std::byte{0xff};
  Weight f16 = RandomWeight(random, WeightFormat::kF16, 1, 64);
  PutNumber(f16.data, 80, WeightFormat::kF16, std::nanf(""));
  for (const Weight* w : {&mx, &fp8, &f16}) {
    for (const int64_t tokens : {1, 5}) {
      const Rows x = RandomRows(random, tokens, 64, 64);
      for (const NamedOps& cpu : AllCpuOps()) {
        for (const float y : Product(*cpu.ops, x, w->view, nullptr, 1)) {
          EXPECT_TRUE(std::isnan(y)) << cpu.name << " " << w->view.ToString();
        }
      }
    }
  }
}

// The promise that greedy text rests on: a token alone and the same token among others give the
// same bits, with any number of threads, and rows may be computed in any cut.
TEST(MatMul, TokensDoNotDependOnTheBatch) {
  Random random(4);
  for (const WeightFormat format : kFormats) {
    const int64_t cols = format == WeightFormat::kMxfp4 ? 288 : 301;
    const Weight w = RandomWeight(random, format, 67, cols);
    const Rows x = RandomRows(random, 40, cols, cols);
    const std::vector<float> bias = random.Floats(67);
    std::string isa;
    std::vector<float> alone;  // of this instruction set
    for (const NamedOps& cpu : AllCpuOps()) {
      if (cpu.ops->name() != isa) {
        isa = cpu.ops->name();
        alone.clear();
        for (int64_t t = 0; t < 40; ++t) {
          const Rows one = {{x.at(t), x.at(t) + cols}, 1, cols, cols};
          const std::vector<float> y = Product(*cpu.ops, one, w.view, bias.data(), 67);
          alone.insert(alone.end(), y.begin(), y.end());
        }
      }
      for (int64_t tokens = 1; tokens <= 40; ++tokens) {
        const Rows some = {{x.data.begin(), x.data.begin() + tokens * cols}, tokens, cols, cols};
        const std::vector<float> want(alone.begin(), alone.begin() + tokens * 67);
        ASSERT_TRUE(SameBits(Product(*cpu.ops, some, w.view, bias.data(), 67), want))
            << cpu.name << " " << w.view.ToString() << " x " << tokens;
      }
      for (const int64_t cut : {1, 18, 66}) {
        const std::vector<float> y =
            Product(*cpu.ops, x, *w.view.Rows(cut, 67), bias.data() + cut, 67 - cut);
        for (int64_t t = 0; t < 40; ++t) {
          ASSERT_TRUE(SameBits(y.data() + t * (67 - cut), alone.data() + t * 67 + cut, 67 - cut))
              << cpu.name << " " << w.view.ToString() << " from row " << cut;
        }
      }
    }
  }
}

TEST(MatMul, TokensDoNotDependOnTheBatchWhenShared) {
  Random random(5);
  const Weight w = RandomWeight(random, WeightFormat::kMxfp4, 320, 512);
  const Rows x = RandomRows(random, 200, 512, 512);
  for (const NamedOps& cpu : AllCpuOps()) {
    const std::vector<float> all = Product(*cpu.ops, x, w.view, nullptr, 320);
    for (const int64_t t : {0, 95, 96, 199}) {
      const Rows one = {{x.at(t), x.at(t) + 512}, 1, 512, 512};
      const std::vector<float> y = Product(*cpu.ops, one, w.view, nullptr, 320);
      EXPECT_TRUE(SameBits(y.data(), all.data() + t * 320, 320)) << cpu.name;
    }
  }
}

TEST(Embed, DecodesRowsExactly) {
  Random random(6);
  for (const WeightFormat format : kFormats) {
    const Weight table = RandomWeight(random, format, 9, 96);
    const std::vector<int32_t> ids = {8, 0, 3, 3};
    std::vector<float> want(4 * 96);
    Reference().Embed(table.view, ids, want.data());
    EXPECT_EQ(std::vector<float>(want.begin() + 96, want.begin() + 192), table.Row(0));
    for (const NamedOps& cpu : AllCpuOps()) {
      std::vector<float> got(4 * 96);
      cpu.ops->Embed(table.view, ids, got.data());
      EXPECT_TRUE(SameBits(got, want)) << cpu.name;
      cpu.ops->Embed(table.view, {}, nullptr);
    }
  }
}

// ---- Per-head products

std::vector<float> RunHeads(Ops& ops, const Weight& w, const Rows& x, int64_t heads,
                            int64_t x_width, int64_t first, int64_t rows, bool transposed) {
  const int64_t width = transposed ? w.view.cols : rows;
  Rows y = EmptyRows(x.rows, heads * width, heads * width + 2);
  ops.HeadMatMul({.x = x.data.data(),
                  .x_stride = x.stride,
                  .x_head_stride = x_width,
                  .tokens = x.rows,
                  .heads = heads,
                  .w = w.view,
                  .head_rows = w.view.rows / heads,
                  .first = first,
                  .rows = rows,
                  .transposed = transposed,
                  .y = y.data.data(),
                  .y_stride = y.stride,
                  .y_head_stride = width});
  return y.data;
}

RC_GTEST_PROP(HeadMatMul, AgreesWithTheDefinition, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const WeightFormat format = kFormats[*rc::gen::inRange(0, 5)];
  const int64_t step = format == WeightFormat::kMxfp4 ? kMxBlock : 1;
  const int64_t cols = step * *rc::gen::inRange<int64_t>(1, 128 / step + 1);
  const int64_t heads = *rc::gen::inRange<int64_t>(1, 4);
  const int64_t rows = *rc::gen::inRange<int64_t>(1, 40);
  const int64_t first = *rc::gen::inRange<int64_t>(0, 20);
  const int64_t head_rows = first + rows + *rc::gen::inRange<int64_t>(0, 5);
  const int64_t tokens = *rc::gen::inRange<int64_t>(0, 9);
  const bool transposed = random.Below(2) == 0;
  const Weight w = RandomWeight(random, format, heads * head_rows, cols);
  const int64_t x_width = (transposed ? rows : cols) + random.Below(3);
  const Rows x = RandomRows(random, tokens, heads * x_width, heads * x_width + 1);
  const std::vector<float> want =
      RunHeads(Reference(), w, x, heads, x_width, first, rows, transposed);
  // A sum is off by at most the length of its chain of roundings times the sum of magnitudes.
  double largest_w = 0;
  for (int64_t r = 0; r < w.view.rows; ++r) {
    for (const float v : w.Row(r)) largest_w = std::max<double>(largest_w, std::fabs(v));
  }
  double largest_x = 0;
  for (const float v : x.data) {
    if (!std::isnan(v)) largest_x = std::max<double>(largest_x, std::fabs(v));
  }
  const double terms = static_cast<double>(transposed ? rows : cols);
  const double bound = kEpsilon * (terms + 8) * terms * largest_w * largest_x;
  for (const NamedOps& cpu : AllCpuOps()) {
    RC_ASSERT(WorstError(RunHeads(*cpu.ops, w, x, heads, x_width, first, rows, transposed), want,
                         bound) <= 1);
  }
}

TEST(HeadMatMul, TokensDoNotDependOnTheBatchOrThreads) {
  Random random(21);
  const Weight w = RandomWeight(random, WeightFormat::kBf16, 4 * 100, 200);
  for (const bool transposed : {false, true}) {
    const int64_t x_width = transposed ? 60 : 200;
    const Rows x = RandomRows(random, 130, 4 * x_width, 4 * x_width);
    std::string isa;
    std::vector<float> first;
    for (const NamedOps& cpu : AllCpuOps()) {
      const std::vector<float> all = RunHeads(*cpu.ops, w, x, 4, x_width, 30, 60, transposed);
      if (cpu.ops->name() != isa) {
        isa = cpu.ops->name();
        first = all;
      }
      EXPECT_TRUE(SameBits(all, first)) << cpu.name;
      const int64_t width = 4 * (transposed ? 200 : 60);
      for (const int64_t t : {0, 1, 95, 96, 129}) {
        const Rows one = {{x.at(t), x.at(t) + 4 * x_width}, 1, 4 * x_width, 4 * x_width};
        const std::vector<float> y = RunHeads(*cpu.ops, w, one, 4, x_width, 30, 60, transposed);
        EXPECT_TRUE(SameBits(y.data(), all.data() + t * (width + 2), width)) << cpu.name << t;
      }
    }
  }
}

// ---- Grouped MLP

struct Mlp {
  std::vector<Weight> storage;
  std::vector<ExpertWeights> experts;
};

Mlp RandomMlp(Random& random, WeightFormat format, int64_t experts, int64_t in, int64_t inner,
              int64_t out) {
  Mlp mlp;
  for (int64_t e = 0; e < experts; ++e) {
    mlp.storage.push_back(RandomWeight(random, format, inner, in));
    mlp.storage.push_back(RandomWeight(random, format, inner, in));
    mlp.storage.push_back(RandomWeight(random, format, out, inner));
  }
  for (int64_t e = 0; e < experts; ++e) {
    mlp.experts.push_back(
        {mlp.storage[3 * e].view, mlp.storage[3 * e + 1].view, mlp.storage[3 * e + 2].view});
  }
  return mlp;
}

std::vector<float> RunMlp(Ops& ops, const Mlp& mlp, const Rows& x,
                          const std::vector<int64_t>& offsets, const Activation& activation = {}) {
  const int64_t out = mlp.experts[0].down.rows;
  Rows y = EmptyRows(x.rows, out, out + 1);
  ops.GroupedMlp({.x = x.data.data(),
                  .x_stride = x.stride,
                  .offsets = offsets,
                  .experts = mlp.experts,
                  .activation = activation,
                  .y = y.data.data(),
                  .y_stride = out + 1});
  return y.data;
}

// Error bound by the same chain as the computation, in double: the sums of absolute values.
std::vector<double> MlpBound(const Mlp& mlp, const Rows& x, const std::vector<int64_t>& offsets) {
  const int64_t out = mlp.experts[0].down.rows;
  std::vector<double> bound(EmptyRows(x.rows, out, out + 1).data.size(), 0);
  for (size_t e = 0; e < mlp.experts.size(); ++e) {
    const ExpertWeights& w = mlp.experts[e];
    const auto abs_dot = [](const std::vector<float>& a, const auto* b) {
      double sum = 0;
      for (size_t i = 0; i < a.size(); ++i) sum += std::fabs(static_cast<double>(a[i]) * b[i]);
      return sum;
    };
    for (int64_t t = offsets[e]; t < offsets[e + 1]; ++t) {
      // |gate| and |up| are bounded by these sums, and so are their errors, times chain eps; silu
      // has slope below 1.1 and is below its argument.
      std::vector<double> hidden(w.gate.rows);
      for (int64_t i = 0; i < w.gate.rows; ++i) {
        hidden[i] = abs_dot(mlp.storage[3 * e].Row(i), x.at(t)) *
                    abs_dot(mlp.storage[3 * e + 1].Row(i), x.at(t));
      }
      const double chain = static_cast<double>(w.gate.cols) / 4 + w.gate.rows / 8.0 + 32;
      for (int64_t o = 0; o < out; ++o) {
        bound[t * (out + 1) + o] =
            chain * kEpsilon * abs_dot(mlp.storage[3 * e + 2].Row(o), hidden.data());
      }
    }
  }
  return bound;
}

RC_GTEST_PROP(GroupedMlp, AgreesWithTheDefinition, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const WeightFormat format = kFormats[*rc::gen::inRange(0, 5)];
  const int64_t step = format == WeightFormat::kMxfp4 ? kMxBlock : 1;
  const int64_t in = step * *rc::gen::inRange<int64_t>(1, 96 / step + 1);
  const int64_t inner = step * *rc::gen::inRange<int64_t>(1, 96 / step + 1);
  const int64_t out = *rc::gen::inRange<int64_t>(1, 40);
  const int64_t experts = *rc::gen::inRange<int64_t>(1, 5);
  const Mlp mlp = RandomMlp(random, format, experts, in, inner, out);
  std::vector<int64_t> offsets = {0};
  for (int64_t e = 0; e < experts; ++e) {
    offsets.push_back(offsets.back() + std::max<int64_t>(0, random.Below(9) - 2));
  }
  const Rows x = RandomRows(random, offsets.back(), in, in + 2);
  Activation activation;
  if (random.Below(2) == 0) {
    activation = {.kind = Activation::Kind::kSitu, .gate_bound = 4.f, .up_bound = 25.f};
  }
  const std::vector<float> want = RunMlp(Reference(), mlp, x, offsets, activation);
  // The bounded activation stays below the other one, in value and in slope.
  const std::vector<double> bound = MlpBound(mlp, x, offsets);
  for (const NamedOps& cpu : AllCpuOps()) {
    RC_ASSERT(WorstError(RunMlp(*cpu.ops, mlp, x, offsets, activation), want, bound) <= 1);
  }
}

// Experts without rows are not read at all: their weights may not even be there.
TEST(GroupedMlp, DoesNotTouchIdleExperts) {
  Random random(7);
  Mlp mlp = RandomMlp(random, WeightFormat::kMxfp4, 3, 64, 32, 48);
  const Rows x = RandomRows(random, 4, 64, 64);
  mlp.experts[1] = {.gate = mlp.experts[1].gate, .up = {}, .down = {}};
  mlp.experts[1].gate.data = nullptr;
  for (const NamedOps& cpu : AllCpuOps()) {
    const std::vector<float> y = RunMlp(*cpu.ops, mlp, x, {0, 2, 2, 4});
    EXPECT_FALSE(std::isnan(y.back()));
    EXPECT_TRUE(RunMlp(*cpu.ops, mlp, RandomRows(random, 0, 64, 64), {0, 0, 0, 0}).empty());
  }
}

TEST(GroupedMlp, RowsDoNotDependOnTheBatchOrThreads) {
  Random random(8);
  const Mlp mlp = RandomMlp(random, WeightFormat::kMxfp4, 4, 256, 160, 200);
  const std::vector<int64_t> offsets = {0, 1, 34, 34, 137};
  const Rows x = RandomRows(random, 137, 256, 256);
  std::string isa;
  std::vector<float> first;
  for (const NamedOps& cpu : AllCpuOps()) {
    const std::vector<float> all = RunMlp(*cpu.ops, mlp, x, offsets);
    if (cpu.ops->name() != isa) {
      isa = cpu.ops->name();
      first = all;
      EXPECT_LE(WorstError(all, RunMlp(Reference(), mlp, x, offsets), MlpBound(mlp, x, offsets)), 1)
          << cpu.name;
    }
    EXPECT_TRUE(SameBits(all, first)) << cpu.name;
    for (const int64_t t : {0, 1, 20, 33, 34, 129, 136}) {
      const Rows one = {{x.at(t), x.at(t) + 256}, 1, 256, 256};
      std::vector<int64_t> alone = {0};
      for (size_t e = 0; e < 4; ++e) {
        alone.push_back(alone.back() + (offsets[e] <= t && t < offsets[e + 1] ? 1 : 0));
      }
      const std::vector<float> y = RunMlp(*cpu.ops, mlp, one, alone);
      EXPECT_TRUE(SameBits(y.data(), all.data() + t * 201, 200)) << cpu.name << " row " << t;
    }
  }
}

TEST(MakeCpuOps, RefusesWhatItCannotRun) {
  EXPECT_EQ(MakeCpuOps({.threads = 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(IsaAvailable(Isa::kPortable));
  EXPECT_TRUE(IsaAvailable(DetectIsa()));
  for (const Isa isa : kAllIsas) {
    EXPECT_EQ(MakeCpuOps({.isa = isa}).ok(), IsaAvailable(isa));
  }
  EXPECT_EQ((*MakeCpuOps({.isa = Isa::kPortable}))->name(), "cpu portable");
}

}  // namespace
}  // namespace signalbox
