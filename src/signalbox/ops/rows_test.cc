// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "signalbox/ops/ops_test_util.h"

namespace signalbox {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::Pointwise;

constexpr float kInf = std::numeric_limits<float>::infinity();

// Elementwise results are a few roundings of their own size away; next to nothing may be nothing.
std::vector<double> Relative(const std::vector<float>& want, double units) {
  std::vector<double> bound;
  for (const float w : want) bound.push_back(units * kEpsilon * std::fabs(w) + 1e-35);
  return bound;
}

// Runs `fn(ops)` on the reference and every CPU implementation and compares what it returns.
template <typename Fn>
double WorstOfAll(Fn fn, double units) {
  const std::vector<float> want = fn(Reference());
  double worst = 0;
  for (const NamedOps& cpu : AllCpuOps()) {
    worst = std::max(worst, WorstError(fn(*cpu.ops), want, Relative(want, units)));
  }
  return worst;
}

// n rows whose results must not depend on one another: all at once against one at a time.
template <typename Fn>
bool RowsAreIndependent(int64_t rows, Fn run) {
  for (const NamedOps& cpu : AllCpuOps()) {
    const std::vector<float> all = run(*cpu.ops, 0, rows);
    std::vector<float> alone;
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<float> one = run(*cpu.ops, r, 1);
      alone.insert(alone.end(), one.begin(), one.end());
    }
    if (!SameBits(all, alone)) return false;
  }
  return true;
}

TEST(RmsNorm, IsItsFormula) {
  const std::vector<float> x = {3, 4};
  const std::vector<float> weight = {1, 0.5f};
  std::vector<float> y(2);
  Reference().RmsNorm({.x = x.data(),
                       .x_stride = 2,
                       .rows = 1,
                       .width = 2,
                       .weight = weight.data(),
                       .offset = 1,
                       .eps = 0,
                       .y = y.data(),
                       .y_stride = 2});
  const float rms = std::sqrt(12.5f);
  EXPECT_THAT(y, ElementsAre(FloatNear(3 / rms * 2, 1e-6f), FloatNear(4 / rms * 1.5f, 1e-6f)));
}

RC_GTEST_PROP(RmsNorm, AgreesWithTheDefinition, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const int64_t width = *rc::gen::inRange<int64_t>(1, 300);
  const int64_t rows = *rc::gen::inRange<int64_t>(0, 8);
  const Rows x = RandomRows(random, rows, width, width + random.Below(3), 10.f);
  const std::vector<float> weight = random.Floats(width);
  const float offset = random.Below(2) == 0 ? 1.f : 0.f;
  const bool in_place = random.Below(2) == 0;
  RC_ASSERT(WorstOfAll(
                [&](Ops& ops) {
                  Rows y = in_place ? x : EmptyRows(rows, width, width + 1);
                  const float* in = in_place ? y.data.data() : x.data.data();
                  ops.RmsNorm({.x = in,
                               .x_stride = x.stride,
                               .rows = rows,
                               .width = width,
                               .weight = weight.data(),
                               .offset = offset,
                               .eps = 1e-6f,
                               .y = y.data.data(),
                               .y_stride = y.stride});
                  return y.data;
                },
                width / 16.0 + 16) <= 1);
}

RC_GTEST_PROP(GatedRmsNorm, AgreesWithTheDefinition, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const int64_t width = *rc::gen::inRange<int64_t>(1, 300);
  const int64_t rows = *rc::gen::inRange<int64_t>(0, 8);
  const std::vector<float> x = random.Floats(rows * width);
  const std::vector<float> z = random.Floats(rows * width, 20.f);
  const std::vector<float> weight = random.Floats(width);
  const Gate gate = random.Below(2) == 0 ? Gate::kSilu : Gate::kSigmoid;
  RC_ASSERT(WorstOfAll(
                [&](Ops& ops) {
                  std::vector<float> y = x;
                  ops.GatedRmsNorm({.x = y.data(),
                                    .z = z.data(),
                                    .rows = rows,
                                    .width = width,
                                    .weight = weight.data(),
                                    .gate = gate,
                                    .eps = 1e-5f,
                                    .y = y.data()});
                  return y;
                },
                width / 16.0 + 24) <= 1);
}

