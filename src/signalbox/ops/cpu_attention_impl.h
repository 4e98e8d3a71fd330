// SPDX-License-Identifier: Apache-2.0
//
// Weighted sums of rows, and attention with them. Attention takes kKeyBlock keys at a time and
// keeps, per query and head, the largest score so far, the sum of exponentials and the weighted sum
// of values, rescaled when the largest grows (online softmax). Blocks begin at absolute positions,
// so a query's numbers depend neither on the queries beside it nor on how the prompt was cut.
#pragma once

namespace signalbox {
namespace {

// c = alpha * c + sum_j a[j * a_step] * b[j], over j in order.
struct WeightedSum {
  const float* a;
  float* c;
  float alpha;
};

// kSums sums over columns [col, col + kVecs * kLanes), or over n of the last vector.
template <int kSums, int kVecs, bool kPart>
inline void SumTile(const WeightedSum* s, int64_t a_step, const float* const* b, int64_t count,
                    bool add, int64_t col, int n) {
  const auto load = [&](const float* p) {
    if constexpr (kPart) {
      return LoadPart(p, n);
    } else {
      return Load(p);
    }
  };
  Vec sum[kSums][kVecs];
  SB_UNROLL
  for (int i = 0; i < kSums; ++i) {
    SB_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      // Without `add`, c may be memory that was never written.
      sum[i][v] = add ? Mul(Set(s[i].alpha), load(s[i].c + col + v * kLanes)) : Zero();
    }
  }
  for (int64_t j = 0; j < count; ++j) {
    Vec row[kVecs];
    SB_UNROLL
    for (int v = 0; v < kVecs; ++v) row[v] = load(b[j] + col + v * kLanes);
    SB_UNROLL
    for (int i = 0; i < kSums; ++i) {
      const Vec weight = Set(s[i].a[j * a_step]);
      SB_UNROLL
      for (int v = 0; v < kVecs; ++v) sum[i][v] = Fma(weight, row[v], sum[i][v]);
    }
  }
  SB_UNROLL
  for (int i = 0; i < kSums; ++i) {
    SB_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      if constexpr (kPart) {
        StorePart(s[i].c + col, sum[i][v], n);
      } else {
        Store(s[i].c + col + v * kLanes, sum[i][v]);
      }
    }
  }
}

template <int kSums>
inline void SumColumns(const WeightedSum* s, int64_t a_step, const float* const* b, int64_t count,
                       bool add, int64_t width) {
  constexpr int kVecs = 4;
  int64_t col = 0;
  for (; col + kVecs * kLanes <= width; col += kVecs * kLanes) {
    SumTile<kSums, kVecs, false>(s, a_step, b, count, add, col, 0);
  }
  for (; col + kLanes <= width; col += kLanes) {
    SumTile<kSums, 1, false>(s, a_step, b, count, add, col, 0);
  }
  if (col < width) {
    SumTile<kSums, 1, true>(s, a_step, b, count, add, col, static_cast<int>(width - col));
  }
}

// Sums made together: they share the loads of b.
constexpr int kSumsTogether = kLanes == 16 ? 4 : 2;

// `sums` weighted sums of the same `count` rows b, each [width].
inline void SumWeightedRows(const WeightedSum* s, int64_t sums, int64_t a_step,
                            const float* const* b, int64_t count, bool add, int64_t width) {
  int64_t i = 0;
  for (; i + kSumsTogether <= sums; i += kSumsTogether) {
    SumColumns<kSumsTogether>(s + i, a_step, b, count, add, width);
  }
  for (; i < sums; ++i) SumColumns<1>(s + i, a_step, b, count, add, width);
}

void MatMulTransposed(const MatMulTask& p) {
  const int64_t stride = TileFloats(p.w->cols) / kTileRows;
  for (int64_t row = p.row_begin; row < p.row_end; row += kTileRows) {
    const int64_t count = p.row_end - row < kTileRows ? p.row_end - row : kTileRows;
    const float* rows[kTileRows];
    for (int64_t r = 0; r < count; ++r) {
      DecodeRow(*p.w, row + r, p.tile + r * stride);
      rows[r] = p.tile + r * stride;
    }
    for (int64_t t = 0; t < p.tokens; t += kSumsTogether) {
      const int64_t n = p.tokens - t < kSumsTogether ? p.tokens - t : kSumsTogether;
      WeightedSum sums[kSumsTogether];
      for (int64_t i = 0; i < n; ++i) {
        sums[i] = {p.x + (t + i) * p.x_stride + row - p.row_begin, p.y + (t + i) * p.y_stride, 1.f};
      }
      SumWeightedRows(sums, n, 1, rows, count, row > p.row_begin, p.w->cols);
    }
  }
}

inline float LargestOf(const float* x, int64_t n) {
  Vec top = Set(x[0]);
  ForVecs(
      n, [&](int64_t i) { top = Max(top, Load(x + i)); },
      [&](int64_t i, int rest) {
        float lane[kLanes];
        Store(lane, Set(x[0]));
        StorePart(lane, LoadPart(x + i, rest), rest);
        top = Max(top, Load(lane));
      });
  return MaxLane(top);
}

// x = e^(x - top); returns the sum.
inline float ExpInPlace(float* x, int64_t n, float top) {
  Vec sum = Zero();
  ForVecs(
      n,
      [&](int64_t i) {
        const Vec e = Exp(Sub(Load(x + i), Set(top)));
        Store(x + i, e);
        sum = Add(sum, e);
      },
      [&](int64_t i, int rest) {
        StorePart(x + i, Exp(Sub(LoadPart(x + i, rest), Set(top))), rest);
        sum = Add(sum, LoadPart(x + i, rest));
      });
  return Sum(sum);
}

