// SPDX-License-Identifier: Apache-2.0
//
// What simd_avx2.h and simd_avx512.h share, which include it: it uses SSE4.1 and is local to their
// files like they are.
//
//   __m128i columns[4];
//   TransposeBytes(rows, first, 8, columns);  // scales of 8 rows and 8 blocks
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace signalbox {
namespace {

// Four bytes, of no alignment, for a broadcast.
inline int32_t FourBytes(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  return four;
}

// Bytes [first, first + n) of eight rows, n <= 8: columns[i] holds byte first + 2i of each row,
// then byte first + 2i + 1 of each.
inline void TransposeBytes(const std::byte* const* rows, int64_t first, int n,
                           __m128i (&columns)[4]) {
  __m128i pairs[4];
  for (int i = 0; i < 4; ++i) {
    uint64_t even = 0;
    uint64_t odd = 0;
    if (n == 8) {
      std::memcpy(&even, rows[2 * i] + first, 8);
      std::memcpy(&odd, rows[2 * i + 1] + first, 8);
    } else {
      std::memcpy(&even, rows[2 * i] + first, n);
      std::memcpy(&odd, rows[2 * i + 1] + first, n);
    }
    pairs[i] = _mm_unpacklo_epi8(_mm_cvtsi64_si128(static_cast<int64_t>(even)),
                                 _mm_cvtsi64_si128(static_cast<int64_t>(odd)));
  }
  const __m128i front_low = _mm_unpacklo_epi16(pairs[0], pairs[1]);  // of rows 0 .. 3
  const __m128i front_high = _mm_unpackhi_epi16(pairs[0], pairs[1]);
  const __m128i back_low = _mm_unpacklo_epi16(pairs[2], pairs[3]);
  const __m128i back_high = _mm_unpackhi_epi16(pairs[2], pairs[3]);
  columns[0] = _mm_unpacklo_epi32(front_low, back_low);
  columns[1] = _mm_unpackhi_epi32(front_low, back_low);
  columns[2] = _mm_unpacklo_epi32(front_high, back_high);
  columns[3] = _mm_unpackhi_epi32(front_high, back_high);
}

}  // namespace
}  // namespace signalbox
