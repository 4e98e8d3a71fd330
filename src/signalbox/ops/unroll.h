// SPDX-License-Identifier: Apache-2.0
//
// SB_UNROLL before a loop of a constant number of rounds: complete unrolling keeps arrays of
// vectors in registers. SB_INLINE before a function that takes such arrays does the same: the
// compiler's own opinion of its size would put them in memory.
//
//   SB_UNROLL
//   for (int t = 0; t < kTokens; ++t) sum[t] = Zero();
#pragma once

#define SB_INLINE __attribute__((always_inline)) inline

#if defined(__clang__)
#define SB_UNROLL _Pragma("unroll")
#else
#define SB_UNROLL _Pragma("GCC unroll 16")
#endif
