// SPDX-License-Identifier: Apache-2.0
//
// Vec for AVX2 with FMA and F16C: 8 floats. Included by cpu_avx2.cc only; simd_portable.h says what
// each function means. Everything is local to that file, because code compiled for one instruction
// set must never be linked into another's.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "signalbox/ops/simd_x86.h"
#include "signalbox/ops/unroll.h"

namespace signalbox {
namespace {

constexpr int kLanes = 8;
constexpr int kMaxTileTokens = 3;  // 3 x 4 sums and their operands fill the 16 registers

using Vec = __m256;

inline __m256i FirstLanes(int n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
}

inline Vec Zero() {
  return _mm256_setzero_ps();
}
inline Vec Set(float v) {
  return _mm256_set1_ps(v);
}
inline Vec Load(const void* p) {
  return _mm256_loadu_ps(static_cast<const float*>(p));
}
inline Vec LoadPart(const void* p, int n) {
  return _mm256_maskload_ps(static_cast<const float*>(p), FirstLanes(n));
}
inline void Store(float* p, Vec v) {
  _mm256_storeu_ps(p, v);
}
inline void StorePart(float* p, Vec v, int n) {
  _mm256_maskstore_ps(p, FirstLanes(n), v);
}
inline Vec Add(Vec a, Vec b) {
  return _mm256_add_ps(a, b);
}
inline Vec Sub(Vec a, Vec b) {
  return _mm256_sub_ps(a, b);
}
inline Vec Mul(Vec a, Vec b) {
  return _mm256_mul_ps(a, b);
}
inline Vec Div(Vec a, Vec b) {
  return _mm256_div_ps(a, b);
}
inline Vec Fma(Vec a, Vec b, Vec c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline Vec Max(Vec a, Vec b) {
  return _mm256_max_ps(a, b);
}
inline Vec Min(Vec a, Vec b) {
  return _mm256_min_ps(a, b);
}
inline Vec Round(Vec a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// In two factors, so that results below the normal range and above the largest come out right.
inline Vec ScaleByPowerOfTwo(Vec a, Vec n) {
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const auto power = [&](__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, bias), 23));
  };
  return Mul(Mul(a, power(half)), power(_mm256_sub_epi32(whole, half)));
}

// Lanes are added as 8 -> 4 (halves), then in pairs.
inline void SumRows(const Vec (&rows)[4], float* out) {
  const auto halves = [](Vec a, Vec b) {  // [a 4 lanes | b 4 lanes]
    return Add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  };
  const Vec pairs = _mm256_hadd_ps(halves(rows[0], rows[1]), halves(rows[2], rows[3]));
  const Vec sums = _mm256_hadd_ps(pairs, pairs);  // [0 2 0 2 | 1 3 1 3]
  _mm_storeu_ps(out, _mm_unpacklo_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
}

inline Vec Bf16ToVec(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline __m128i LoadBytes(const std::byte* p, int n) {
  __m128i v = _mm_setzero_si128();
  std::memcpy(&v, p, n);
  return v;
}
inline Vec LoadBf16(const std::byte* p) {
  return Bf16ToVec(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Vec LoadBf16Part(const std::byte* p, int n) {
  return Bf16ToVec(LoadBytes(p, 2 * n));
}
inline Vec LoadF16(const std::byte* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Vec LoadF16Part(const std::byte* p, int n) {
  return _mm256_cvtph_ps(LoadBytes(p, 2 * n));
}

// The bits of an E4M3 number are those of the half 2^8 times smaller, but for its NaN.
inline Vec E4m3ToVec(__m128i codes) {
  const __m128i wide = _mm_cvtepu8_epi16(codes);
  const __m128i half = _mm_and_si128(_mm_srai_epi16(_mm_slli_epi16(wide, 8), 1),
                                     _mm_set1_epi16(static_cast<int16_t>(0xbfff)));
  const __m128i magnitude_bits = _mm_set1_epi16(0x7f);
  const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(wide, magnitude_bits), magnitude_bits);
  const __m128i nan_bits = _mm_and_si128(nan, _mm_set1_epi16(0x7e00));
  return Mul(_mm256_cvtph_ps(_mm_or_si128(half, nan_bits)), Set(256.f));
}
inline Vec LoadE4m3(const std::byte* p) {
  return E4m3ToVec(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline Vec LoadE4m3Part(const std::byte* p, int n) {
  return E4m3ToVec(LoadBytes(p, n));
}

// The eight E2M1 magnitudes times a scale; the sign is put on after the look-up.
using E2m1Table = __m256;
inline E2m1Table ScaledE2m1(float scale) {
  return Mul(_mm256_setr_ps(0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f), Set(scale));
}
inline Vec LoadE2m1(const std::byte* p, E2m1Table table) {
  int32_t eight_codes;
  std::memcpy(&eight_codes, p, 4);
  const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  // The permutation reads three bits of each index, so the bits above need no mask.
  const __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32(eight_codes), shifts);
  const __m256i sign_bit = _mm256_set1_epi32(static_cast<int32_t>(0x80000000u));
  const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(codes, 28), sign_bit);
  return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, codes), _mm256_castsi256_ps(sign));
}

// ---- Whole numbers

constexpr int kInt8Tokens = 4;  // sums of whole numbers and of floats fill half the registers

using IntVec = __m256i;
using ByteVec = __m256i;

inline IntVec SetInt(int32_t v) {
  return _mm256_set1_epi32(v);
}
inline Vec ToVec(IntVec a) {
  return _mm256_cvtepi32_ps(a);
}
inline Vec FmaOnce(Vec a, Vec b, Vec c) {
  return Fma(a, b, c);
}
inline ByteVec LoadByteVec(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline void StoreByteVec(uint8_t* p, ByteVec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}
SB_INLINE void LoadUnits(const std::byte* const* rows, int64_t offset, ByteVec (&units)[4]) {
  const auto two_rows = [&](int r) {
    const auto at = [&](int i) { return reinterpret_cast<const __m128i*>(rows[i] + offset); };
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(at(r))),
                                   _mm_loadu_si128(at(r + 4)), 1);
  };
  const __m256i a = two_rows(0);
  const __m256i b = two_rows(1);
  const __m256i c = two_rows(2);
  const __m256i d = two_rows(3);
  const __m256i ab_low = _mm256_unpacklo_epi32(a, b);
  const __m256i ab_high = _mm256_unpackhi_epi32(a, b);
  const __m256i cd_low = _mm256_unpacklo_epi32(c, d);
  const __m256i cd_high = _mm256_unpackhi_epi32(c, d);
  units[0] = _mm256_unpacklo_epi64(ab_low, cd_low);
  units[1] = _mm256_unpackhi_epi64(ab_low, cd_low);
  units[2] = _mm256_unpacklo_epi64(ab_high, cd_high);
  units[3] = _mm256_unpackhi_epi64(ab_high, cd_high);
}
inline ByteVec BiasedE2m1(__m256i codes) {
  const __m128i values = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values),
                             _mm256_and_si256(codes, _mm256_set1_epi8(0xf)));
}
SB_INLINE ByteVec LowE2m1(ByteVec packed) {
  return BiasedE2m1(packed);
}
SB_INLINE ByteVec HighE2m1(ByteVec packed) {
  return BiasedE2m1(_mm256_srli_epi16(packed, 4));
}
// Four sums of two products, each at most 24 * 127, fit 16 bits.
template <int kTokens>
SB_INLINE void DotUnits(const ByteVec (&w)[4], const int8_t* const* x, IntVec* sum) {
  const __m256i ones = _mm256_set1_epi16(1);
  SB_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    __m256i pairs = _mm256_maddubs_epi16(w[0], _mm256_set1_epi32(FourBytes(x[t])));
    SB_UNROLL
    for (int u = 1; u < 4; ++u) {
      pairs = _mm256_add_epi16(
          pairs, _mm256_maddubs_epi16(w[u], _mm256_set1_epi32(FourBytes(x[t] + 4 * u))));
    }
    sum[t] = _mm256_add_epi32(sum[t], _mm256_madd_epi16(pairs, ones));
  }
}
// The code is the exponent's bits, but for the least, which is subnormal, and the NaN.
inline Vec HalfE8m0(__m128i codes) {
  const __m256i bits = _mm256_max_epi32(_mm256_slli_epi32(_mm256_cvtepu8_epi32(codes), 23),
                                        _mm256_set1_epi32(1 << 22));
  const __m256i nan = _mm256_cmpeq_epi32(bits, _mm256_set1_epi32(0x7f800000));
  const __m256i quiet = _mm256_and_si256(nan, _mm256_set1_epi32(1 << 22));
  return Mul(_mm256_castsi256_ps(_mm256_or_si256(bits, quiet)), Set(0.5f));
}
inline void LoadHalfE8m0(const std::byte* const* rows, int64_t first, int n, float* out) {
  __m128i columns[4];
  TransposeBytes(rows, first, n, columns);
  for (int i = 0; i < n; ++i) {
    const __m128i two = columns[i / 2];
    Store(out + i * kLanes, HalfE8m0(i % 2 == 0 ? two : _mm_unpackhi_epi64(two, two)));
  }
}

}  // namespace
}  // namespace signalbox
