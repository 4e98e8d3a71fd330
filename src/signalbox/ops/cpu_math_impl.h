// SPDX-License-Identifier: Apache-2.0
//
// Functions of a Vec that every instruction set shares. Included after one simd_*.h, by the file of
// that instruction set only.
#pragma once

#include "signalbox/ops/unroll.h"

namespace signalbox {
namespace {

// Sum and largest of the lanes, pairwise from the ends of halves.
template <typename Op>
inline float Fold(Vec v, Op op) {
  float lane[kLanes];
  Store(lane, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] = op(lane[i], lane[i + width]);
  }
  return lane[0];
}
inline float Sum(Vec v) {
  return Fold(v, [](float a, float b) { return a + b; });
}
inline float MaxLane(Vec v) {
  return Fold(v, [](float a, float b) { return a > b ? a : b; });
}

inline float SquareRoot(float x) {
  return __builtin_sqrtf(x);
}

// x = n ln 2 + r with |r| <= ln 2 / 2, and on that interval e^r - 1 = r + r^2 p(r) with a minimax
// fit of p: `rest`, to about one unit in the last place.
struct ExpParts {
  Vec n;
  Vec rest;
};
inline ExpParts SplitExp(Vec x) {
  // Past these ends the result is zero or infinite anyway, and n keeps to what can be scaled by.
  x = Min(Set(89.f), Max(Set(-105.f), x));
  const Vec n = Round(Mul(x, Set(1.44269504f)));
  Vec r = Fma(n, Set(-0.693359375f), x);  // ln 2 in two parts; n times the first is exact
  r = Fma(n, Set(2.12194440e-4f), r);
  Vec p = Set(1.979029767e-04f);
  p = Fma(p, r, Set(1.394470339e-03f));
  p = Fma(p, r, Set(8.333497681e-03f));
  p = Fma(p, r, Set(4.166629538e-02f));
  p = Fma(p, r, Set(1.666666567e-01f));
  p = Fma(p, r, Set(0.5f));
  return {n, Fma(Mul(r, r), p, r)};
}
inline Vec Exp(Vec x) {
  const ExpParts e = SplitExp(x);
  return ScaleByPowerOfTwo(Add(e.rest, Set(1.f)), e.n);
}
inline float Exp(float x) {
  float lane[kLanes];
  Store(lane, Exp(Set(x)));
  return lane[0];
}

// (e^2x - 1) / (e^2x + 1). The numerator is put together from its parts, so that small x keep their
// relative accuracy; past 15 the result is one.
inline Vec Tanh(Vec x) {
  const Vec twice = Min(Set(30.f), Max(Set(-30.f), Add(x, x)));
  const ExpParts e = SplitExp(twice);
  const Vec power = ScaleByPowerOfTwo(Set(1.f), e.n);
  const Vec above = Add(Mul(e.rest, power), Sub(power, Set(1.f)));  // e^2x - 1
  return Div(above, Add(above, Set(2.f)));
}

inline Vec OnePlusExpMinus(Vec x) {
  return Add(Set(1.f), Exp(Sub(Zero(), x)));
}
inline Vec Sigmoid(Vec x) {
  return Div(Set(1.f), OnePlusExpMinus(x));
}
inline Vec Silu(Vec x) {
  return Div(x, OnePlusExpMinus(x));
}

// fn(offset, lanes) over [0, n): full vectors, then the rest.
template <typename Full, typename Part>
inline void ForVecs(int64_t n, Full full, Part part) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) full(i);
  if (i < n) part(i, static_cast<int>(n - i));
}

}  // namespace
}  // namespace signalbox