// ---- Mix

struct MixInput {
  int64_t snapshots;
  int64_t rows;
  int64_t width;
  std::vector<float> bank;
  std::vector<float> x;
  std::vector<float> norm;
  std::vector<float> query;
};

MixInput RandomMix(Random& random, int64_t snapshots, int64_t rows, int64_t width) {
  return {snapshots,
          rows,
          width,
          random.Floats(rows * snapshots * width, 3.f),
          random.Floats(rows * width),
          random.Floats(width),
          random.Floats(width, 2.f / std::sqrt(static_cast<float>(width)))};
}

std::vector<float> RunMix(Ops& ops, const MixInput& in, int64_t first, int64_t rows) {
  std::vector<float> y(in.x.begin() + first * in.width, in.x.begin() + (first + rows) * in.width);
  ops.Mix({.bank = in.bank.data() + first * in.snapshots * in.width,
           .snapshots = in.snapshots,
           .x = y.data(),
           .rows = rows,
           .width = in.width,
           .norm = in.norm.data(),
           .query = in.query.data(),
           .eps = 1e-5f,
           .y = y.data()});
  return y;
}

TEST(Mix, IsItsFormula) {
  // Root mean squares 1 and 2: scores are the dot products with the normalised rows.
  MixInput in{1, 1, 2, {1, -1}, {2, 2}, {1, 2}, {3, 0.5f}};
  in.norm = {1, 2};
  const double first = 1 * 3 - 1 * 1;
  const double second = (2 * 3 + 2 * 1) / 2.0;
  const double p = std::exp(first) / (std::exp(first) + std::exp(second));
  const std::vector<float> y = RunMix(Reference(), in, 0, 1);
  EXPECT_NEAR(y[0], p * 1 + (1 - p) * 2, 1e-4);
  EXPECT_NEAR(y[1], p * -1 + (1 - p) * 2, 1e-4);
}

TEST(Mix, WithoutSnapshotsARowIsItself) {
  Random random(11);
  const MixInput in = RandomMix(random, 0, 3, 37);
  EXPECT_EQ(RunMix(Reference(), in, 0, 3), in.x);
  for (const NamedOps& cpu : AllCpuOps()) EXPECT_EQ(RunMix(*cpu.ops, in, 0, 3), in.x) << cpu.name;
}

RC_GTEST_PROP(Mix, AgreesWithTheDefinition, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const MixInput in =
      RandomMix(random, *rc::gen::inRange<int64_t>(0, 10), *rc::gen::inRange<int64_t>(0, 5),
                *rc::gen::inRange<int64_t>(1, 300));
  const std::vector<float> want = RunMix(Reference(), in, 0, in.rows);
  // A score is off by at most chain eps sum |v w|, which is below chain eps width |largest|, a
  // weight by e to that; the result is a mean of rows of at most `largest`.
  double largest = 0;
  for (const auto* v : {&in.bank, &in.x}) {
    for (float x : *v) largest = std::max<double>(largest, std::fabs(x));
  }
  double weights = 0;
  for (int64_t i = 0; i < in.width; ++i) weights += std::fabs(in.norm[i] * in.query[i]);
  const double chain = static_cast<double>(in.width) / 8 + 32;
  // Normalised rows are below sqrt(width).
  const double score = chain * std::sqrt(static_cast<double>(in.width)) * weights;
  for (const NamedOps& cpu : AllCpuOps()) {
    RC_ASSERT(WorstError(RunMix(*cpu.ops, in, 0, in.rows), want,
                         kEpsilon * largest * (2 * score + 32)) <= 1);
  }
}

