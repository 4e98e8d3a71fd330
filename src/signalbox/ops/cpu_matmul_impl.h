// SPDX-License-Identifier: Apache-2.0
//
// Matrix products. One output is one Vec of partial sums: lane l adds the columns l, l + kLanes,
// l + 2 kLanes, ... in that order, then the lanes are added (SumRows). Every tile shape below does
// exactly that for each of its outputs, so a token's numbers do not depend on the tile it is in.
//
// Weights are decoded in registers on the way into the sums; for many tokens, packed ones are first
// decoded to kTileRows rows of floats that stay in cache. Decoding is exact but for the one
// rounding of an FP8 block scale, and the same both ways.
#pragma once

namespace signalbox {
namespace {

constexpr struct E8m0Values {
  float v[256];
  constexpr E8m0Values() : v() {
    for (uint32_t code = 0; code < 256; ++code) {
      const uint32_t bits = code == 0 ? 1u << 22 : code == 255 ? 0x7fc00000u : code << 23;
      v[code] = __builtin_bit_cast(float, bits);
    }
  }
} kE8m0;

// Rows of the formats. Load(k, out) gives the kSteps vectors of columns k and up; LoadPart the
// n < kLanes columns at the end of a row.
struct F32Row {
  static constexpr int kSteps = 1;
  const void* p;
  void Load(int64_t k, Vec* out) const { *out = signalbox::Load(At(k)); }
  Vec LoadPart(int64_t k, int n) const { return signalbox::LoadPart(At(k), n); }
  const std::byte* At(int64_t k) const { return static_cast<const std::byte*>(p) + 4 * k; }
};

struct Bf16Row {
  static constexpr int kSteps = 1;
  const std::byte* p;
  void Load(int64_t k, Vec* out) const { *out = LoadBf16(p + 2 * k); }
  Vec LoadPart(int64_t k, int n) const { return LoadBf16Part(p + 2 * k, n); }
};

struct F16Row {
  static constexpr int kSteps = 1;
  const std::byte* p;
  void Load(int64_t k, Vec* out) const { *out = LoadF16(p + 2 * k); }
  Vec LoadPart(int64_t k, int n) const { return LoadF16Part(p + 2 * k, n); }
};

struct E4m3Row {
  static constexpr int kSteps = 1;
  const std::byte* p;
  void Load(int64_t k, Vec* out) const { *out = LoadE4m3(p + k); }
  Vec LoadPart(int64_t k, int n) const { return LoadE4m3Part(p + k, n); }
};

struct Mxfp4Row {
  static constexpr int kSteps = 32 / kLanes;
  const std::byte* p;
  const std::byte* scale;
  void Load(int64_t k, Vec* out) const {
    const E2m1Table table = ScaledE2m1(kE8m0.v[static_cast<uint8_t>(scale[k / 32])]);
    SB_UNROLL
    for (int s = 0; s < kSteps; ++s) out[s] = LoadE2m1(p + k / 2 + s * (kLanes / 2), table);
  }
  Vec LoadPart(int64_t, int) const { return Zero(); }  // never: columns are a multiple of 32
};

// One scale for a vector's columns: for views that begin on a vector of their first block.
struct Fp8Row {
  static constexpr int kSteps = 1;
  const std::byte* p;
  const std::byte* scale;
  bool scale_is_bf16;
  int64_t block_col;
  float Scale(int64_t k) const {
    const int64_t block = (block_col + k) / kFp8BlockSize;
    float value = 0;
    if (scale_is_bf16) {
      uint16_t bits;
      std::memcpy(&bits, scale + 2 * block, 2);
      value = __builtin_bit_cast(float, uint32_t{bits} << 16);
    } else {
      std::memcpy(&value, scale + 4 * block, 4);
    }
    return value;
  }
  void Load(int64_t k, Vec* out) const { *out = Mul(LoadE4m3(p + k), Set(Scale(k))); }
  Vec LoadPart(int64_t k, int n) const { return Mul(LoadE4m3Part(p + k, n), Set(Scale(k))); }
};

inline bool OneScalePerVec(const MatrixView& w) {
  return w.block_col % kLanes == 0;
}

inline Fp8Row MakeFp8Row(const MatrixView& w, int64_t r) {
  return {w.data + r * w.row_bytes, w.scale + (w.block_row + r) / kFp8BlockSize * w.scale_row_bytes,
          w.scale_is_bf16, w.block_col};
}

// fn(make_row) with the format's make_row(r), for formats that decode vector by vector.
template <typename Fn>
inline void WithRows(const MatrixView& w, Fn fn) {
  const auto data = [&](int64_t r) { return w.data + r * w.row_bytes; };
  switch (w.format) {
    case WeightFormat::kF32:
      return fn([&](int64_t r) { return F32Row{data(r)}; });
    case WeightFormat::kBf16:
      return fn([&](int64_t r) { return Bf16Row{data(r)}; });
    case WeightFormat::kF16:
      return fn([&](int64_t r) { return F16Row{data(r)}; });
    case WeightFormat::kMxfp4:
      return fn([&](int64_t r) { return Mxfp4Row{data(r), w.scale + r * w.scale_row_bytes}; });
    case WeightFormat::kFp8Block:
      return fn([&](int64_t r) { return MakeFp8Row(w, r); });
  }
}

// y[t][r] = x[t] . w[r] (+ bias[r]) for kTokens x kRows outputs; kRows is 1 or 4.
template <int kTokens, int kRows, typename Row>
inline void DotTile(const float* const* x, const Row* w, int64_t cols, const float* bias,
                    float* const* y) {
  Vec sum[kTokens][4];
  SB_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    SB_UNROLL
    for (int r = 0; r < 4; ++r) sum[t][r] = Zero();
  }
  constexpr int kStep = Row::kSteps * kLanes;
  int64_t k = 0;
  for (; k + kStep <= cols; k += kStep) {
    Vec xv[kTokens][Row::kSteps];
    SB_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      SB_UNROLL
      for (int s = 0; s < Row::kSteps; ++s) xv[t][s] = Load(x[t] + k + s * kLanes);
    }
    SB_UNROLL
    for (int r = 0; r < kRows; ++r) {
      Vec wv[Row::kSteps];
      w[r].Load(k, wv);
      SB_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        SB_UNROLL
        for (int s = 0; s < Row::kSteps; ++s) sum[t][r] = Fma(xv[t][s], wv[s], sum[t][r]);
      }
    }
  }
  if (k < cols) {
    const int n = static_cast<int>(cols - k);
    SB_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Vec wv = w[r].LoadPart(k, n);
      SB_UNROLL
      for (int t = 0; t < kTokens; ++t) sum[t][r] = Fma(LoadPart(x[t] + k, n), wv, sum[t][r]);
    }
  }
  SB_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    float out[4];
    SumRows(sum[t], out);
    for (int r = 0; r < kRows; ++r) y[t][r] = bias != nullptr ? out[r] + bias[r] : out[r];
  }
}

