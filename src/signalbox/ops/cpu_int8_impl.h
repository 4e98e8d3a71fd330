// SPDX-License-Identifier: Apache-2.0
//
// Products of MXFP4 weights with int8 activations, as int8.h defines them. A panel of kLanes weight
// rows lies across the lanes: a vector of bytes holds four columns of each row, meets four of a
// token's bytes in all lanes, and a block of 32 columns is eight such vectors. Sums of a block are
// whole numbers and blocks are added in order, so that no tile shape changes a bit.
//
// For few tokens a panel is transposed and decoded in registers on the way; for many it is decoded
// once to bytes that stay in cache. Bytes are biased to be unsigned, which the sums' start undoes.
#pragma once

namespace signalbox {
namespace {

// ---- Activations

// A number that is not finite times zero is NaN, and stays so in a sum.
inline bool AllFinite(const Vec* v, int n) {
  Vec sum = Zero();
  for (int i = 0; i < n; ++i) sum = Add(sum, Mul(v[i], Zero()));
  return Sum(sum) == 0.f;
}

inline void QuantiseBlock(const float* x, Int8Block* out) {
  constexpr int kVecs = kMxBlock / kLanes;
  Vec v[kVecs];
  Vec largest = Zero();
  for (int i = 0; i < kVecs; ++i) {
    v[i] = Load(x + i * kLanes);
    largest = Max(largest, Max(v[i], Sub(Zero(), v[i])));
  }
  *out = {};
  if (!AllFinite(v, kVecs)) {
    out->scale = __builtin_nanf("");
    return;
  }
  out->scale = MaxLane(largest) / 127.f;
  if (out->scale == 0.f) return;
  float rounded[kMxBlock];
  for (int i = 0; i < kVecs; ++i) {
    // Clamped first, because Round() is for small numbers.
    const Vec q = Min(Set(127.f), Max(Set(-127.f), Div(v[i], Set(out->scale))));
    Store(rounded + i * kLanes, Round(q));
  }
  int32_t sum = 0;
  for (int i = 0; i < kMxBlock / 2; ++i) {
    const auto even = static_cast<int32_t>(rounded[2 * i]);
    const auto odd = static_cast<int32_t>(rounded[2 * i + 1]);
    out->q[i] = static_cast<int8_t>(even);
    out->q[i + kMxBlock / 2] = static_cast<int8_t>(odd);
    sum += even + odd;
  }
  out->start = -kE2m1Bias * sum;
}

void Quantise(const float* x, int64_t cols, Int8Block* out) {
  for (int64_t b = 0; b < cols / kMxBlock; ++b) QuantiseBlock(x + b * kMxBlock, out + b);
}

// ---- Panels

// Rows of a panel as they are stored; rows past the last one repeat it.
struct PackedPanel {
  const std::byte* rows[kLanes];
  int64_t next;  // bytes to the panel after this one; 0: there is none

  struct Block {
    ByteVec units[4];
    SB_INLINE void Low(ByteVec (&w)[4]) const {
      SB_UNROLL
      for (int u = 0; u < 4; ++u) w[u] = LowE2m1(units[u]);
    }
    SB_INLINE void High(ByteVec (&w)[4]) const {
      SB_UNROLL
      for (int u = 0; u < 4; ++u) w[u] = HighE2m1(units[u]);
    }
  };
  // Asks for a cache line of each row of the next panel: rows are too short for the processor to
  // see in time where they lead.
  void Prefetch(int64_t b) const {
    if (next == 0 || b % 4 != 0) return;
    for (int r = 0; r < kLanes; ++r) __builtin_prefetch(rows[r] + next + b * (kMxBlock / 2));
  }
  SB_INLINE Block At(int64_t b) const {
    Block block;
    Prefetch(b);
    LoadUnits(rows, b * (kMxBlock / 2), block.units);
    return block;
  }
};

// A panel decoded to bytes [cols / 32, 8, kLanes, 4].
struct BytePanel {
  const uint8_t* bytes;