TEST(Mix, RowsDoNotDependOnTheBatch) {
  Random random(12);
  const MixInput in = RandomMix(random, 8, 200, 515);
  EXPECT_TRUE(RowsAreIndependent(
      200, [&](Ops& ops, int64_t first, int64_t rows) { return RunMix(ops, in, first, rows); }));
}

TEST(Norms, RowsDoNotDependOnTheBatch) {
  Random random(1);
  constexpr int64_t kRows = 300;
  constexpr int64_t kWidth = 1003;
  const std::vector<float> x = random.Floats(kRows * kWidth);
  const std::vector<float> weight = random.Floats(kWidth);
  EXPECT_TRUE(RowsAreIndependent(kRows, [&](Ops& ops, int64_t first, int64_t rows) {
    std::vector<float> y(rows * kWidth);
    ops.RmsNorm({.x = x.data() + first * kWidth,
                 .x_stride = kWidth,
                 .rows = rows,
                 .width = kWidth,
                 .weight = weight.data(),
                 .offset = 0,
                 .eps = 1e-6f,
                 .y = y.data(),
                 .y_stride = kWidth});
    ops.GatedRmsNorm({.x = y.data(),
                      .z = x.data() + first * kWidth,
                      .rows = rows,
                      .width = kWidth,
                      .weight = weight.data(),
                      .eps = 1e-6f,
                      .y = y.data()});
    return y;
  }));
}

RC_GTEST_PROP(Rope, AgreesWithTheDefinition, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const int64_t half = *rc::gen::inRange<int64_t>(1, 40);
  const int64_t head_dim = 2 * half + *rc::gen::element<int64_t>(0, 0, 5, 64);
  const int64_t heads = *rc::gen::inRange<int64_t>(1, 5);
  const int64_t tokens = *rc::gen::inRange<int64_t>(0, 9);
  const Rows x = RandomRows(random, tokens, heads * head_dim, heads * head_dim + random.Below(4));
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < tokens; ++t) {
    positions.push_back(static_cast<int32_t>(random.Below(300000)));
  }
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < half; ++i) {
    inv_freq.push_back(std::pow(1e6f, -static_cast<float>(i) / static_cast<float>(half)));
  }
  const auto run = [&](Ops& ops) {
    Rows y = x;
    ops.Rope({.x = y.data.data(),
              .x_stride = x.stride,
              .tokens = tokens,
              .heads = heads,
              .head_dim = head_dim,
              .rotary = 2 * half,
              .positions = positions.data(),
              .inv_freq = inv_freq.data(),
              .scale = 1.25f});
    return y.data;
  };
  const std::vector<float> want = run(Reference());
  // A pair's length is kept, so errors are relative to it: at most the two largest elements.
  double largest = 0;
  for (const float v : x.data)
    largest = std::isnan(v) ? largest : std::max<double>(largest, 2 * std::fabs(v));
  for (const NamedOps& cpu : AllCpuOps()) {
    RC_ASSERT(WorstError(run(*cpu.ops), want, 8 * kEpsilon * largest + 1e-37) <= 1);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 2 * half; i < head_dim; ++i) RC_ASSERT(want[t * x.stride + i] == x.at(t)[i]);
  }
}

TEST(Rope, TurnsPairsOfHalves) {
  std::vector<float> x = {1, 0, 0, 1, 7};  // pairs (x0, x2) and (x1, x3); x4 stays
  const std::vector<int32_t> positions = {3};
  const std::vector<float> inv_freq = {0.5f, 0.f};
  Reference().Rope({.x = x.data(),
                    .x_stride = 5,
                    .tokens = 1,
                    .heads = 1,
                    .head_dim = 5,
                    .rotary = 4,
                    .positions = positions.data(),
                    .inv_freq = inv_freq.data()});
  const std::vector<float> want = {std::cos(1.5f), 0, std::sin(1.5f), 1, 7};
  EXPECT_THAT(x, Pointwise(FloatNear(1e-6f), want));
}

// ---- Router