inline void Scale(float* x, int64_t n, float factor) {
  const Vec f = Set(factor);
  ForVecs(
      n, [&](int64_t i) { Store(x + i, Mul(Load(x + i), f)); },
      [&](int64_t i, int rest) { StorePart(x + i, Mul(LoadPart(x + i, rest), f), rest); });
}

// Query rows of a task: row = query * group + head.
struct QueryRows {
  const AttentionTask& p;
  int64_t rows;
  float* scores;  // [rows, kKeyBlock]
  float* top;     // [rows]
  float* total;   // [rows]

  const float* Q(int64_t row) const {
    return p.q + row / p.group * p.q_stride + row % p.group * p.head_dim;
  }
  float* Out(int64_t row) const {
    return p.out + row / p.group * p.out_stride + row % p.group * p.value_dim;
  }
  // Keys of the block at `first` that the row may see.
  int64_t Visible(int64_t row, int64_t first, int64_t n) const {
    const int64_t visible = p.position + row / p.group + 1 - first;
    return visible < n ? visible : n;
  }
};

// Scores of rows [begin, rows) against the n keys of a block, as far as they see it.
inline void ScoreBlock(const QueryRows& q, int64_t begin, int64_t first, const float* const* keys,
                       int64_t n) {
  for (int64_t row = begin, count = 0; row < q.rows; row += count) {
    const int64_t tiles = (q.rows - row + kMaxTileTokens - 1) / kMaxTileTokens;
    count = (q.rows - row + tiles - 1) / tiles;  // tiles of even size
    const float* x[kMaxTileTokens];
    float* y[kMaxTileTokens];
    for (int64_t i = 0; i < count; ++i) {
      x[i] = q.Q(row + i);
      y[i] = q.scores + (row + i) * kKeyBlock;
    }
    DotRows(
        count, x, 0, q.Visible(row + count - 1, first, n),
        [&](int64_t j) { return F32Row{keys[j]}; }, q.p.head_dim, nullptr, y);
  }
}

// Folds the scores of a block into the row's softmax; returns the factor for what it has so far.
inline float FoldScores(const QueryRows& q, int64_t row, int64_t visible, bool first_block) {
  float* scores = q.scores + row * kKeyBlock;
  Scale(scores, visible, q.p.scale);
  const float block_top = LargestOf(scores, visible);
  const float top = first_block || !(q.top[row] > block_top) ? block_top : q.top[row];
  const float alpha = first_block ? 0.f : Exp(q.top[row] - top);
  const float sum = ExpInPlace(scores, visible, top);
  q.total[row] = first_block ? sum : q.total[row] * alpha + sum;
  q.top[row] = top;
  return alpha;
}

// Adds the values of a block, for rows that see the same of it together. None may read further: a
// later token's value, were it not finite, would spoil the sum even at weight zero.
inline void AddValues(const QueryRows& q, int64_t begin, int64_t first, const float* const* values,
                      int64_t n) {
  WeightedSum together[kSumsTogether];
  int64_t count = 0;
  int64_t seen = 0;  // by each of `together`
  const auto flush = [&] {
    SumWeightedRows(together, count, 1, values, seen, first > 0, q.p.value_dim);
    count = 0;
  };
  for (int64_t row = begin; row < q.rows; ++row) {
    const int64_t visible = q.Visible(row, first, n);
    if (count == kSumsTogether || visible != seen) flush();
    seen = visible;
    const float alpha = FoldScores(q, row, visible, first == 0);
    together[count++] = {q.scores + row * kKeyBlock, q.Out(row), alpha};
  }
  flush();
}

// Rows of `width` numbers of the n tokens at `first`: where they lie or, if they are not floats, in
// `converted`, which is moved on. Converted once for all queries of the task.
inline void BlockRows(const AttentionTask& p, const std::byte* pages, int64_t row_bytes,
                      int64_t width, int64_t first, int64_t n, float*& converted,
                      const float** rows) {
  for (int64_t j = 0; j < n; ++j) {
    const int64_t position = first + j;
    const int64_t page_row = p.block_table[position / p.block] * p.block + position % p.block;
    const std::byte* row = pages + page_row * row_bytes;
    rows[j] = reinterpret_cast<const float*>(row);
    if (p.dtype == DType::kF32) continue;
    LoadNumbers(row, width, p.dtype, converted);
    rows[j] = converted;
    converted += width;
  }
}

void Attention(const AttentionTask& p) {
  const int64_t rows = p.queries * p.group;
  const QueryRows q = {p, rows, p.scratch, p.scratch + rows * kKeyBlock,
                       p.scratch + rows * (kKeyBlock + 1)};
  const int64_t end = p.position + p.queries;  // keys the last query sees
  for (int64_t first = 0; first < end; first += kKeyBlock) {
    const int64_t n = end - first < kKeyBlock ? end - first : kKeyBlock;
    const float* keys[kKeyBlock];
    const float* own_values[kKeyBlock];
    float* converted = p.scratch + rows * (kKeyBlock + 2);
    BlockRows(p, p.keys, p.key_bytes, p.head_dim, first, n, converted, keys);
    if (p.values != nullptr) {
      BlockRows(p, p.values, p.value_bytes, p.value_dim, first, n, converted, own_values);
    }
    const float* const* values = p.values != nullptr ? own_values : keys;
    // Queries before the block see none of it.
    const int64_t begin = first > p.position ? (first - p.position) * p.group : 0;
    ScoreBlock(q, begin, first, keys, n);
    AddValues(q, begin, first, values, n);
  }
  for (int64_t row = 0; row < rows; ++row) Scale(q.Out(row), p.value_dim, 1.f / q.total[row]);
}

}  // namespace
}  // namespace signalbox
