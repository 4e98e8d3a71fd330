// SPDX-License-Identifier: Apache-2.0
//
// Int8 activations: the scalar definition of products of MXFP4 weights with activations rounded to
// eight bits, a block of 32 columns at a time (ActivationPrecision::kInt8).
//
//   s = max|x| / 127,  q = clamp(round(x / s), -127, 127)      round to nearest even, per block
//   y = sum over blocks, in order, of fma(dot, (e8m0 * 0.5) * s, y)     in float, from y = 0
//
// where dot = sum q * (2 * e2m1) is a whole number below 2^16: exact in any order. A block whose
// scale is zero has q = 0; a block with a number that is not finite has q = 0 and a NaN as scale.
// The bits are thus the same for every implementation, tile shape and number of tokens.
//
//   std::vector<Int8Block> q(w.cols / kMxBlock);
//   QuantiseRow(x, w.cols, q.data());
//   y[r] = Int8Dot(q.data(), w, r);
#pragma once

#include <cstdint>

#include "signalbox/tensor/matrix.h"

namespace signalbox {

// 2 * E2M1 is in [-12, 12]: adding this makes it unsigned, as the processors' products of bytes
// want one side to be.
inline constexpr int32_t kE2m1Bias = 12;

// A block of a token's activations.
struct Int8Block {
  int8_t q[kMxBlock];  // even columns, then odd ones: as the halves of packed bytes come
  float scale;
  int32_t start;  // -kE2m1Bias * sum of q
};

// out [cols / 32]; cols is a multiple of 32.
void QuantiseRow(const float* x, int64_t cols, Int8Block* out);

// Row `row` of an MXFP4 matrix times x [w.cols / 32].
float Int8Dot(const Int8Block* x, const MatrixView& w, int64_t row);

}  // namespace signalbox