struct Routes {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

// With a bias scores are sigmoids; it decides who is chosen and has no part in the weights.
Routes Route(Ops& ops, const std::vector<float>& logits, int64_t experts, int64_t top_k,
             bool renormalise, const std::vector<float>& bias = {}) {
  const int64_t tokens = static_cast<int64_t>(logits.size()) / experts;
  Routes routes = {std::vector<int32_t>(tokens * top_k), std::vector<float>(tokens * top_k)};
  ops.Router({.logits = logits.data(),
              .tokens = tokens,
              .experts = experts,
              .top_k = top_k,
              .renormalise = renormalise,
              .scores = bias.empty() ? RouterScores::kSoftmax : RouterScores::kSigmoid,
              .bias = bias.empty() ? nullptr : bias.data(),
              .ids = routes.ids.data(),
              .weights = routes.weights.data()});
  return routes;
}

TEST(Router, TiesGoToTheLowerId) {
  const std::vector<float> logits = {1, 3, 3, 2, 3, -kInf};
  std::vector<Ops*> all = {&Reference()};
  for (const NamedOps& cpu : AllCpuOps()) all.push_back(cpu.ops.get());
  for (Ops* ops : all) {
    const Routes all_kept = Route(*ops, logits, 6, 6, false);
    EXPECT_THAT(all_kept.ids, ElementsAre(1, 2, 4, 3, 0, 5)) << ops->name();
    EXPECT_NEAR(std::accumulate(all_kept.weights.begin(), all_kept.weights.end(), 0.0), 1, 1e-6);
    const Routes two = Route(*ops, logits, 6, 2, true);
    EXPECT_THAT(two.ids, ElementsAre(1, 2));
    EXPECT_THAT(two.weights, ElementsAre(0.5f, 0.5f));
  }
}

RC_GTEST_PROP(Router, AgreesWithTheDefinition, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const int64_t experts = *rc::gen::inRange<int64_t>(1, 70);
  const int64_t top_k = *rc::gen::inRange<int64_t>(1, experts + 1);
  const int64_t tokens = *rc::gen::inRange<int64_t>(0, 6);
  const bool renormalise = random.Below(2) == 0;
  std::vector<float> logits = random.Floats(tokens * experts, 4.f);
  for (float& x : logits) {
    if (random.Below(4) == 0) x = std::round(x);  // ties
  }
  const Routes want = Route(Reference(), logits, experts, top_k, renormalise);
  for (const NamedOps& cpu : AllCpuOps()) {
    const Routes got = Route(*cpu.ops, logits, experts, top_k, renormalise);
    RC_ASSERT(got.ids == want.ids);
    RC_ASSERT(WorstError(got.weights, want.weights, Relative(want.weights, 64)) <= 1);
  }
}

TEST(Router, SelectionBiasChoosesAndDoesNotWeigh) {
  const std::vector<float> logits = {0, 2, -2, 1};
  const std::vector<float> bias = {0, -1, 1, 0};
  std::vector<Ops*> all = {&Reference()};
  for (const NamedOps& cpu : AllCpuOps()) all.push_back(cpu.ops.get());
  const auto sigmoid = [](double x) { return static_cast<float>(1 / (1 + std::exp(-x))); };
  for (Ops* ops : all) {
    const Routes plain = Route(*ops, logits, 4, 2, false, bias);
    EXPECT_THAT(plain.ids, ElementsAre(2, 3)) << ops->name();
    EXPECT_THAT(plain.weights,
                ElementsAre(FloatNear(sigmoid(-2), 1e-6f), FloatNear(sigmoid(1), 1e-6f)));
    const Routes shares = Route(*ops, logits, 4, 2, true, bias);
    const float sum = sigmoid(-2) + sigmoid(1);
    EXPECT_THAT(shares.weights, ElementsAre(FloatNear(sigmoid(-2) / sum, 1e-6f),
                                            FloatNear(sigmoid(1) / sum, 1e-6f)));
  }
}

RC_GTEST_PROP(Router, SigmoidAgreesWithTheDefinition, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const int64_t experts = *rc::gen::inRange<int64_t>(1, 70);
  const int64_t top_k = *rc::gen::inRange<int64_t>(1, experts + 1);
  const int64_t tokens = *rc::gen::inRange<int64_t>(0, 6);
  const bool renormalise = random.Below(2) == 0;
  const std::vector<float> logits = random.Floats(tokens * experts, 3.f);
  const std::vector<float> bias = random.Floats(experts, 0.3f);
  const Routes want = Route(Reference(), logits, experts, top_k, renormalise, bias);
  const auto key = [&](int64_t token, int32_t e) {
    return 1 / (1 + std::exp(-double{logits[token * experts + e]})) + bias[e];
  };
  for (const NamedOps& cpu : AllCpuOps()) {
    const Routes got = Route(*cpu.ops, logits, experts, top_k, renormalise, bias);
    for (size_t i = 0; i < got.ids.size(); ++i) {
      const auto token = static_cast<int64_t>(i) / top_k;
      // Scores one rounding apart may change places.
      RC_ASSERT(std::fabs(key(token, got.ids[i]) - key(token, want.ids[i])) <= 8 * kEpsilon);
    }
    if (got.ids != want.ids) continue;
    RC_ASSERT(WorstError(got.weights, want.weights, Relative(want.weights, 64)) <= 1);
  }
}

// A NaN upstream must not turn into an expert that does not exist.
TEST(Router, IdsAreDistinctAndInRangeWhateverTheLogits) {
  const float nan = std::nanf("");
  const std::vector<float> logits = {nan,   nan,   nan,   nan,   nan,  1,    nan, 2,
                                     -kInf, -kInf, -kInf, -kInf, kInf, kInf, 0,   nan};
  std::vector<Ops*> all = {&Reference()};
  for (const NamedOps& cpu : AllCpuOps()) all.push_back(cpu.ops.get());
  for (Ops* ops : all) {
    const Routes routes = Route(*ops, logits, 4, 3, true);
    for (int64_t t = 0; t < 4; ++t) {
      std::vector<int32_t> ids(routes.ids.begin() + 3 * t, routes.ids.begin() + 3 * t + 3);
      std::sort(ids.begin(), ids.end());
      EXPECT_TRUE(std::adjacent_find(ids.begin(), ids.end()) == ids.end()) << ops->name();
      EXPECT_GE(ids.front(), 0);
      EXPECT_LT(ids.back(), 4);
    }
    const Routes sigmoid = Route(*ops, logits, 4, 3, true, {0, nan, 1, 0});
    for (int64_t t = 0; t < 4; ++t) {
      std::vector<int32_t> ids(sigmoid.ids.begin() + 3 * t, sigmoid.ids.begin() + 3 * t + 3);
      std::sort(ids.begin(), ids.end());
      EXPECT_TRUE(std::adjacent_find(ids.begin(), ids.end()) == ids.end()) << ops->name();
      EXPECT_TRUE(ids.front() >= 0 && ids.back() < 4) << ops->name();
    }
  }
}

// ---- Elementwise

TEST(GatherRows, CopiesAndClears) {
  Random random(2);
  const Rows in = RandomRows(random, 3, 5, 7);
  const std::vector<int64_t> rows = {2, -1, 0, 2};
  std::vector<Ops*> all = {&Reference()};
  for (const NamedOps& cpu : AllCpuOps()) all.push_back(cpu.ops.get());
  for (Ops* ops : all) {
    Rows out = EmptyRows(4, 5, 6);
    ops->GatherRows({.in = in.data.data(),
                     .in_stride = 7,
                     .width = 5,
                     .rows = rows,
                     .out = out.data.data(),
                     .out_stride = 6});
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t c = 0; c < 5; ++c) {
        EXPECT_EQ(out.at(i)[c], rows[i] < 0 ? 0.f : in.at(rows[i])[c]);
      }
    }
    ops->GatherRows(
        {.in = nullptr, .in_stride = 5, .width = 5, .rows = {}, .out = nullptr, .out_stride = 5});
  }
}

