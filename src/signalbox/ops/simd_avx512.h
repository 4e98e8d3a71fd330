// SPDX-License-Identifier: Apache-2.0
//
// Vec for AVX-512 (F, BW, VL, DQ), with VNNI where the compiler's flags have it: 16 floats.
// Included by cpu_avx512.cc and cpu_avx512_vnni.cc only; simd_portable.h says what each function
// means. Everything is local to that file, because code compiled for one instruction set must never
// be linked into another's.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "signalbox/ops/simd_x86.h"
#include "signalbox/ops/unroll.h"

namespace signalbox {
namespace {

constexpr int kLanes = 16;
constexpr int kMaxTileTokens = 6;  // 6 x 4 sums and their operands fill the 32 registers

using Vec = __m512;

inline __mmask16 FirstLanes(int n) {
  return static_cast<__mmask16>((1u << n) - 1);
}

inline Vec Zero() {
  return _mm512_setzero_ps();
}
inline Vec Set(float v) {
  return _mm512_set1_ps(v);
}
inline Vec Load(const void* p) {
  return _mm512_loadu_ps(p);
}
inline Vec LoadPart(const void* p, int n) {
  return _mm512_maskz_loadu_ps(FirstLanes(n), p);
}
inline void Store(float* p, Vec v) {
  _mm512_storeu_ps(p, v);
}
inline void StorePart(float* p, Vec v, int n) {
  _mm512_mask_storeu_ps(p, FirstLanes(n), v);
}
inline Vec Add(Vec a, Vec b) {
  return _mm512_add_ps(a, b);
}
inline Vec Sub(Vec a, Vec b) {
  return _mm512_sub_ps(a, b);
}
inline Vec Mul(Vec a, Vec b) {
  return _mm512_mul_ps(a, b);
}
inline Vec Div(Vec a, Vec b) {
  return _mm512_div_ps(a, b);
}
inline Vec Fma(Vec a, Vec b, Vec c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline Vec Max(Vec a, Vec b) {
  return _mm512_max_ps(a, b);
}
inline Vec Min(Vec a, Vec b) {
  return _mm512_min_ps(a, b);
}
inline Vec Round(Vec a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Vec ScaleByPowerOfTwo(Vec a, Vec n) {
  return _mm512_scalef_ps(a, n);
}

// Lanes are added as 16 -> 8 -> 4 (halves), then in pairs.
inline void SumRows(const Vec (&rows)[4], float* out) {
  const auto halves = [](Vec a, Vec b) {  // [a 8 lanes | b 8 lanes]
    return Add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  };
  const Vec ab = halves(rows[0], rows[1]);
  const Vec cd = halves(rows[2], rows[3]);
  Vec v = Add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  v = Add(v, _mm512_permute_ps(v, 0xb1));
  v = Add(v, _mm512_permute_ps(v, 0x4e));
  const __m512i every_fourth = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(every_fourth, v)));
}

inline Vec Bf16ToVec(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline Vec LoadBf16(const std::byte* p) {
  return Bf16ToVec(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec LoadBf16Part(const std::byte* p, int n) {
  return Bf16ToVec(_mm256_maskz_loadu_epi16(FirstLanes(n), p));
}
inline Vec LoadF16(const std::byte* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec LoadF16Part(const std::byte* p, int n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(FirstLanes(n), p));
}

// The bits of an E4M3 number are those of the half 2^8 times smaller, but for its NaN.
inline Vec E4m3ToVec(__m128i codes) {
  const __m256i wide = _mm256_cvtepu8_epi16(codes);
  const __m256i half = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(wide, 8), 1),
                                        _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
  const __m256i magnitude_bits = _mm256_set1_epi16(0x7f);
  const __mmask16 nan =
      _mm256_cmpeq_epi16_mask(_mm256_and_si256(wide, magnitude_bits), magnitude_bits);
  return Mul(_mm512_cvtph_ps(_mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(0x7e00))),
             Set(256.f));
}
inline Vec LoadE4m3(const std::byte* p) {
  return E4m3ToVec(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Vec LoadE4m3Part(const std::byte* p, int n) {
  return E4m3ToVec(_mm_maskz_loadu_epi8(FirstLanes(n), p));
}

// The sixteen E2M1 values times a scale.
using E2m1Table = __m512;
inline E2m1Table ScaledE2m1(float scale) {
  const Vec values = _mm512_setr_ps(0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -0.5f, -1.f,
                                    -1.5f, -2.f, -3.f, -4.f, -6.f);
  return Mul(values, Set(scale));
}
inline Vec LoadE2m1(const std::byte* p, E2m1Table table) {
  int32_t low;
  int32_t high;
  std::memcpy(&low, p, 4);
  std::memcpy(&high, p + 4, 4);
  const __m512i eight_codes = _mm512_mask_set1_epi32(_mm512_set1_epi32(low), 0xff00, high);
  const __m512i shifts =
      _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  // The permutation reads four bits of each index, so the codes above need no mask.
  return _mm512_permutexvar_ps(_mm512_srlv_epi32(eight_codes, shifts), table);
}

// ---- Whole numbers

using IntVec = __m512i;
using ByteVec = __m512i;

inline IntVec SetInt(int32_t v) {
  return _mm512_set1_epi32(v);
}
inline Vec ToVec(IntVec a) {
  return _mm512_cvtepi32_ps(a);
}
inline Vec FmaOnce(Vec a, Vec b, Vec c) {
  return Fma(a, b, c);
}
inline ByteVec LoadByteVec(const uint8_t* p) {
  return _mm512_loadu_si512(p);
}
inline void StoreByteVec(uint8_t* p, ByteVec v) {
  _mm512_storeu_si512(p, v);
}
SB_INLINE void LoadUnits(const std::byte* const* rows, int64_t offset, ByteVec (&units)[4]) {
  const auto four_rows = [&](int r) {
    const auto at = [&](int i) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i] + offset));
    };
    __m512i v = _mm512_castsi128_si512(at(r));
    v = _mm512_inserti32x4(v, at(r + 4), 1);
    v = _mm512_inserti32x4(v, at(r + 8), 2);
    return _mm512_inserti32x4(v, at(r + 12), 3);
  };
  const __m512i a = four_rows(0);
  const __m512i b = four_rows(1);
  const __m512i c = four_rows(2);
  const __m512i d = four_rows(3);
  const __m512i ab_low = _mm512_unpacklo_epi32(a, b);
  const __m512i ab_high = _mm512_unpackhi_epi32(a, b);
  const __m512i cd_low = _mm512_unpacklo_epi32(c, d);
  const __m512i cd_high = _mm512_unpackhi_epi32(c, d);
  units[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
  units[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
  units[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
  units[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}
inline ByteVec BiasedE2m1(__m512i codes) {
  const __m128i values = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values),
                             _mm512_and_si512(codes, _mm512_set1_epi8(0xf)));
}
SB_INLINE ByteVec LowE2m1(ByteVec packed) {
  return BiasedE2m1(packed);
}
SB_INLINE ByteVec HighE2m1(ByteVec packed) {
  return BiasedE2m1(_mm512_srli_epi16(packed, 4));
}

#if defined(__AVX512VNNI__)
constexpr int kInt8Tokens = 12;  // 12 sums of whole numbers, 12 of floats and their operands

template <int kTokens>
SB_INLINE void DotUnits(const ByteVec (&w)[4], const int8_t* const* x, IntVec* sum) {
  SB_UNROLL
  for (int u = 0; u < 4; ++u) {
    SB_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      sum[t] = _mm512_dpbusd_epi32(sum[t], w[u], _mm512_set1_epi32(FourBytes(x[t] + 4 * u)));
    }
  }
}
#else
constexpr int kInt8Tokens = 8;

// Four sums of two products, each at most 24 * 127, fit 16 bits.
template <int kTokens>
SB_INLINE void DotUnits(const ByteVec (&w)[4], const int8_t* const* x, IntVec* sum) {
  const __m512i ones = _mm512_set1_epi16(1);
  SB_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    __m512i pairs = _mm512_maddubs_epi16(w[0], _mm512_set1_epi32(FourBytes(x[t])));
    SB_UNROLL
    for (int u = 1; u < 4; ++u) {
      pairs = _mm512_add_epi16(
          pairs, _mm512_maddubs_epi16(w[u], _mm512_set1_epi32(FourBytes(x[t] + 4 * u))));
    }
    sum[t] = _mm512_add_epi32(sum[t], _mm512_madd_epi16(pairs, ones));
  }
}
#endif

// The code is the exponent's bits, but for the least, which is subnormal, and the NaN.
inline Vec HalfE8m0(__m128i codes) {
  const __m512i bits = _mm512_max_epi32(_mm512_slli_epi32(_mm512_cvtepu8_epi32(codes), 23),
                                        _mm512_set1_epi32(1 << 22));
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
  const __m512i fixed = _mm512_mask_mov_epi32(bits, nan, _mm512_set1_epi32(0x7fc00000));
  return Mul(_mm512_castsi512_ps(fixed), Set(0.5f));
}
inline void LoadHalfE8m0(const std::byte* const* rows, int64_t first, int n, float* out) {
  __m128i front[4];  // of rows 0 .. 7
  __m128i back[4];
  TransposeBytes(rows, first, n, front);
  TransposeBytes(rows + 8, first, n, back);
  for (int i = 0; i < n; ++i) {
    const __m128i codes = i % 2 == 0 ? _mm_unpacklo_epi64(front[i / 2], back[i / 2])
                                     : _mm_unpackhi_epi64(front[i / 2], back[i / 2]);
    Store(out + i * kLanes, HalfE8m0(codes));
  }
}

}  // namespace
}  // namespace signalbox
