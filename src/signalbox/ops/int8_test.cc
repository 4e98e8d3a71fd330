// SPDX-License-Identifier: Apache-2.0
#include "signalbox/ops/int8.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "signalbox/ops/cpu_kernels.h"
#include "signalbox/ops/ops_test_util.h"

namespace signalbox::int8_test {
namespace {

std::vector<Isa> Isas() {
  std::vector<Isa> available;
  std::copy_if(std::begin(kAllIsas), std::end(kAllIsas), std::back_inserter(available),
               IsaAvailable);
  return available;
}

// [rows, width / 32]
std::vector<Int8Block> Quantised(const Rows& x) {
  const int64_t blocks = x.width / kMxBlock;
  std::vector<Int8Block> q(x.rows * blocks);
  for (int64_t t = 0; t < x.rows; ++t) QuantiseRow(x.at(t), x.width, q.data() + t * blocks);
  return q;
}

// Rows [begin, end) of w times all of x; y is as narrow as that.
std::vector<float> Product(Isa isa, const std::vector<Int8Block>& x, int64_t tokens,
                           const MatrixView& w, int64_t begin, int64_t end) {
  std::vector<float> y(tokens * (end - begin), std::nanf(""));
  std::vector<float> tile(Int8TileFloats(w.cols));
  KernelsOf(isa).mat_mul_int8({.x = x.data(),
                               .x_stride = w.cols / kMxBlock,
                               .tokens = tokens,
                               .w = &w,
                               .row_begin = begin,
                               .row_end = end,
                               .y = y.data(),
                               .y_stride = end - begin,
                               .tile = tile.data()});
  return y;
}

// [tokens, w.rows]
std::vector<float> Definition(const std::vector<Int8Block>& x, int64_t tokens,
                              const MatrixView& w) {
  std::vector<float> y(tokens * w.rows);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t r = 0; r < w.rows; ++r) {
      y[t * w.rows + r] = Int8Dot(x.data() + t * (w.cols / kMxBlock), w, r);
    }
  }
  return y;
}

// Of both, or one NaN for another.
bool SameNumbers(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return (std::isnan(x) && std::isnan(y)) || SameBits(&x, &y, 1);
  });
}

void ExpectSame(const Rows& x, const MatrixView& w) {
  const std::vector<Int8Block> q = Quantised(x);
  const std::vector<float> want = Definition(q, x.rows, w);
  for (const Isa isa : Isas()) {
    EXPECT_TRUE(SameNumbers(Product(isa, q, x.rows, w, 0, w.rows), want))
        << ToString(isa) << " " << w.ToString() << " x " << x.rows;
  }
}

// ---- Activations

TEST(Quantise, RoundsToTheNearestOf255) {
  Random random(1);
  const std::vector<float> x = random.Floats(64, 3.f);
  std::vector<Int8Block> q(2);
  QuantiseRow(x.data(), 64, q.data());
  for (int64_t b = 0; b < 2; ++b) {
    int32_t sum = 0;
    int32_t largest = 0;
    for (int64_t i = 0; i < 32; ++i) {
      const int8_t v = q[b].q[i / 2 + i % 2 * 16];
      EXPECT_LE(std::fabs(x[b * 32 + i] - static_cast<float>(v) * q[b].scale), 0.501f * q[b].scale);
      sum += v;
      largest = std::max(largest, std::abs(int32_t{v}));
    }
    EXPECT_EQ(largest, 127);
    EXPECT_EQ(q[b].start, -12 * sum);
  }
}

TEST(Quantise, TiesGoToEven) {
  std::vector<float> x(32, 0.f);
  x[0] = 127;  // a scale of one
  x[1] = 0.5f;
  x[2] = 1.5f;
  x[3] = -2.5f;
  for (const Isa isa : Isas()) {
    Int8Block q;
    KernelsOf(isa).quantise(x.data(), 32, &q);
    EXPECT_EQ(q.q[0], 127) << ToString(isa);
    EXPECT_EQ(q.q[16], 0) << ToString(isa);
    EXPECT_EQ(q.q[1], 2) << ToString(isa);
    EXPECT_EQ(q.q[17], -2) << ToString(isa);
  }
}