// Every code of a type that a cache may hold, in rows of any width.
TEST(GatherRows, LoadsOtherTypes) {
  std::vector<uint8_t> fp8(256);
  std::iota(fp8.begin(), fp8.end(), uint8_t{0});
  std::vector<uint16_t> bf16(65536);
  std::iota(bf16.begin(), bf16.end(), uint16_t{0});
  for (const auto& [codes, count, dtype] :
       {std::tuple<const void*, int64_t, DType>{fp8.data(), 256, DType::kF8E4m3},
        {bf16.data(), 65536, DType::kBf16}}) {
    std::vector<float> want(count);
    LoadFloats(codes, count, dtype, want.data());
    for (const int64_t width : {1, 3, 21, 64}) {
      std::vector<int64_t> rows(count / width);
      std::iota(rows.begin(), rows.end(), 0);
      for (const NamedOps& cpu : AllCpuOps()) {
        std::vector<float> got(rows.size() * width);
        cpu.ops->GatherRows({.in = codes,
                             .in_stride = width,
                             .width = width,
                             .rows = rows,
                             .out = got.data(),
                             .out_stride = width,
                             .dtype = dtype});
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(std::isnan(got[i]), std::isnan(want[i])) << cpu.name << " code " << i;
          if (std::isnan(want[i])) continue;
          ASSERT_TRUE(SameBits(&got[i], &want[i], 1)) << cpu.name << " code " << i;
        }
      }
    }
  }
}

