// SPDX-License-Identifier: Apache-2.0
//
// What the files of the layer math share. Internal to model/.
#pragma once

#include <cstdint>

#include "signalbox/model/layer_math.h"

namespace signalbox {

// y [tokens, w.rows] <- w x (+ bias), rows x_stride and y_stride floats apart.
inline void MatMul(const MathContext& ctx, const MatrixView& w, const float* x, int64_t x_stride,
                   int64_t tokens, float* y, int64_t y_stride, const float* bias = nullptr) {
  ctx.ops.MatMul({.x = x,
                  .x_stride = x_stride,
                  .tokens = tokens,
                  .w = w,
                  .bias = bias,
                  .y = y,
                  .y_stride = y_stride});
}

}  // namespace signalbox