// Of any size, and blocks of zeros, of subnormal numbers and of what is not finite among them.
RC_GTEST_PROP(Quantise, AgreesWithTheDefinition, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const int64_t cols = 32 * *rc::gen::inRange<int64_t>(0, 9);
  std::vector<float> x = random.Floats(cols);
  for (int64_t b = 0; b < cols / 32; ++b) {
    const float scale = std::ldexp(1.f, static_cast<int>(random.Below(270)) - 148);
    for (int64_t i = 0; i < 32; ++i) x[b * 32 + i] *= scale;
    if (random.Below(8) == 0) std::fill_n(x.begin() + b * 32, 32, random.Below(2) == 0 ? 0 : -0.f);
    if (random.Below(8) == 0) x[b * 32 + random.Below(32)] = std::nanf("");
    if (random.Below(8) == 0) x[b * 32 + random.Below(32)] = -HUGE_VALF;
  }
  std::vector<Int8Block> want(cols / 32);
  QuantiseRow(x.data(), cols, want.data());
  for (const Isa isa : Isas()) {
    std::vector<Int8Block> got(cols / 32);
    KernelsOf(isa).quantise(x.data(), cols, got.data());
    for (int64_t b = 0; b < cols / 32; ++b) {
      RC_ASSERT(std::equal(want[b].q, want[b].q + 32, got[b].q));
      RC_ASSERT(SameNumbers({want[b].scale}, {got[b].scale}));
      RC_ASSERT(want[b].start == got[b].start);
    }
  }
}

// ---- Products

// Against doubles and the weights' own definition: the product's only errors are its roundings.
TEST(Int8Dot, IsTheProductOfWhatWasRounded) {
  Random random(2);
  const Weight w = RandomWeight(random, WeightFormat::kMxfp4, 5, 96);
  const Rows x = RandomRows(random, 1, 96, 96);
  const std::vector<Int8Block> q = Quantised(x);
  for (int64_t r = 0; r < 5; ++r) {
    const std::vector<float> row = w.Row(r);
    double sum = 0;
    double size = 0;
    for (int64_t c = 0; c < 96; ++c) {
      const Int8Block& b = q[c / 32];
      const double term = static_cast<double>(row[c]) * b.scale * b.q[c % 32 / 2 + c % 2 * 16];
      sum += term;
      size += std::fabs(term);
    }
    EXPECT_NEAR(Int8Dot(q.data(), w.view, r), sum, 8 * kEpsilon * size);
  }
}

RC_GTEST_PROP(Int8MatMul, AgreesWithTheDefinition, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const int64_t cols = 32 * *rc::gen::inRange<int64_t>(1, 12);
  const int64_t rows = *rc::gen::inRange<int64_t>(0, 60);
  const Weight w = RandomWeight(random, WeightFormat::kMxfp4, rows, cols);
  ExpectSame(RandomRows(random, *rc::gen::inRange<int64_t>(0, 30), cols, cols + 1), w.view);
  RC_ASSERT(!::testing::Test::HasFailure());
}