// DotTile for 1 .. kMaxTileTokens tokens.
template <int kRows, typename Row, int kTokens = kMaxTileTokens>
inline void DotTokens(int64_t tokens, const float* const* x, const Row* w, int64_t cols,
                      const float* bias, float* const* y) {
  if constexpr (kTokens > 1) {
    if (tokens < kTokens) {
      return DotTokens<kRows, Row, kTokens - 1>(tokens, x, w, cols, bias, y);
    }
  }
  DotTile<kTokens, kRows>(x, w, cols, bias, y);
}

// y[t][r] for up to kMaxTileTokens tokens and `count` rows, from row `first` of make_row.
template <typename MakeRow>
inline void DotRows(int64_t tokens, const float* const* x, int64_t first, int64_t count,
                    MakeRow make_row, int64_t cols, const float* bias, float* const* y) {
  using Row = decltype(make_row(int64_t{0}));
  const auto run = [&]<int kRows>(int64_t r) {
    Row w[kRows];
    SB_UNROLL
    for (int i = 0; i < kRows; ++i) w[i] = make_row(first + r + i);
    float* out[kMaxTileTokens];
    for (int64_t t = 0; t < tokens; ++t) out[t] = y[t] + r;
    DotTokens<kRows, Row>(tokens, x, w, cols, bias != nullptr ? bias + r : nullptr, out);
  };
  int64_t r = 0;
  for (; r + 4 <= count; r += 4) run.template operator()<4>(r);
  for (; r < count; ++r) run.template operator()<1>(r);
}

