// SPDX-License-Identifier: Apache-2.0
//
// Vec in plain C++: 8 floats in a struct, for machines without a hand-written instruction set and
// as the description of what simd_avx2.h and simd_avx512.h provide. Kernels (cpu_*_impl.h) are
// written against these functions only. Included by cpu_portable.cc only.
//
//   Vec sum = Zero();
//   for (; i + kLanes <= n; i += kLanes) sum = Fma(Load(x + i), Load(w + i), sum);
//   if (i < n) sum = Fma(LoadPart(x + i, n - i), LoadPart(w + i, n - i), sum);
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "signalbox/tensor/dtype.h"

namespace signalbox {
namespace {

constexpr int kLanes = 8;
constexpr int kMaxTileTokens = 2;  // tokens per register tile

struct Vec {
  float v[kLanes];
};

template <typename Fn>
inline Vec Map(Fn fn) {
  Vec out;
  for (int i = 0; i < kLanes; ++i) out.v[i] = fn(i);
  return out;
}

inline Vec Set(float v) {
  return Map([&](int) { return v; });
}
inline Vec Zero() {
  return Set(0.f);
}
// No alignment needed; the Part forms touch the first n elements only, the others read as zero.
inline Vec LoadPart(const void* p, int n) {
  Vec out = Zero();
  std::memcpy(out.v, p, n * sizeof(float));
  return out;
}
inline Vec Load(const void* p) {
  return LoadPart(p, kLanes);
}
inline void StorePart(float* p, Vec v, int n) {
  std::memcpy(p, v.v, n * sizeof(float));
}
inline void Store(float* p, Vec v) {
  StorePart(p, v, kLanes);
}
inline Vec Add(Vec a, Vec b) {
  return Map([&](int i) { return a.v[i] + b.v[i]; });
}
inline Vec Sub(Vec a, Vec b) {
  return Map([&](int i) { return a.v[i] - b.v[i]; });
}
inline Vec Mul(Vec a, Vec b) {
  return Map([&](int i) { return a.v[i] * b.v[i]; });
}
inline Vec Div(Vec a, Vec b) {
  return Map([&](int i) { return a.v[i] / b.v[i]; });
}
// a * b + c, with one rounding or two.
inline Vec Fma(Vec a, Vec b, Vec c) {
  return Map([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
// A NaN in `b` stays.
inline Vec Max(Vec a, Vec b) {
  return Map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec Min(Vec a, Vec b) {
  return Map([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
// To the nearest whole number, for |a| < 2^22.
inline Vec Round(Vec a) {
  constexpr float kShift = 0x1.8p23f;  // adding it leaves no bits below one
  return Map([&](int i) { return (a.v[i] + kShift) - kShift; });
}
// a * 2^n for whole n in [-250, 250], also where the result is subnormal or overflows.
inline Vec ScaleByPowerOfTwo(Vec a, Vec n) {
  const auto power = [](int32_t e) {
    return __builtin_bit_cast(float, static_cast<uint32_t>(e + 127) << 23);
  };
  return Map([&](int i) {
    if (!(n.v[i] >= -250.f && n.v[i] <= 250.f)) return a.v[i] * n.v[i];  // NaN
    const auto whole = static_cast<int32_t>(n.v[i]);
    const int32_t half = whole / 2;
    return a.v[i] * power(half) * power(whole - half);
  });
}

// out[r] = sum of the lanes of rows[r], each in the same order.
inline void SumRows(const Vec (&rows)[4], float* out) {
  for (int r = 0; r < 4; ++r) {
    const float* v = rows[r].v;
    out[r] = ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
  }
}

inline Vec LoadBf16Part(const std::byte* p, int n) {
  uint16_t bits[kLanes] = {};
  std::memcpy(bits, p, 2 * n);
  return Map([&](int i) { return __builtin_bit_cast(float, uint32_t{bits[i]} << 16); });
}
inline Vec LoadBf16(const std::byte* p) {
  return LoadBf16Part(p, kLanes);
}
inline Vec LoadF16Part(const std::byte* p, int n) {
  uint16_t bits[kLanes] = {};
  std::memcpy(bits, p, 2 * n);
  return Map([&](int i) { return F16ToFloat(bits[i]); });
}
inline Vec LoadF16(const std::byte* p) {
  return LoadF16Part(p, kLanes);
}
inline Vec LoadE4m3Part(const std::byte* p, int n) {
  uint8_t codes[kLanes] = {};
  std::memcpy(codes, p, n);
  return Map([&](int i) { return E4m3ToFloat(codes[i]); });
}
inline Vec LoadE4m3(const std::byte* p) {
  return LoadE4m3Part(p, kLanes);
}

// E2M1 values times a scale; LoadE2m1 reads kLanes codes from kLanes / 2 bytes.
struct E2m1Table {
  float v[16];
};
inline E2m1Table ScaledE2m1(float scale) {
  E2m1Table table;
  for (int i = 0; i < 16; ++i) table.v[i] = kE2m1Values[i] * scale;
  return table;
}
inline Vec LoadE2m1(const std::byte* p, const E2m1Table& table) {
  uint32_t eight_codes;
  std::memcpy(&eight_codes, p, 4);
  return Map([&](int i) { return table.v[(eight_codes >> (4 * i)) & 0xf]; });
}

// ---- Whole numbers, for cpu_int8_impl.h

constexpr int kInt8Tokens = 2;  // tokens per register tile

// Lane r of a panel of kLanes weight rows: a sum, or four bytes of the row.
struct IntVec {
  int32_t v[kLanes];
};
struct ByteVec {
  uint8_t v[4 * kLanes];
};

inline IntVec SetInt(int32_t v) {
  IntVec out;
  for (int32_t& lane : out.v) lane = v;
  return out;
}
inline Vec ToVec(IntVec a) {
  return Map([&](int i) { return static_cast<float>(a.v[i]); });
}
// a * b + c with one rounding.
inline Vec FmaOnce(Vec a, Vec b, Vec c) {
  return Map([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline ByteVec LoadByteVec(const uint8_t* p) {
  ByteVec out;
  std::memcpy(out.v, p, sizeof(out.v));
  return out;
}
inline void StoreByteVec(uint8_t* p, ByteVec v) {
  std::memcpy(p, v.v, sizeof(v.v));
}
// Lane r of units[u] = bytes [offset + 4u, offset + 4u + 4) of rows[r].
inline void LoadUnits(const std::byte* const* rows, int64_t offset, ByteVec (&units)[4]) {
  for (int u = 0; u < 4; ++u) {
    for (int r = 0; r < kLanes; ++r) std::memcpy(units[u].v + 4 * r, rows[r] + offset + 4 * u, 4);
  }
}
// 2 * E2M1 + kE2m1Bias of the low or the high halves of bytes.
constexpr uint8_t kBiasedE2m1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
inline ByteVec LowE2m1(ByteVec packed) {
  ByteVec out;
  for (int i = 0; i < 4 * kLanes; ++i) out.v[i] = kBiasedE2m1[packed.v[i] & 0xf];
  return out;
}
inline ByteVec HighE2m1(ByteVec packed) {
  ByteVec out;
  for (int i = 0; i < 4 * kLanes; ++i) out.v[i] = kBiasedE2m1[packed.v[i] >> 4];
  return out;
}
// sum[t] lane r += w . x[t] over 16 columns: lane r of w[u] meets x[t][4u .. 4u + 4).
template <int kTokens>
inline void DotUnits(const ByteVec (&w)[4], const int8_t* const* x, IntVec* sum) {
  for (int t = 0; t < kTokens; ++t) {
    for (int u = 0; u < 4; ++u) {
      for (int r = 0; r < kLanes; ++r) {
        for (int i = 0; i < 4; ++i) sum[t].v[r] += w[u].v[4 * r + i] * x[t][4 * u + i];
      }
    }
  }
}
// out[i][r] = half of the E8M0 number at rows[r][first + i] for i < n; n is at most 8.
inline void LoadHalfE8m0(const std::byte* const* rows, int64_t first, int n, float* out) {
  for (int i = 0; i < n; ++i) {
    for (int r = 0; r < kLanes; ++r) {
      out[i * kLanes + r] = E8m0ToFloat(static_cast<uint8_t>(rows[r][first + i])) * 0.5f;
    }
  }
}

}  // namespace
}  // namespace signalbox