RC_GTEST_PROP(Int8MatMul, ReadsSlices, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const Weight whole = RandomWeight(random, WeightFormat::kMxfp4, 70, 320);
  const int64_t r0 = *rc::gen::inRange<int64_t>(0, 69);
  const int64_t c0 = *rc::gen::inRange<int64_t>(0, 9);
  const int64_t r1 = *rc::gen::inRange<int64_t>(r0 + 1, 71);
  const int64_t c1 = *rc::gen::inRange<int64_t>(c0 + 1, 11);
  const MatrixView w = *(*whole.view.Rows(r0, r1)).Cols(32 * c0, 32 * c1);
  ExpectSame(RandomRows(random, 1 + random.Below(14), w.cols, w.cols), w);
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(Int8MatMul, ExpertSizes) {
  Random random(3);
  for (const int64_t cols : {768, 2048}) {
    const Weight w = RandomWeight(random, WeightFormat::kMxfp4, 37, cols);
    for (const int64_t tokens : {1, 40}) ExpectSame(RandomRows(random, tokens, cols, cols), w.view);
  }
}

// Every code with the largest activations of either sign, so that a sum that does not fit shows.
TEST(Int8MatMul, EveryCodeAndTheLargestSums) {
  for (const float sign : {1.f, -1.f}) {
    Random random(4);
    Weight w = RandomWeight(random, WeightFormat::kMxfp4, 256, 32);
    for (int64_t r = 0; r < 256; ++r) {
      std::fill_n(w.data.begin() + r * w.view.row_bytes, 16, static_cast<std::byte>(r));
    }
    for (const int64_t tokens : {1, 20}) {
      const Rows x = {std::vector<float>(tokens * 32, sign * 3.f), tokens, 32, 32};
      ExpectSame(x, w.view);
    }
  }
}

TEST(Int8MatMul, EveryScale) {
  Random random(5);
  Weight w = RandomWeight(random, WeightFormat::kMxfp4, 256, 32);
  for (int64_t r = 0; r < 256; ++r) w.scale[r] = static_cast<std::byte>(r);
  for (const int64_t tokens : {1, 20}) {
    const Rows x = RandomRows(random, tokens, 32, 32);
    ExpectSame(x, w.view);
    const std::vector<float> y = Definition(Quantised(x), tokens, w.view);
    EXPECT_TRUE(std::isnan(y[255]));
    EXPECT_FALSE(std::isnan(y[254]));
    EXPECT_FALSE(std::isnan(y[0]));
  }
}

// A token alone, in any batch, and in any cut of the rows.
TEST(Int8MatMul, TokensDoNotDependOnTheBatch) {
  Random random(6);
  const Weight w = RandomWeight(random, WeightFormat::kMxfp4, 67, 288);
  const Rows x = RandomRows(random, 200, 288, 288);
  const std::vector<Int8Block> q = Quantised(x);
  for (const Isa isa : Isas()) {
    std::vector<float> alone;
    for (int64_t t = 0; t < 200; ++t) {
      const std::vector<Int8Block> one(q.begin() + t * 9, q.begin() + (t + 1) * 9);
      const std::vector<float> y = Product(isa, one, 1, w.view, 0, 67);
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (const int64_t tokens : {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 25, 33, 100, 200}) {
      const std::vector<float> want(alone.begin(), alone.begin() + tokens * 67);
      EXPECT_TRUE(SameBits(Product(isa, q, tokens, w.view, 0, 67), want))
          << ToString(isa) << " x " << tokens;
    }
    for (const int64_t cut : {1, 18, 66}) {
      const std::vector<float> y = Product(isa, q, 200, w.view, cut, 67);
      for (int64_t t = 0; t < 200; ++t) {
        ASSERT_TRUE(SameBits(y.data() + t * (67 - cut), alone.data() + t * 67 + cut, 67 - cut))
            << ToString(isa) << " from row " << cut;
      }
    }
  }
}

TEST(Int8MatMul, WhatIsNotFiniteStaysWithItsToken) {
  Random random(7);
  const Weight w = RandomWeight(random, WeightFormat::kMxfp4, 19, 64);
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    for (const int64_t tokens : {3, 30}) {
      const Rows good = RandomRows(random, tokens, 64, 64);
      Rows x = good;
      x.at(1)[40] = bad;
      const std::vector<float> want = Definition(Quantised(good), tokens, w.view);
      for (const Isa isa : Isas()) {
        const std::vector<float> y = Product(isa, Quantised(x), tokens, w.view, 0, 19);
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t r = 0; r < 19; ++r) {
            if (t == 1) {
              EXPECT_TRUE(std::isnan(y[t * 19 + r])) << ToString(isa);
            } else {
              EXPECT_EQ(y[t * 19 + r], want[t * 19 + r]) << ToString(isa);
            }
          }
        }
      }
    }
  }
}

// ---- Grouped MLP

struct Mlp {
  std::vector<Weight> storage;
  std::vector<ExpertWeights> experts;

  void Add(Random& random, WeightFormat gate, WeightFormat up, WeightFormat down, int64_t in,
           int64_t inner, int64_t out) {
    storage.push_back(RandomWeight(random, gate, inner, in));
    storage.push_back(RandomWeight(random, up, inner, in));
    storage.push_back(RandomWeight(random, down, out, inner));
    const auto n = storage.size();
    experts.push_back({storage[n - 3].view, storage[n - 2].view, storage[n - 1].view});
  }
};

std::vector<float> RunMlp(Ops& ops, const Mlp& mlp, const Rows& x,
                          const std::vector<int64_t>& offsets) {
  const int64_t out = mlp.experts[0].down.rows;
  Rows y = EmptyRows(x.rows, out, out + 1);
  ops.GroupedMlp({.x = x.data.data(),
                  .x_stride = x.stride,
                  .offsets = offsets,
                  .experts = mlp.experts,
                  .precision = ActivationPrecision::kInt8,
                  .y = y.data.data(),
                  .y_stride = out + 1});
  return y.data;
}

