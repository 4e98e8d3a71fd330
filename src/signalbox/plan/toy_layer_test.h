// SPDX-License-Identifier: Apache-2.0
//
// The numbers of a toy layer: small enough to run on sixteen simulated ranks in a millisecond, with
// every part that a plan can cut. Test code.
#pragma once

#include <cmath>
#include <cstddef>
#include <map>
#include <random>
#include <stdexcept>
#include <vector>

#include "signalbox/plan/step.h"

namespace signalbox::toy {

using Vec = std::vector<double>;
using Mat = std::vector<Vec>;  // [out][in]

inline constexpr int kHidden = 4;
inline constexpr int kLatentWidth = 3;
inline constexpr int kHeads = 6;
inline constexpr int kExperts = 5;
inline constexpr int kTopK = 2;
inline constexpr int kWidth = 6;  // inner width of experts, shared expert and MLP

// Steps that cannot be carried out at all: shapes that do not fit.
struct Unfit : std::runtime_error {
  using std::runtime_error::runtime_error;
};
inline void Fit(bool ok, const char* what) {
  if (!ok) throw Unfit(what);
}

inline Vec operator*(const Mat& m, const Vec& x) {
  Fit(m[0].size() == x.size(), "width");
  Vec y(m.size());
  for (size_t i = 0; i < m.size(); ++i) {
    for (size_t k = 0; k < x.size(); ++k) y[i] += m[i][k] * x[k];
  }
  return y;
}
inline void AddTo(Vec& y, const Vec& x, double factor = 1) {
  if (y.empty()) y.assign(x.size(), 0);
  Fit(y.size() == x.size(), "width");
  for (size_t i = 0; i < x.size(); ++i) y[i] += factor * x[i];
}

// Part `share` of `shares` of a row of `width`: [begin, end).
struct Part {
  int share = 0;
  int shares = 1;
  int begin(int width) const { return (width * share + shares - 1) / shares; }
  int end(int width) const { return (width * (share + 1) + shares - 1) / shares; }
};

struct Mlp2 {
  Mat up, down;
  Vec Run(const Vec& x, Part part) const {
    Vec inner = up * x;
    for (int i = 0; i < kWidth; ++i) {
      const bool mine = i >= part.begin(kWidth) && i < part.end(kWidth);
      inner[size_t(i)] = mine ? std::tanh(inner[size_t(i)]) : 0;
    }
    return down * inner;
  }
};

struct Layer {
  std::mt19937 random;
  Mat router, gate, latent_down, latent_up;
  std::vector<Mat> heads;
  std::vector<Mlp2> experts, latent_experts;
  Mlp2 shared, mlp;
  std::map<NormRole, double> norm_gain = {
      {NormRole::kMixerInput, 0.9}, {NormRole::kFeedForwardInput, 1.1}, {NormRole::kLatent, 0.7}};

  explicit Layer(unsigned seed) : random(seed) {
    router = Random(kExperts, kHidden);
    gate = Random(1, kHidden);
    latent_down = Random(kLatentWidth, kHidden);
    latent_up = Random(kHidden, kLatentWidth);
    for (int i = 0; i < kHeads; ++i) heads.push_back(Random(kHidden, kHidden));
    for (int i = 0; i < kExperts; ++i) {
      experts.push_back({Random(kWidth, kHidden), Random(kHidden, kWidth)});
      latent_experts.push_back({Random(kWidth, kLatentWidth), Random(kLatentWidth, kWidth)});
    }
    shared = {Random(kWidth, kHidden), Random(kHidden, kWidth)};
    mlp = {Random(kWidth, kHidden), Random(kHidden, kWidth)};
  }
  Mat Random(int rows, int cols) {
    std::normal_distribution<double> normal;
    Mat m(static_cast<size_t>(rows), Vec(static_cast<size_t>(cols)));
    for (Vec& row : m) {
      for (double& v : row) v = normal(random);
    }
    return m;
  }
  Vec Norm(NormRole role, const Vec& x) const {
    double squares = 1e-6;
    for (double v : x) squares += v * v / double(x.size());
    Vec y = x;
    for (double& v : y) v *= norm_gain.at(role) / std::sqrt(squares);
    return y;
  }
  double Gate(const Vec& y) const { return 1 / (1 + std::exp(-(gate * y)[0])); }
  Vec Expert(int expert, const Vec& x, Part part) const {
    const auto& e = x.size() == kLatentWidth ? latent_experts : experts;
    return e[static_cast<size_t>(expert)].Run(x, part);
  }
};

}  // namespace signalbox::toy
