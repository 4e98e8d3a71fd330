// SPDX-License-Identifier: Apache-2.0
//
// SB_UNROLL before a loop of a constant number of rounds: complete unrolling keeps arrays of
// vectors in registers.
//
//   SB_UNROLL
//   for (int t = 0; t < kTokens; ++t) sum[t] = Zero();
#pragma once

#if defined(__clang__)
#define SB_UNROLL _Pragma("unroll")
#else
#define SB_UNROLL _Pragma("GCC unroll 16")
#endif