// The definition, but for the operations that have no bits of their own: those of `ops`.
std::vector<float> Expected(Ops& ops, const Mlp& mlp, const Rows& x,
                            const std::vector<int64_t>& offsets) {
  const int64_t out = mlp.experts[0].down.rows;
  Rows y = EmptyRows(x.rows, out, out + 1);
  const auto project = [&](const float* in, const MatrixView& w, float* result) {
    if (w.format != WeightFormat::kMxfp4) {
      ops.MatMul(
          {.x = in, .x_stride = w.cols, .tokens = 1, .w = w, .y = result, .y_stride = w.rows});
      return;
    }
    std::vector<Int8Block> q(w.cols / kMxBlock);
    QuantiseRow(in, w.cols, q.data());
    for (int64_t r = 0; r < w.rows; ++r) result[r] = Int8Dot(q.data(), w, r);
  };
  for (size_t e = 0; e < mlp.experts.size(); ++e) {
    const ExpertWeights& w = mlp.experts[e];
    for (int64_t t = offsets[e]; t < offsets[e + 1]; ++t) {
      std::vector<float> gate(w.gate.rows);
      std::vector<float> up(w.gate.rows);
      project(x.at(t), w.gate, gate.data());
      project(x.at(t), w.up, up.data());
      ops.Glu({}, gate.data(), up.data(), w.gate.rows, up.data());
      project(up.data(), w.down, y.at(t));
    }
  }
  return y.data;
}

void ExpectMlp(const Mlp& mlp, const Rows& x, const std::vector<int64_t>& offsets) {
  EXPECT_TRUE(
      SameNumbers(RunMlp(Reference(), mlp, x, offsets), Expected(Reference(), mlp, x, offsets)));
  for (const NamedOps& cpu : AllCpuOps()) {
    EXPECT_TRUE(SameNumbers(RunMlp(*cpu.ops, mlp, x, offsets), Expected(*cpu.ops, mlp, x, offsets)))
        << cpu.name;
  }
}

RC_GTEST_PROP(Int8GroupedMlp, AgreesWithTheDefinition, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const int64_t in = 32 * *rc::gen::inRange<int64_t>(1, 5);
  const int64_t out = *rc::gen::inRange<int64_t>(1, 40);
  const int64_t experts = *rc::gen::inRange<int64_t>(1, 5);
  // Formats and inner sizes of every kind next to each other.
  const auto format = [&] {
    return random.Below(4) == 0 ? WeightFormat::kBf16 : WeightFormat::kMxfp4;
  };
  Mlp mlp;
  std::vector<int64_t> offsets = {0};
  for (int64_t e = 0; e < experts; ++e) {
    const WeightFormat down = format();
    const int64_t inner =
        down == WeightFormat::kMxfp4 ? 32 * (1 + random.Below(4)) : 1 + random.Below(100);
    mlp.Add(random, format(), format(), down, in, inner, out);
    offsets.push_back(offsets.back() + std::max<int64_t>(0, random.Below(20) - 4));
  }
  ExpectMlp(mlp, RandomRows(random, offsets.back(), in, in), offsets);
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(Int8GroupedMlp, LargeEnoughToBeShared) {
  Random random(8);
  Mlp mlp;
  for (int e = 0; e < 4; ++e) {
    mlp.Add(random, WeightFormat::kMxfp4, WeightFormat::kMxfp4, WeightFormat::kMxfp4, 256, 160,
            200);
  }
  ExpectMlp(mlp, RandomRows(random, 137, 256, 256), {0, 1, 34, 34, 137});
}

TEST(Int8GroupedMlp, NoRows) {
  Random random(9);
  Mlp mlp;
  mlp.Add(random, WeightFormat::kMxfp4, WeightFormat::kMxfp4, WeightFormat::kMxfp4, 64, 32, 48);
  for (const NamedOps& cpu : AllCpuOps()) {
    EXPECT_TRUE(RunMlp(*cpu.ops, mlp, RandomRows(random, 0, 64, 64), {0, 0}).empty());
  }
}

// Rounding moves a result by less than half a step of each activation.
TEST(Int8GroupedMlp, IsNearTheFloats) {
  Random random(10);
  const Weight w = RandomWeight(random, WeightFormat::kMxfp4, 16, 256);
  const Rows x = RandomRows(random, 1, 256, 256);
  const std::vector<Int8Block> q = Quantised(x);
  for (int64_t r = 0; r < 16; ++r) {
    const std::vector<float> row = w.Row(r);
    double exact = 0;
    double bound = 0;
    for (int64_t c = 0; c < 256; ++c) {
      exact += static_cast<double>(row[c]) * x.at(0)[c];
      bound += 0.501 * q[c / 32].scale * std::fabs(row[c]);
    }
    EXPECT_NEAR(Int8Dot(q.data(), w.view, r), exact, bound);
  }
}

}  // namespace
}  // namespace signalbox::int8_test
