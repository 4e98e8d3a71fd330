// SPDX-License-Identifier: Apache-2.0
#include "signalbox/tensor/matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "signalbox/base/math.h"
#include "signalbox/tensor/dtype.h"

namespace signalbox {
namespace {

using ::testing::HasSubstr;

// A matrix of bytes that follow from their position, with its own storage; every format reads them.
struct Stored {
  std::vector<std::byte> data;
  std::vector<std::byte> scale;
  MatrixView view;
};

Stored Make(WeightFormat format, int64_t rows, int64_t cols, bool bf16_scale = false) {
  Stored m;
  const int64_t row_bytes = PackedBytes(format, cols) + 3;  // gaps between rows, odd addresses
  m.data.resize(rows * row_bytes);
  for (size_t i = 0; i < m.data.size(); ++i) m.data[i] = static_cast<std::byte>(i * 37 % 113 + 1);
  m.view = {.format = format,
            .rows = rows,
            .cols = cols,
            .data = m.data.data(),
            .row_bytes = row_bytes,
            .scale_is_bf16 = bf16_scale};
  if (format == WeightFormat::kMxfp4) {
    m.view.scale_row_bytes = cols / kMxBlock + 1;
    m.scale.resize(rows * m.view.scale_row_bytes);
    for (size_t i = 0; i < m.scale.size(); ++i) m.scale[i] = static_cast<std::byte>(120 + i % 16);
  }
  if (format == WeightFormat::kFp8Block) {
    const int64_t block_rows = CeilDiv(rows, kFp8BlockSize);
    const int64_t block_cols = CeilDiv(cols, kFp8BlockSize);
    const int64_t width = bf16_scale ? 2 : 4;
    m.view.scale_row_bytes = block_cols * width;
    m.scale.resize(block_rows * m.view.scale_row_bytes);
    for (int64_t i = 0; i < block_rows * block_cols; ++i) {
      const float s = 1.f + static_cast<float>(i);  // exact in BF16 for the few blocks used here
      const uint16_t b = FloatToBf16(s);
      std::memcpy(m.scale.data() + i * width, bf16_scale ? static_cast<const void*>(&b) : &s,
                  width);
    }
  }
  m.view.scale = m.scale.data();
  return m;
}

std::vector<float> Row(const MatrixView& w, int64_t r) {
  std::vector<float> out(w.cols);
  w.DecodeRow(r, out);
  return out;
}

TEST(MatrixView, DecodesEveryFormat) {
  const std::vector<float> f = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(Row(F32View(f, 2, 3), 1), (std::vector<float>{4, 5, 6}));

  const std::vector<uint16_t> b = {0x3f80, 0xc000, 0x3e80};
  const MatrixView bf16 = {.format = WeightFormat::kBf16,
                           .rows = 1,
                           .cols = 3,
                           .data = std::as_bytes(std::span(b)).data(),
                           .row_bytes = 6};
  EXPECT_EQ(Row(bf16, 0), (std::vector<float>{1.f, -2.f, 0.25f}));

  const std::vector<uint16_t> h = {0x3c00, 0xc000, 0x3400};
  MatrixView f16 = bf16;
  f16.format = WeightFormat::kF16;
  f16.data = std::as_bytes(std::span(h)).data();
  EXPECT_EQ(Row(f16, 0), (std::vector<float>{1.f, -2.f, 0.25f}));
}

TEST(MatrixView, Mxfp4LowNibbleIsTheEvenColumn) {
  std::vector<uint8_t> codes(32);
  codes[0] = 0x71;   // columns 0 and 1: .5 and 6
  codes[16] = 0xf9;  // columns 32 and 33: -.5 and -6
  const std::vector<uint8_t> scales = {128, 126};
  const MatrixView w = {.format = WeightFormat::kMxfp4,
                        .rows = 1,
                        .cols = 64,
                        .data = std::as_bytes(std::span(codes)).data(),
                        .row_bytes = 32,
                        .scale = std::as_bytes(std::span(scales)).data(),
                        .scale_row_bytes = 2};
  const std::vector<float> row = Row(w, 0);
  EXPECT_EQ(row[0], 1.f);
  EXPECT_EQ(row[1], 12.f);
  EXPECT_EQ(row[32], -0.25f);
  EXPECT_EQ(row[33], -3.f);
  EXPECT_EQ(w.bytes(), 34);
  EXPECT_EQ(w.ToString(), "mxfp4 [1, 64]");
}

TEST(MatrixView, Fp8ScaleIsPerBlock) {
  for (const bool bf16_scale : {false, true}) {
    const Stored m = Make(WeightFormat::kFp8Block, 130, 200, bf16_scale);
    for (const int64_t r : {0, 127, 128, 129}) {
      const std::vector<float> row = Row(m.view, r);
      for (int64_t c = 0; c < 200; ++c) {
        const float scale = 1.f + static_cast<float>(r / 128 * 2 + c / 128);
        const auto code = static_cast<uint8_t>(m.view.data[r * m.view.row_bytes + c]);
        ASSERT_EQ(row[c], E4m3ToFloat(code) * scale) << r << "," << c;
      }
    }
    EXPECT_EQ(m.view.bytes(), 130 * 200 + 4 * (bf16_scale ? 2 : 4));
  }
}

// A slice reads what the whole reads, also a slice of a slice: any cut, every format.
RC_GTEST_PROP(MatrixView, SliceReadsWhatTheWholeReads, ()) {
  const auto format = static_cast<WeightFormat>(*rc::gen::inRange(0, 5));
  const int64_t step = format == WeightFormat::kMxfp4 ? kMxBlock : 1;
  const int64_t rows = *rc::gen::inRange<int64_t>(1, 300);
  const int64_t cols = step * *rc::gen::inRange<int64_t>(1, 300 / step + 1);
  const Stored m = Make(format, rows, cols, *rc::gen::arbitrary<bool>());
  MatrixView view = m.view;
  int64_t row = 0;
  int64_t col = 0;
  for (int cut = 0; cut < 2; ++cut) {
    const int64_t r0 = *rc::gen::inRange<int64_t>(0, view.rows);
    const int64_t r1 = *rc::gen::inRange<int64_t>(r0 + 1, view.rows + 1);
    const int64_t c0 = step * *rc::gen::inRange<int64_t>(0, view.cols / step);
    const int64_t c1 = step * *rc::gen::inRange<int64_t>(c0 / step + 1, view.cols / step + 1);
    view = *(*view.Rows(r0, r1)).Cols(c0, c1);
    row += r0;
    col += c0;
  }
  for (int64_t r = 0; r < view.rows; r += std::max<int64_t>(1, view.rows - 1)) {
    const std::vector<float> whole = Row(m.view, row + r);
    const std::vector<float> part = Row(view, r);
    for (int64_t c = 0; c < view.cols; ++c) {
      RC_ASSERT(std::bit_cast<uint32_t>(part[c]) == std::bit_cast<uint32_t>(whole[col + c]));
    }
  }
}

TEST(MatrixView, Mxfp4IsCutAtBlocksOnly) {
  const Stored m = Make(WeightFormat::kMxfp4, 4, 128);
  EXPECT_TRUE(m.view.Cols(32, 96).ok());
  for (const auto& [begin, end] : {std::pair{16, 64}, {32, 80}, {1, 2}}) {
    const Status status = m.view.Cols(begin, end).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("a multiple of 32"));
    EXPECT_THAT(status.message(), HasSubstr("mxfp4 [4, 128]"));
  }
}

TEST(MatrixView, CutsOutsideAreErrors) {
  const Stored m = Make(WeightFormat::kFp8Block, 4, 128);
  for (const auto& [begin, end] :
       {std::pair<int64_t, int64_t>{-1, 2}, {3, 2}, {0, 129}, {INT64_MAX, INT64_MAX}}) {
    EXPECT_EQ(m.view.Rows(begin, end).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(m.view.Cols(begin, end).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(m.view.Rows(0, 5).status().message(), HasSubstr("[0, 4]"));
  EXPECT_EQ(m.view.Rows(4, 4)->rows, 0);
  EXPECT_EQ(m.view.Rows(2, 2)->bytes(), 0);
}

TEST(MatrixViewDeathTest, DecodeRowChecksItsCaller) {
  const Stored m = Make(WeightFormat::kF32, 2, 4);
  std::vector<float> out(3);
  EXPECT_DEATH(m.view.DecodeRow(0, out), "f32 \\[2, 4\\]: row 0 into 3 floats");
}

}  // namespace
}  // namespace signalbox