  struct Block {
    const uint8_t* p;
    SB_INLINE void Low(ByteVec (&w)[4]) const {
      SB_UNROLL
      for (int u = 0; u < 4; ++u) w[u] = LoadByteVec(p + u * 4 * kLanes);
    }
    SB_INLINE void High(ByteVec (&w)[4]) const {
      SB_UNROLL
      for (int u = 0; u < 4; ++u) w[u] = LoadByteVec(p + (u + 4) * 4 * kLanes);
    }
  };
  SB_INLINE Block At(int64_t b) const { return {bytes + b * kMxBlock * kLanes}; }
};

// y[t][0 .. rows) for kTokens tokens and a panel; scale [cols / 32, kLanes] is half of each row's.
template <int kTokens, typename Panel>
inline void Int8Tile(const Int8Block* const* x, const Panel& panel, const float* scale,
                     int64_t blocks, int rows, float* const* y) {
  Vec sum[kTokens];
  SB_UNROLL
  for (int t = 0; t < kTokens; ++t) sum[t] = Zero();
  for (int64_t b = 0; b < blocks; ++b) {
    const typename Panel::Block block = panel.At(b);
    IntVec dot[kTokens];
    const int8_t* low[kTokens];
    const int8_t* high[kTokens];
    SB_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      dot[t] = SetInt(x[t][b].start);
      low[t] = x[t][b].q;
      high[t] = x[t][b].q + kMxBlock / 2;
    }
    ByteVec w[4];
    block.Low(w);
    DotUnits<kTokens>(w, low, dot);
    block.High(w);
    DotUnits<kTokens>(w, high, dot);
    const Vec row_scale = Load(scale + b * kLanes);
    SB_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      sum[t] = FmaOnce(ToVec(dot[t]), Mul(row_scale, Set(x[t][b].scale)), sum[t]);
    }
  }
  SB_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    if (rows == kLanes) {
      Store(y[t], sum[t]);
    } else {
      StorePart(y[t], sum[t], rows);
    }
  }
}

// Int8Tile for 1 .. kInt8Tokens tokens.
template <typename Panel, int kTokens = kInt8Tokens>
inline void Int8Tokens(int64_t tokens, const Int8Block* const* x, const Panel& panel,
                       const float* scale, int64_t blocks, int rows, float* const* y) {
  if constexpr (kTokens > 1) {
    if (tokens < kTokens) {
      return Int8Tokens<Panel, kTokens - 1>(tokens, x, panel, scale, blocks, rows, y);
    }
  }
  Int8Tile<kTokens>(x, panel, scale, blocks, rows, y);
}

// All tokens of the task against a panel that begins at row `row` of the matrix.
template <typename Panel>
inline void Int8PanelTask(const Int8MatMulTask& p, int64_t row, int rows, const Panel& panel,
                          const float* scale) {
  const int64_t tiles = (p.tokens + kInt8Tokens - 1) / kInt8Tokens;
  for (int64_t tile = 0, t = 0; tile < tiles; ++tile) {
    const int64_t n = (p.tokens - t + tiles - tile - 1) / (tiles - tile);  // tiles of even size
    const Int8Block* x[kInt8Tokens];
    float* y[kInt8Tokens];
    for (int64_t i = 0; i < n; ++i) {
      x[i] = p.x + (t + i) * p.x_stride;
      y[i] = p.y + (t + i) * p.y_stride + row - p.row_begin;
    }
    Int8Tokens(n, x, panel, scale, p.w->cols / kMxBlock, rows, y);
    t += n;
  }
}

// bytes [blocks, 8, kLanes, 4]
inline void DecodePanel(const PackedPanel& panel, int64_t blocks, uint8_t* bytes) {
  for (int64_t b = 0; b < blocks; ++b) {
    const PackedPanel::Block block = panel.At(b);
    uint8_t* out = bytes + b * kMxBlock * kLanes;
    ByteVec w[4];
    block.Low(w);
    for (int u = 0; u < 4; ++u) StoreByteVec(out + u * 4 * kLanes, w[u]);
    block.High(w);
    for (int u = 0; u < 4; ++u) StoreByteVec(out + (u + 4) * 4 * kLanes, w[u]);
  }
}

void Int8MatMul(const Int8MatMulTask& p) {
  const MatrixView& w = *p.w;
  const int64_t blocks = w.cols / kMxBlock;
  // On a cache line, so that no load of a vector touches two.
  const auto address = reinterpret_cast<uintptr_t>(p.tile);
  float* scale = p.tile + (64 - address % 64) % 64 / sizeof(float);  // [blocks, kLanes]
  auto* bytes = reinterpret_cast<uint8_t*>(scale + kTileRows * blocks);
  for (int64_t row = p.row_begin; row < p.row_end; row += kLanes) {
    const int64_t left = p.row_end - row;
    const int rows = static_cast<int>(left < kLanes ? left : kLanes);
    PackedPanel panel;
    panel.next = left >= 2 * kLanes ? kLanes * w.row_bytes : 0;
    const std::byte* scale_rows[kLanes];
    for (int r = 0; r < kLanes; ++r) {
      const int64_t i = row + (r < rows ? r : rows - 1);
      panel.rows[r] = w.data + i * w.row_bytes;
      scale_rows[r] = w.scale + i * w.scale_row_bytes;
    }
    for (int64_t b = 0; b < blocks; b += 8) {
      const int n = static_cast<int>(blocks - b < 8 ? blocks - b : 8);
      LoadHalfE8m0(scale_rows, b, n, scale + b * kLanes);
    }
    if (p.tokens <= kInt8Tokens) {
      Int8PanelTask(p, row, rows, panel, scale);
    } else {
      DecodePanel(panel, blocks, bytes);
      Int8PanelTask(p, row, rows, BytePanel{bytes}, scale);
    }
  }
}

}  // namespace
}  // namespace signalbox
