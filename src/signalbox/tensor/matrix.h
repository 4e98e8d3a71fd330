// SPDX-License-Identifier: Apache-2.0
//
// MatrixView: a weight matrix exactly as the checkpoint stores it. It owns nothing; it points into
// a mapped file. y = W x with W [rows, cols] = [out, in], row-major. A shard is a view too: slicing
// copies nothing.
//
//   MatrixView w = ...;                                   // MXFP4 [512, 2048]
//   SB_ASSIGN_OR_RETURN(MatrixView half, w.Cols(1024, 2048));  // refused unless on a block of 32
//   w.DecodeRow(3, out);                                  // float [cols]: the reference reading
//
// Formats: OCP MX specification 1.0 (E2M1 elements, E8M0 scales); block FP8 as released with a
// `weight_scale_inv` per 128 x 128 block. No pointer needs any alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "signalbox/base/status.h"

namespace signalbox {

enum class WeightFormat : uint8_t {
  kF32,
  kBf16,
  kF16,
  kMxfp4,     // E2M1 nibbles, low nibble = even column; one E8M0 scale per 32 columns of a row
  kFp8Block,  // E4M3; one scale (F32 or BF16) per block of kFp8BlockSize x kFp8BlockSize
};
std::string_view ToString(WeightFormat format);
// Bytes of `cols` columns of one row, without scales: kMxfp4 packs two columns in a byte.
int64_t PackedBytes(WeightFormat format, int64_t cols);

inline constexpr int64_t kMxBlock = 32;        // columns that share one MXFP4 scale (OCP MX)
inline constexpr int64_t kFp8BlockSize = 128;  // rows and columns that share one FP8 scale

struct MatrixView {
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;  // first byte of row 0
  int64_t row_bytes = 0;            // distance between rows of data
  const std::byte* scale =
      nullptr;  // kMxfp4: u8 [rows, cols/32]; kFp8Block: [ceil(rows/128), ceil(cols/128)]
  int64_t scale_row_bytes = 0;  // distance between rows of scale
  bool scale_is_bf16 = false;   // kFp8Block: BF16 scales, else F32
  // Position of this view's (0, 0) inside its first FP8 block; always 0 for other formats.
  int32_t block_row = 0;
  int32_t block_col = 0;

  bool empty() const { return data == nullptr; }
  // "mxfp4 [512, 2048]"
  std::string ToString() const;
  // Bytes of weights and scales that reading the whole view touches.
  int64_t bytes() const;

  // Rows [begin, end); any cut inside the matrix is legal, an empty one too. InvalidArgument
  // outside.
  Result<MatrixView> Rows(int64_t begin, int64_t end) const;
  // Columns [begin, end); MXFP4 can be cut at multiples of 32 only.
  Result<MatrixView> Cols(int64_t begin, int64_t end) const;

  // out [cols]: row `r` in float. The scalar definition of every format; kernels are tested against
  // it.
  void DecodeRow(int64_t r, std::span<float> out) const;
};

// A view of plain floats, for tests and small computed weights.
MatrixView F32View(std::span<const float> values, int64_t rows, int64_t cols);

}  // namespace signalbox
