// SPDX-License-Identifier: Apache-2.0
//
// What the tests of operations share: random tensors of exact size, weights in every format, the
// CPU implementations of this machine, and comparison within a bound.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "signalbox/ops/ops.h"
#include "signalbox/tensor/dtype.h"

namespace signalbox {

inline constexpr double kEpsilon = 0x1p-24;  // half a unit in the last place of a float near one

inline Ops& Reference() {
  static const std::unique_ptr<Ops> kOps = MakeReferenceOps();
  return *kOps;
}

struct NamedOps {
  std::string name;
  std::unique_ptr<Ops> ops;
};

// Every instruction set of this machine with 1, 2 and 3 threads.
inline const std::vector<NamedOps>& AllCpuOps() {
  static const std::vector<NamedOps> kAll = [] {
    std::vector<NamedOps> made;
    for (const Isa isa : kAllIsas) {
      if (!IsaAvailable(isa)) continue;
      for (const int threads : {1, 2, 3}) {
        std::unique_ptr<Ops> ops = std::move(*MakeCpuOps({.threads = threads, .isa = isa}));
        made.push_back({ops->name() + " x" + std::to_string(threads), std::move(ops)});
      }
    }
    return made;
  }();
  return kAll;
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(static_cast<uint32_t>(seed * 2654435761u + 1)) {}

  float Normal() { return normal_(engine_); }
  int64_t Below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(engine_); }
  uint8_t Byte() { return static_cast<uint8_t>(Below(256)); }

  std::vector<float> Floats(int64_t n, float scale = 1.f) {
    std::vector<float> out(n);
    for (float& x : out) x = scale * Normal();
    return out;
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

// Rows of `width` floats `stride` apart in a buffer with nothing after the last one, so that a read
// past the end is one a sanitizer sees. The gaps hold NaN.
struct Rows {
  std::vector<float> data;
  int64_t rows;
  int64_t width;
  int64_t stride;

  float* at(int64_t r) { return data.data() + r * stride; }
  const float* at(int64_t r) const { return data.data() + r * stride; }
};

inline Rows EmptyRows(int64_t rows, int64_t width, int64_t stride) {
  const int64_t size = rows == 0 ? 0 : (rows - 1) * stride + width;
  return {std::vector<float>(size, std::nanf("")), rows, width, stride};
}

inline Rows RandomRows(Random& random, int64_t rows, int64_t width, int64_t stride,
                       float scale = 1.f) {
  Rows out = EmptyRows(rows, width, stride);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) out.at(r)[i] = scale * random.Normal();
  }
  return out;
}

// A random weight with its storage; rows lie apart and start at odd addresses.
struct Weight {
  std::vector<std::byte> data;
  std::vector<std::byte> scale;
  MatrixView view;

  // Row r in float, by the scalar definition.
  std::vector<float> Row(int64_t r) const {
    std::vector<float> out(view.cols);
    view.DecodeRow(r, out);
    return out;
  }
};

inline void Put(std::vector<std::byte>& bytes, int64_t offset, const void* value, int64_t size) {
  std::memcpy(bytes.data() + offset, value, size);
}

inline void PutNumber(std::vector<std::byte>& bytes, int64_t offset, WeightFormat format,
                      float value) {
  const uint16_t bf16 = FloatToBf16(value);
  const uint16_t f16 = FloatToF16(value);
  if (format == WeightFormat::kF32) Put(bytes, offset, &value, 4);
  if (format == WeightFormat::kBf16) Put(bytes, offset, &bf16, 2);
  if (format == WeightFormat::kF16) Put(bytes, offset, &f16, 2);
}

inline Weight RandomWeight(Random& random, WeightFormat format, int64_t rows, int64_t cols,
                           bool bf16_scale = false) {
  Weight w;
  const int64_t width = PackedBytes(format, cols);
  const int64_t row_bytes = width + 1;
  w.data.resize(rows == 0 ? 0 : (rows - 1) * row_bytes + width);
  for (std::byte& b : w.data) b = static_cast<std::byte>(random.Byte());
  w.view = {.format = format,
            .rows = rows,
            .cols = cols,
            .data = w.data.data(),
            .row_bytes = row_bytes,
            .scale_is_bf16 = bf16_scale};
  if (format == WeightFormat::kMxfp4) {
    w.view.scale_row_bytes = cols / kMxBlock;
    w.scale.resize(rows * w.view.scale_row_bytes);
    for (std::byte& b : w.scale) b = static_cast<std::byte>(120 + random.Below(8));
  } else if (format == WeightFormat::kFp8Block) {
    for (std::byte& b : w.data) {
      if ((b & std::byte{0x7f}) == std::byte{0x7f}) b = std::byte{0};  // no NaN
    }
    const WeightFormat number = bf16_scale ? WeightFormat::kBf16 : WeightFormat::kF32;
    const int64_t blocks = (cols + kFp8BlockSize - 1) / kFp8BlockSize;
    w.view.scale_row_bytes = PackedBytes(number, blocks);
    w.scale.resize((rows + kFp8BlockSize - 1) / kFp8BlockSize * w.view.scale_row_bytes);
    const int64_t size = PackedBytes(number, 1);
    for (int64_t i = 0; i < static_cast<int64_t>(w.scale.size()) / size; ++i) {
      PutNumber(w.scale, i * size, number, 0.01f * (1.f + std::fabs(random.Normal())));
    }
  } else {
    const int64_t size = PackedBytes(format, 1);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        PutNumber(w.data, r * row_bytes + c * size, format, random.Normal());
      }
    }
  }
  w.view.scale = w.scale.data();
  return w;
}

// Bits, so that NaN equals itself and zeros of either sign differ.
inline bool SameBits(const float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return false;
  }
  return true;
}
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && SameBits(a.data(), b.data(), static_cast<int64_t>(a.size()));
}

// Largest |got - want| / bound over all elements; at most 1 is agreement. NaN and infinities must
// be equal in kind.
inline double WorstError(const std::vector<float>& got, const std::vector<float>& want,
                         const std::vector<double>& bound) {
  EXPECT_EQ(got.size(), want.size());
  EXPECT_EQ(got.size(), bound.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (got[i] == want[i]) continue;
    const double error = std::fabs(static_cast<double>(got[i]) - want[i]);
    if (!(error <= bound[i])) {
      worst = std::isfinite(error) && bound[i] > 0 ? std::max(worst, error / bound[i]) : 1e30;
    }
  }
  return worst;
}
inline double WorstError(const std::vector<float>& got, const std::vector<float>& want,
                         double bound) {
  return WorstError(got, want, std::vector<double>(got.size(), bound));
}

}  // namespace signalbox
