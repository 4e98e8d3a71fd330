// SPDX-License-Identifier: Apache-2.0
#include "signalbox/tensor/matrix.h"

#include <fmt/core.h>

#include <cstring>

#include "signalbox/base/check.h"
#include "signalbox/base/math.h"
#include "signalbox/tensor/dtype.h"

namespace signalbox {
namespace {

// Files give no alignment.
template <typename T>
T Load(const std::byte* p, int64_t index) {
  T value;
  std::memcpy(&value, p + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

Status BadCut(const MatrixView& w, std::string_view axis, int64_t begin, int64_t end,
              std::string expected) {
  return InvalidArgument({.what = fmt::format("cannot cut {} [{}, {})", axis, begin, end),
                          .where = w.ToString(),
                          .found = fmt::format("[{}, {})", begin, end),
                          .expected = std::move(expected)});
}

}  // namespace

std::string_view ToString(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kF16:
      return "f16";
    case WeightFormat::kMxfp4:
      return "mxfp4";
    case WeightFormat::kFp8Block:
      return "fp8_block";
  }
  return "unknown";
}

int64_t PackedBytes(WeightFormat format, int64_t cols) {
  switch (format) {
    case WeightFormat::kF32:
      return cols * 4;
    case WeightFormat::kBf16:
    case WeightFormat::kF16:
      return cols * 2;
    case WeightFormat::kMxfp4:
      return CeilDiv(cols, 2);
    case WeightFormat::kFp8Block:
      return cols;
  }
  return 0;
}

std::string MatrixView::ToString() const {
  return fmt::format("{} [{}, {}]", signalbox::ToString(format), rows, cols);
}

int64_t MatrixView::bytes() const {
  const int64_t data_bytes = rows * PackedBytes(format, cols);
  if (format == WeightFormat::kMxfp4) return data_bytes + rows * CeilDiv(cols, kMxBlock);
  if (format != WeightFormat::kFp8Block || rows == 0 || cols == 0) return data_bytes;
  const int64_t scales =
      CeilDiv(block_row + rows, kFp8BlockSize) * CeilDiv(block_col + cols, kFp8BlockSize);
  return data_bytes + scales * (scale_is_bf16 ? 2 : 4);
}

Result<MatrixView> MatrixView::Rows(int64_t begin, int64_t end) const {
  if (begin < 0 || begin > end || end > rows) {
    return BadCut(*this, "rows", begin, end, fmt::format("a range inside [0, {}]", rows));
  }
  MatrixView view = *this;
  view.rows = end - begin;
  view.data = data + begin * row_bytes;
  if (format == WeightFormat::kMxfp4) view.scale = scale + begin * scale_row_bytes;
  if (format == WeightFormat::kFp8Block) {
    const int64_t row = block_row + begin;
    view.scale = scale + row / kFp8BlockSize * scale_row_bytes;
    view.block_row = static_cast<int32_t>(row % kFp8BlockSize);
  }
  return view;
}

Result<MatrixView> MatrixView::Cols(int64_t begin, int64_t end) const {
  if (begin < 0 || begin > end || end > cols) {
    return BadCut(*this, "columns", begin, end, fmt::format("a range inside [0, {}]", cols));
  }
  if (format == WeightFormat::kMxfp4 && (begin % kMxBlock != 0 || end % kMxBlock != 0)) {
    return BadCut(
        *this, "columns", begin, end,
        fmt::format("a multiple of {} at both ends (columns that share a scale)", kMxBlock));
  }
  MatrixView view = *this;
  view.cols = end - begin;
  view.data = data + PackedBytes(format, begin);
  if (format == WeightFormat::kMxfp4) view.scale = scale + begin / kMxBlock;
  if (format == WeightFormat::kFp8Block) {
    const int64_t col = block_col + begin;
    view.scale = scale + col / kFp8BlockSize * (scale_is_bf16 ? 2 : 4);
    view.block_col = static_cast<int32_t>(col % kFp8BlockSize);
  }
  return view;
}

void MatrixView::DecodeRow(int64_t r, std::span<float> out) const {
  SB_CHECK(r >= 0 && r < rows && static_cast<int64_t>(out.size()) == cols)
      << ToString() << ": row " << r << " into " << out.size() << " floats";
  const std::byte* row = data + r * row_bytes;
  switch (format) {
    case WeightFormat::kF32:
      for (int64_t c = 0; c < cols; ++c) out[c] = Load<float>(row, c);
      return;
    case WeightFormat::kBf16:
      for (int64_t c = 0; c < cols; ++c) out[c] = Bf16ToFloat(Load<uint16_t>(row, c));
      return;
    case WeightFormat::kF16:
      for (int64_t c = 0; c < cols; ++c) out[c] = F16ToFloat(Load<uint16_t>(row, c));
      return;
    case WeightFormat::kMxfp4: {
      const std::byte* scales = scale + r * scale_row_bytes;
      for (int64_t c = 0; c < cols; ++c) {
        const uint8_t pair = Load<uint8_t>(row, c / 2);
        const uint8_t code = c % 2 == 0 ? pair & 0xf : pair >> 4;
        out[c] = kE2m1Values[code] * E8m0ToFloat(Load<uint8_t>(scales, c / kMxBlock));
      }
      return;
    }
    case WeightFormat::kFp8Block: {
      const std::byte* scales = scale + (block_row + r) / kFp8BlockSize * scale_row_bytes;
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t block = (block_col + c) / kFp8BlockSize;
        const float s =
            scale_is_bf16 ? Bf16ToFloat(Load<uint16_t>(scales, block)) : Load<float>(scales, block);
        out[c] = E4m3ToFloat(Load<uint8_t>(row, c)) * s;
      }
      return;
    }
  }
}

MatrixView F32View(std::span<const float> values, int64_t rows, int64_t cols) {
  SB_CHECK(rows >= 0 && cols >= 0 && static_cast<int64_t>(values.size()) == rows * cols)
      << values.size() << " values as [" << rows << ", " << cols << "]";
  return {.format = WeightFormat::kF32,
          .rows = rows,
          .cols = cols,
          .data = std::as_bytes(values).data(),
          .row_bytes = cols * 4};
}

}  // namespace signalbox
