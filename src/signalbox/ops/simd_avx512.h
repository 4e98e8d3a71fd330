// SPDX-License-Identifier: Apache-2.0
//
// Vec for AVX-512 (F, BW, VL, DQ): 16 floats. Included by cpu_avx512.cc only; simd_portable.h says
// what each function means. Everything is local to that file, because code compiled for one
// instruction set must never be linked into another's.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

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

}  // namespace
}  // namespace signalbox