// Ends of the exponential's range and values that a sum must not silently lose.
const std::vector<float> kDelicate = {0.f,   -0.f,   1e-30f, -1e-30f,      88.f, -88.f,
                                      89.f,  -89.f,  103.f,  -103.f,       1e4f, -1e4f,
                                      3e38f, -3e38f, kInf,   std::nanf("")};

constexpr Activation kSilu;
constexpr Activation kSitu = {.kind = Activation::Kind::kSitu, .gate_bound = 4.f, .up_bound = 25.f};

TEST(Glu, AgreesWithTheDefinition) {
  Random random(3);
  for (const Activation& activation : {kSilu, kSitu}) {
    for (const int64_t n : {0, 1, 5, 16, 33, 100003}) {
      std::vector<float> gate = random.Floats(n, 8.f);
      std::copy_n(kDelicate.begin(), std::min<int64_t>(n, 16), gate.begin());
      std::vector<float> up = random.Floats(n, 10.f);
      if (n > 64) std::copy_n(kDelicate.begin(), 16, up.begin() + 40);
      EXPECT_LE(WorstOfAll(
                    [&](Ops& ops) {
                      std::vector<float> y(n);
                      ops.Glu(activation, gate.data(), up.data(), n, y.data());
                      return y;
                    },
                    32),
                1)
          << n;
    }
  }
}

TEST(Glu, SituIsBoundedAndNearlySiluInside) {
  const std::vector<float> gate = {1e6f, -1e6f, 0.01f, 2.f};
  const std::vector<float> up = {1e6f, 1e6f, 0.02f, 0.f};
  std::vector<float> y(4);
  Reference().Glu(kSitu, gate.data(), up.data(), 4, y.data());
  EXPECT_FLOAT_EQ(y[0], 4 * 25);
  EXPECT_EQ(y[1], 0);
  EXPECT_NEAR(y[2], 0.01 / (1 + std::exp(-0.01)) * 0.02, 1e-9);
  EXPECT_EQ(y[3], 0);
}

TEST(SigmoidMul, AgreesWithTheDefinition) {
  Random random(4);
  for (const int64_t rows : {0, 1, 3, 400}) {
    for (const int64_t width : {1, 7, 48, 515}) {
      for (const bool one_gate : {false, true}) {
        const int64_t gate_width = one_gate ? 1 : width;
        const Rows x = RandomRows(random, rows, width, width + 2);
        Rows gate = RandomRows(random, rows, gate_width, gate_width + 1, 20.f);
        if (rows > 0) std::copy_n(kDelicate.begin(), std::min<int64_t>(gate_width, 14), gate.at(0));
        EXPECT_LE(WorstOfAll(
                      [&](Ops& ops) {
                        Rows y = x;
                        ops.SigmoidMul(y.data.data(), y.stride, gate.data.data(), gate.stride,
                                       gate_width, rows, width);
                        return y.data;
                      },
                      16),
                  1)
            << rows << " x " << width;
      }
    }
  }
}

