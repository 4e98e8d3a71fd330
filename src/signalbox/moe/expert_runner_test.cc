// SPDX-License-Identifier: Apache-2.0
#include "signalbox/moe/expert_runner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace signalbox::expert_runner_test {
namespace {

constexpr int64_t kHidden = 8;
constexpr int64_t kInner = 12;

struct Experts {
  explicit Experts(int n) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0.f, 0.4f);
    for (int i = 0; i < 3 * n; ++i) {
      auto& m = data.emplace_back(static_cast<size_t>(kHidden * kInner));
      for (float& v : m) v = normal(random);
    }
    for (size_t e = 0; e < static_cast<size_t>(n); ++e) {
      views.push_back({F32View(data[3 * e], kInner, kHidden),
                       F32View(data[3 * e + 1], kInner, kHidden),
                       F32View(data[3 * e + 2], kHidden, kInner)});
    }
  }
  // One row through one expert, written without any of the code under test.
  std::vector<double> Apply(size_t e, const float* x) const {
    std::vector<double> inner(kInner);
    for (size_t i = 0; i < kInner; ++i) {
      double g = 0;
      double u = 0;
      for (size_t h = 0; h < kHidden; ++h) {
        g += static_cast<double>(data[3 * e][i * kHidden + h]) * x[h];
        u += static_cast<double>(data[3 * e + 1][i * kHidden + h]) * x[h];
      }
      inner[i] = g / (1 + std::exp(-g)) * u;
    }
    std::vector<double> y(kHidden, 0);
    for (size_t h = 0; h < kHidden; ++h) {
      for (size_t i = 0; i < kInner; ++i)
        y[h] += static_cast<double>(data[3 * e + 2][h * kInner + i]) * inner[i];
    }
    return y;
  }
  std::vector<std::vector<float>> data;
  std::vector<ExpertWeights> views;
};

void Expect(Ops& ops, const std::vector<int32_t>& ids, const std::vector<float>& weights,
            int64_t top_k) {
  const Experts experts(4);
  const int64_t rows = static_cast<int64_t>(ids.size()) / top_k;
  std::vector<float> x(static_cast<size_t>(rows * kHidden));
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i) * 0.7f);
  std::vector<float> out(x.size(), NAN);
  Scratch scratch;
  RunFlatExperts(ops, scratch, experts.views,
                 {.x = x.data(),
                  .hidden = kHidden,
                  .rows = rows,
                  .ids = ids.data(),
                  .weights = weights.empty() ? nullptr : weights.data(),
                  .top_k = top_k},
                 out.data());
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<double> want(kHidden, 0);
    for (int64_t k = 0; k < top_k; ++k) {
      const size_t lane = static_cast<size_t>(r * top_k + k);
      if (ids[lane] < 0 || ids[lane] >= 4) continue;
      const auto y = experts.Apply(static_cast<size_t>(ids[lane]), x.data() + r * kHidden);
      for (size_t h = 0; h < kHidden; ++h)
        want[h] += (weights.empty() ? 1.0 : weights[lane]) * y[h];
    }
    for (size_t h = 0; h < kHidden; ++h) {
      EXPECT_NEAR(out[static_cast<size_t>(r * kHidden) + h], want[h], 1e-5) << "row " << r;
    }
  }
}

TEST(FlatExperts, SumsWeightedExpertsOnBothDevices) {
  const auto reference = MakeReferenceOps();
  const auto cpu = MakeCpuOps({.threads = 2});
  for (Ops* ops : {reference.get(), cpu->get()}) {
    Expect(*ops, {0, 1, 2, 3, 3, 0}, {0.5f, 0.5f, 0.9f, 0.1f, 1.f, 2.f}, 2);
    Expect(*ops, {1, 1, 1}, {}, 1);  // all rows to one expert; CAP-11: the others have none
    Expect(*ops, {}, {}, 2);         // no rows
  }
}

// IDX-14: masked ids and ids of other ranks contribute exactly nothing and are never looked up.
TEST(FlatExperts, Idx14ForeignIdsGiveZeros) {
  const auto ops = MakeReferenceOps();
  Expect(*ops, {-1, 2, 4, 1000000, -7, -1}, {1.f, 0.5f, 1.f, 1.f, 1.f, 1.f}, 2);
}

}  // namespace
}  // namespace signalbox::expert_runner_test
