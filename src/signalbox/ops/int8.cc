// SPDX-License-Identifier: Apache-2.0
#include "signalbox/ops/int8.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "signalbox/ops/ops.h"
#include "signalbox/tensor/dtype.h"

namespace signalbox {
namespace {

void QuantiseBlock(const float* x, Int8Block* out) {
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < kMxBlock; ++i) {
    finite = finite && std::isfinite(x[i]);
    largest = std::max(largest, std::fabs(x[i]));
  }
  const float scale = largest / 127.f;
  *out = {.q = {}, .scale = finite ? scale : std::numeric_limits<float>::quiet_NaN(), .start = 0};
  if (!finite || scale == 0.f) return;
  for (int64_t i = 0; i < kMxBlock; ++i) {
    // The clamp is for subnormal scales alone, whose own rounding is coarse.
    const float q = std::clamp(std::nearbyint(x[i] / scale), -127.f, 127.f);
    out->q[i / 2 + i % 2 * kMxBlock / 2] = static_cast<int8_t>(q);
    out->start -= kE2m1Bias * static_cast<int32_t>(q);
  }
}

}  // namespace

std::string_view ToString(ActivationPrecision precision) {
  switch (precision) {
    case ActivationPrecision::kFloat:
      return "float";
    case ActivationPrecision::kInt8:
      return "int8";
  }
  return "unknown";
}

void QuantiseRow(const float* x, int64_t cols, Int8Block* out) {
  for (int64_t b = 0; b < cols / kMxBlock; ++b) QuantiseBlock(x + b * kMxBlock, out + b);
}

float Int8Dot(const Int8Block* x, const MatrixView& w, int64_t row) {
  float y = 0;
  for (int64_t b = 0; b < w.cols / kMxBlock; ++b) {
    const std::byte* packed = w.data + row * w.row_bytes + b * kMxBlock / 2;
    int32_t dot = 0;
    for (int64_t i = 0; i < kMxBlock / 2; ++i) {
      const auto doubled = [](std::byte code) {
        return static_cast<int32_t>(2 * kE2m1Values[std::to_integer<int>(code)]);
      };
      dot += doubled(packed[i] & std::byte{0xf}) * x[b].q[i];
      dot += doubled(packed[i] >> 4) * x[b].q[i + kMxBlock / 2];
    }
    const auto code = std::to_integer<uint8_t>(w.scale[row * w.scale_row_bytes + b]);
    y = std::fma(static_cast<float>(dot), E8m0ToFloat(code) * 0.5f * x[b].scale, y);
  }
  return y;
}

}  // namespace signalbox