TEST(AddScaled, AgreesWithTheDefinition) {
  Random random(5);
  for (const int64_t n : {0, 1, 15, 16, 17, 300001}) {
    const std::vector<float> x = random.Floats(n);
    const std::vector<float> y = random.Floats(n);
    const auto run = [&](Ops& ops) {
      std::vector<float> out = y;
      ops.AddScaled(x.data(), -0.3f, n, out.data());
      return out;
    };
    const std::vector<float> want = run(Reference());
    std::vector<double> bound;
    for (int64_t i = 0; i < n; ++i) {
      bound.push_back(4 * kEpsilon * (std::fabs(x[i]) + std::fabs(y[i])));
    }
    for (const NamedOps& cpu : AllCpuOps()) {
      EXPECT_LE(WorstError(run(*cpu.ops), want, bound), 1) << cpu.name << " " << n;
    }
  }
}

TEST(DeltaGates, AgreesWithTheDefinition) {
  Random random(6);
  for (const int64_t tokens : {0, 1, 3, 500}) {
    constexpr int64_t kHeads = 9;
    std::vector<float> a = random.Floats(tokens * kHeads, 15.f);
    const std::vector<float> b = random.Floats(tokens * kHeads, 15.f);
    const std::vector<float> a_log = random.Floats(kHeads);
    const std::vector<float> dt_bias = random.Floats(kHeads);
    if (tokens > 0) a[0] = 1000.f;  // e^a is infinite, softplus is not
    for (const bool want_g : {true, false}) {
      EXPECT_LE(WorstOfAll(
                    [&](Ops& ops) {
                      std::vector<float> g(tokens * kHeads);
                      std::vector<float> beta(tokens * kHeads);
                      ops.DeltaGates(a.data(), b.data(), a_log.data(), dt_bias.data(), tokens,
                                     kHeads, g.data(), beta.data());
                      for (const float x : g) EXPECT_LE(x, 0.f);
                      return want_g ? g : beta;
                    },
                    64),
                1);
    }
  }
}

TEST(BoundedDeltaGates, AgreesWithTheDefinition) {
  Random random(7);
  constexpr int64_t kHeads = 3;
  for (const int64_t dim : {1, 16, 37}) {
    for (const int64_t tokens : {0, 1, 90}) {
      const std::vector<float> z = random.Floats(tokens * kHeads * dim, 15.f);
      const std::vector<float> b = random.Floats(tokens * kHeads, 15.f);
      const std::vector<float> a_log = random.Floats(kHeads);
      const std::vector<float> dt_bias = random.Floats(kHeads * dim);
      for (const bool want_g : {true, false}) {
        EXPECT_LE(WorstOfAll(
                      [&](Ops& ops) {
                        std::vector<float> g = z;
                        std::vector<float> beta = b;
                        ops.BoundedDeltaGates({.z = g.data(),
                                               .b = beta.data(),
                                               .a_log = a_log.data(),
                                               .dt_bias = dt_bias.data(),
                                               .bound = -5.f,
                                               .tokens = tokens,
                                               .heads = kHeads,
                                               .key_dim = dim,
                                               .g = g.data(),
                                               .beta = beta.data()});
                        for (const float x : g) EXPECT_TRUE(x <= 0.f && x >= -5.f) << x;
                        return want_g ? g : beta;
                      },
                      // The exponent of the sigmoid is up to 15 e^3 large and off by two roundings.
                      1024),
                  1);
      }
    }
  }
}

}  // namespace
}  // namespace signalbox