// All tokens of the task against `count` rows from its `row`-th, which make_row(first) begins.
template <typename MakeRow>
inline void DotTask(const MatMulTask& p, int64_t row, int64_t count, int64_t first,
                    MakeRow make_row) {
  const int64_t tiles = (p.tokens + kMaxTileTokens - 1) / kMaxTileTokens;
  for (int64_t tile = 0, t = 0; tile < tiles; ++tile) {
    const int64_t n = (p.tokens - t + tiles - tile - 1) / (tiles - tile);  // tiles of even size
    const float* x[kMaxTileTokens];
    float* y[kMaxTileTokens];
    for (int64_t i = 0; i < n; ++i) {
      x[i] = p.x + (t + i) * p.x_stride;
      y[i] = p.y + (t + i) * p.y_stride + row;
    }
    DotRows(n, x, first, count, make_row, p.w->cols, p.bias != nullptr ? p.bias + row : nullptr, y);
    t += n;
  }
}

template <typename Row>
inline void DecodeInto(const Row& row, int64_t cols, float* out) {
  int64_t k = 0;
  for (; k + Row::kSteps * kLanes <= cols; k += Row::kSteps * kLanes) {
    Vec v[Row::kSteps];
    row.Load(k, v);
    SB_UNROLL
    for (int s = 0; s < Row::kSteps; ++s) Store(out + k + s * kLanes, v[s]);
  }
  if (k < cols) StorePart(out + k, row.LoadPart(k, static_cast<int>(cols - k)), cols - k);
}

// A block boundary may fall inside a vector: go from boundary to boundary.
inline void DecodeFp8Unaligned(const Fp8Row& row, int64_t cols, float* out) {
  for (int64_t begin = 0; begin < cols;) {
    const int64_t to_boundary = kFp8BlockSize - (row.block_col + begin) % kFp8BlockSize;
    const int64_t n = cols - begin < to_boundary ? cols - begin : to_boundary;
    const Vec scale = Set(row.Scale(begin));
    const std::byte* p = row.p + begin;
    float* o = out + begin;
    ForVecs(
        n, [&](int64_t i) { Store(o + i, Mul(LoadE4m3(p + i), scale)); },
        [&](int64_t i, int rest) {
          StorePart(o + i, Mul(LoadE4m3Part(p + i, rest), scale), rest);
        });
    begin += n;
  }
}

void DecodeRow(const MatrixView& w, int64_t row, float* out) {
  if (w.format == WeightFormat::kFp8Block && !OneScalePerVec(w)) {
    return DecodeFp8Unaligned(MakeFp8Row(w, row), w.cols, out);
  }
  WithRows(w, [&](auto make_row) { DecodeInto(make_row(row), w.cols, out); });
}

void LoadNumbers(const void* in, int64_t n, DType dtype, float* out) {
  const auto* bytes = static_cast<const std::byte*>(in);
  if (dtype == DType::kF32) {
    std::memcpy(out, in, static_cast<size_t>(n) * sizeof(float));
  } else if (dtype == DType::kBf16) {
    DecodeInto(Bf16Row{bytes}, n, out);
  } else {
    DecodeInto(E4m3Row{bytes}, n, out);
  }
}

// Two or four bytes a weight cost less to widen again than to read back from a tile; the packed
// formats are decoded for one pass of a register tile only.
inline bool DecodesInRegisters(const MatMulTask& p) {
  switch (p.w->format) {
    case WeightFormat::kMxfp4:
      return p.tokens <= kMaxTileTokens;
    case WeightFormat::kFp8Block:
      return p.tokens <= kMaxTileTokens && OneScalePerVec(*p.w);
    default:
      return true;
  }
}

void MatMul(const MatMulTask& p) {
  const MatrixView& w = *p.w;
  const bool in_registers = DecodesInRegisters(p);
  const int64_t stride = TileFloats(w.cols) / kTileRows;
  // Even where there is no tile to fill, a few rows for all tokens stay in cache.
  for (int64_t row = p.row_begin; row < p.row_end; row += kTileRows) {
    const int64_t count = p.row_end - row < kTileRows ? p.row_end - row : kTileRows;
    if (in_registers) {
      WithRows(w, [&](auto make_row) { DotTask(p, row - p.row_begin, count, row, make_row); });
    } else {
      for (int64_t r = 0; r < count; ++r) DecodeRow(w, row + r, p.tile + r * stride);
      DotTask(p, row - p.row_begin, count, 0,
              [&](int64_t r) { return F32Row{p.tile + r * stride}; });
    }
  }
}

}  // namespace
}  // namespace signalbox
