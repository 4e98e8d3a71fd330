// SPDX-License-Identifier: Apache-2.0
//
// The gated delta rule for one value head, S [key_dim, value_dim]. Formulas: DeltaRuleParams.
#pragma once

namespace signalbox {
namespace {

inline float DotOf(const float* a, const float* b, int64_t n) {
  Vec sum = Zero();
  ForVecs(
      n, [&](int64_t i) { sum = Fma(Load(a + i), Load(b + i), sum); },
      [&](int64_t i, int rest) { sum = Fma(LoadPart(a + i, rest), LoadPart(b + i, rest), sum); });
  return Sum(sum);
}

// out = x * factor
inline void ScaleTo(const float* x, int64_t n, float factor, float* out) {
  const Vec f = Set(factor);
  ForVecs(
      n, [&](int64_t i) { Store(out + i, Mul(Load(x + i), f)); },
      [&](int64_t i, int rest) { StorePart(out + i, Mul(LoadPart(x + i, rest), f), rest); });
}

inline void L2Normalise(const float* x, int64_t n, float scale, float* out) {
  ScaleTo(x, n, scale / SquareRoot(SumOfSquares(x, n) + 1e-6f), out);
}

inline float QueryScale(const DeltaRuleTask& p) {
  return 1.f / SquareRoot(static_cast<float>(p.key_dim));
}

// What a step needs of its token, per key channel.
struct DeltaStep {
  float* k;        // normalised key
  float* decay;    // e^g
  float* k_decay;  // k e^g
  float* q_decay;  // q e^g
  float kq;        // k . q
};

inline DeltaStep PrepareStep(const DeltaRuleTask& p, int64_t t, float* scratch) {
  const int64_t n = p.key_dim;
  DeltaStep s = {scratch, scratch + n, scratch + 2 * n, scratch + 3 * n, 0};
  L2Normalise(p.k + t * p.k_stride, n, 1.f, s.k);
  L2Normalise(p.q + t * p.q_stride, n, QueryScale(p), s.q_decay);
  s.kq = DotOf(s.k, s.q_decay, n);
  const float* g = p.g + t * p.g_stride;
  const Vec all = p.channel_decay ? Zero() : Exp(Set(g[0]));
  const auto multiply = [&](Vec decay, int64_t i, int lanes) {
    StorePart(s.decay + i, decay, lanes);
    StorePart(s.k_decay + i, Mul(decay, LoadPart(s.k + i, lanes)), lanes);
    StorePart(s.q_decay + i, Mul(decay, LoadPart(s.q_decay + i, lanes)), lanes);
  };
  const auto part = [&](int64_t i, int lanes) {
    multiply(p.channel_decay ? Exp(LoadPart(g + i, lanes)) : all, i, lanes);
  };
  ForVecs(
      n, [&](int64_t i) { part(i, kLanes); }, part);
  return s;
}

// The state that token t starts from, and where the one after it goes.
inline const float* BeforeToken(const DeltaRuleTask& p, int64_t t) {
  return p.after == nullptr || t == 0 ? p.state : p.after[t - 1] + p.after_head;
}
inline float* AfterToken(const DeltaRuleTask& p, int64_t t) {
  return p.after == nullptr ? p.state : p.after[t] + p.after_head;
}

// One token on columns [col, col + kVecs * kLanes) of the state, or n of the last vector. Columns
// are independent, so a strip stays in the first-level cache between the two passes over it. The
// first pass reads S^T k and S^T q; o = S_new^T q needs no third, as S_new = e^g S + k d^T.
template <int kVecs, bool kPart>
inline void StepStrip(const DeltaRuleTask& p, const DeltaStep& s, int64_t t, int64_t col, int n) {
  const float* before = BeforeToken(p, t) + col;
  float* after = AfterToken(p, t) + col;
  const auto load = [&](const float* x) {
    if constexpr (kPart) {
      return LoadPart(x, n);
    } else {
      return Load(x);
    }
  };
  const auto store = [&](float* x, Vec v) {
    if constexpr (kPart) {
      StorePart(x, v, n);
    } else {
      Store(x, v);
    }
  };
  Vec memory[kVecs];
  Vec read[kVecs];
  SB_UNROLL
  for (int v = 0; v < kVecs; ++v) memory[v] = read[v] = Zero();
  for (int64_t d = 0; d < p.key_dim; ++d) {
    const float* row = before + d * p.value_dim;
    const Vec k = Set(s.k_decay[d]);
    const Vec q = Set(s.q_decay[d]);
    SB_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const Vec x = load(row + v * kLanes);
      memory[v] = Fma(k, x, memory[v]);
      read[v] = Fma(q, x, read[v]);
    }
  }
  const Vec beta = Set(p.beta[t * p.beta_stride]);
  Vec delta[kVecs];
  SB_UNROLL
  for (int v = 0; v < kVecs; ++v) {
    const Vec value = load(p.v + t * p.v_stride + col + v * kLanes);
    delta[v] = Mul(beta, Sub(value, memory[v]));
    store(p.out + t * p.out_stride + col + v * kLanes, Fma(Set(s.kq), delta[v], read[v]));
  }
  for (int64_t d = 0; d < p.key_dim; ++d) {
    const float* from = before + d * p.value_dim;
    float* to = after + d * p.value_dim;
    const Vec k = Set(s.k[d]);
    const Vec decay = Set(s.decay[d]);
    SB_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      store(to + v * kLanes, Fma(k, delta[v], Mul(decay, load(from + v * kLanes))));
    }
  }
}

// Tokens [first, end).
inline void RecurrentSteps(const DeltaRuleTask& p, int64_t first, int64_t end) {
  constexpr int kVecs = 4;
  DeltaStep steps[kDeltaPrepared];
  for (int64_t begin = first; begin < end; begin += kDeltaPrepared) {
    const int64_t n = end - begin < kDeltaPrepared ? end - begin : kDeltaPrepared;
    for (int64_t i = 0; i < n; ++i) {
      steps[i] = PrepareStep(p, begin + i, p.scratch + i * 4 * p.key_dim);
    }
    int64_t col = 0;
    for (; col + kVecs * kLanes <= p.value_dim; col += kVecs * kLanes) {
      for (int64_t i = 0; i < n; ++i) StepStrip<kVecs, false>(p, steps[i], begin + i, col, 0);
    }
    for (; col < p.value_dim; col += kLanes) {
      const int rest = p.value_dim - col < kLanes ? static_cast<int>(p.value_dim - col) : kLanes;
      for (int64_t i = 0; i < n; ++i) StepStrip<1, true>(p, steps[i], begin + i, col, rest);
    }
  }
}

void DeltaRecurrent(const DeltaRuleTask& p) {
  RecurrentSteps(p, 0, p.tokens);
}

// A chunk of n tokens, after Yang et al., "Gated Delta Networks" (2024), in the form that needs one
// triangular solve because the incoming state is known. With G the running sum of g:
//   (I + L) N = diag(beta) (V - diag(e^G) K S),     L_ij = beta_i (k_i . k_j) e^(G_i - G_j), j < i
//   O = diag(e^G) Q S + P N,                        P_ij = (q_i . k_j) e^(G_i - G_j),        j <= i
//   S <- e^(G_last) S + (diag(e^(G_last - G)) K)^T N
// Every exponent is a difference to something earlier, so none is positive.
//
// With a decay per channel G is a vector, and e^(G_i - G_j) belongs inside the dot products. It is
// taken apart, (k_i e^G_i) . (k_j e^-G_j): a chunk ends where G would leave what floats can hold.
struct DeltaChunk {
  const DeltaRuleTask& p;
  int64_t begin;
  int64_t n;
  float* q;      // [n, key_dim] normalised and scaled; channel decay: row 0 G_last, row 1 e^G_last
  float* k;      // [n, key_dim] normalised; channel decay: times e^-G
  float* q_in;   // [n, key_dim] e^G q
  float* k_in;   // [n, key_dim] -beta e^G k, later e^(G_last - G) k
  float* delta;  // [n, value_dim] N
  float* solve;  // [n, kDeltaChunk] -L
  float* mix;    // [n, kDeltaChunk] P
  float* g;      // [n] G
};

inline void PrepareChunk(const DeltaChunk& c) {
  float sum = 0;
  for (int64_t i = 0; i < c.n; ++i) {
    const DeltaRuleTask& p = c.p;
    const int64_t t = c.begin + i;
    const int64_t row = i * p.key_dim;
    sum += p.g[t * p.g_stride];
    c.g[i] = sum;
    const float decay = Exp(sum);
    const float beta = p.beta[t * p.beta_stride];
    L2Normalise(p.q + t * p.q_stride, p.key_dim, QueryScale(p), c.q + row);
    L2Normalise(p.k + t * p.k_stride, p.key_dim, 1.f, c.k + row);
    ScaleTo(c.q + row, p.key_dim, decay, c.q_in + row);
    ScaleTo(c.k + row, p.key_dim, -beta * decay, c.k_in + row);
    ScaleTo(p.v + t * p.v_stride, p.value_dim, beta, c.delta + i * p.value_dim);
  }
}

// The largest |G| of a chunk with channel decay: e^80 and its inverse are ordinary floats.
constexpr float kMostDecay = 80.f;

// Tokens of the chunk at `begin`: as many as keep every channel's |G| within bounds, maybe none.
inline int64_t ChannelChunk(const DeltaRuleTask& p, int64_t begin, float* sum) {
  const int64_t most = p.tokens - begin < kDeltaChunk ? p.tokens - begin : kDeltaChunk;
  for (int64_t n = 0; n < most; ++n) {
    const float* g = p.g + (begin + n) * p.g_stride;
    bool within = true;
    const auto add = [&](int64_t i, int lanes) {
      const Vec s =
          n == 0 ? LoadPart(g + i, lanes) : Add(LoadPart(sum + i, lanes), LoadPart(g + i, lanes));
      StorePart(sum + i, s, lanes);
      within = within && MaxLane(Sub(Zero(), s)) <= kMostDecay;
    };
    ForVecs(
        p.key_dim, [&](int64_t i) { add(i, kLanes); }, add);
    if (!within) return n;
  }
  return most;
}

inline void PrepareChannelChunk(const DeltaChunk& c) {
  const DeltaRuleTask& p = c.p;
  float* sum = c.q;
  for (int64_t i = 0; i < c.n; ++i) {
    const int64_t t = c.begin + i;
    const float* g = p.g + t * p.g_stride;
    float* q = c.q_in + i * p.key_dim;
    float* k = c.k + i * p.key_dim;
    float* k_in = c.k_in + i * p.key_dim;
    const float beta = p.beta[t * p.beta_stride];
    L2Normalise(p.q + t * p.q_stride, p.key_dim, QueryScale(p), q);
    L2Normalise(p.k + t * p.k_stride, p.key_dim, 1.f, k);
    const auto part = [&](int64_t d, int n) {
      const Vec own = LoadPart(g + d, n);
      const Vec total = i == 0 ? own : Add(LoadPart(sum + d, n), own);
      const Vec decay = Exp(total);
      const Vec kv = LoadPart(k + d, n);
      StorePart(sum + d, total, n);
      StorePart(sum + p.key_dim + d, decay, n);
      StorePart(q + d, Mul(LoadPart(q + d, n), decay), n);
      StorePart(k_in + d, Mul(Mul(Set(-beta), kv), decay), n);
      StorePart(k + d, Mul(kv, Exp(Sub(Zero(), total))), n);
    };
    ForVecs(
        p.key_dim, [&](int64_t d) { part(d, kLanes); }, part);
    ScaleTo(p.v + t * p.v_stride, p.value_dim, beta, c.delta + i * p.value_dim);
  }
}

// out[i, j] = x_i . k_j, at least for j <= i.
inline void Products(const DeltaChunk& c, const float* x, float* out) {
  for (int64_t i = 0; i < c.n; i += kMaxTileTokens) {
    const int64_t count = c.n - i < kMaxTileTokens ? c.n - i : kMaxTileTokens;
    const int64_t columns = i + count;
    const float* rows[kMaxTileTokens];
    float* y[kMaxTileTokens];
    for (int64_t r = 0; r < count; ++r) {
      rows[r] = x + (i + r) * c.p.key_dim;
      y[r] = out + (i + r) * kDeltaChunk;
    }
    DotRows(
        count, rows, 0, columns, [&](int64_t j) { return F32Row{c.k + j * c.p.key_dim}; },
        c.p.key_dim, nullptr, y);
  }
}

// Zeros for j >= i + diagonal.
inline void ClearAbove(const DeltaChunk& c, int64_t diagonal, float* out) {
  for (int64_t i = 0; i < c.n; ++i) {
    for (int64_t j = i + diagonal; j < kDeltaChunk; ++j) out[i * kDeltaChunk + j] = 0;
  }
}

// out[i, j] *= factor_i e^(G_i - G_j) for j < i + diagonal.
template <typename Factor>
inline void DecayProducts(const DeltaChunk& c, int64_t diagonal, Factor factor, float* out) {
  for (int64_t i = 0; i < c.n; ++i) {
    float* row = out + i * kDeltaChunk;
    const Vec f = Set(factor(i));
    const auto decayed = [&](int64_t j, int lanes) {
      const Vec decay = Exp(Sub(Set(c.g[i]), LoadPart(c.g + j, lanes)));
      StorePart(row + j, Mul(Mul(LoadPart(row + j, lanes), decay), f), lanes);
    };
    ForVecs(
        i + diagonal, [&](int64_t j) { decayed(j, kLanes); }, decayed);
  }
}

// -L and P.
inline void ChunkProducts(const DeltaChunk& c) {
  const DeltaRuleTask& p = c.p;
  if (p.channel_decay) {
    PrepareChannelChunk(c);
    Products(c, c.k_in, c.solve);
    Products(c, c.q_in, c.mix);
  } else {
    PrepareChunk(c);
    const auto beta = [&](int64_t i) { return -p.beta[(c.begin + i) * p.beta_stride]; };
    Products(c, c.k, c.solve);
    DecayProducts(c, 0, beta, c.solve);
    Products(c, c.q, c.mix);
    DecayProducts(
        c, 1, [](int64_t) { return 1.f; }, c.mix);
  }
  ClearAbove(c, 0, c.solve);
  ClearAbove(c, 1, c.mix);
}

// S <- diag(decay) S + k_in^T N with k_in = e^(G_last - G) k.
inline void UpdateState(const DeltaChunk& c, const float* const* delta_rows) {
  const DeltaRuleTask& p = c.p;
  const float* channel = c.q + p.key_dim;  // e^G_last
  const float last = p.channel_decay ? 0.f : c.g[c.n - 1];
  const float decay = Exp(last);
  for (int64_t i = 0; i < c.n; ++i) {
    const float* k = c.k + i * p.key_dim;
    float* k_in = c.k_in + i * p.key_dim;
    if (!p.channel_decay) {
      ScaleTo(k, p.key_dim, Exp(last - c.g[i]), k_in);
      continue;
    }
    const auto part = [&](int64_t d, int n) {
      StorePart(k_in + d, Mul(LoadPart(k + d, n), LoadPart(channel + d, n)), n);
    };
    ForVecs(
        p.key_dim, [&](int64_t d) { part(d, kLanes); }, part);
  }
  for (int64_t d = 0; d < p.key_dim; d += kSumsTogether) {
    const int64_t count = p.key_dim - d < kSumsTogether ? p.key_dim - d : kSumsTogether;
    WeightedSum sums[kSumsTogether];
    for (int64_t r = 0; r < count; ++r) {
      sums[r] = {c.k_in + d + r, p.state + (d + r) * p.value_dim,
                 p.channel_decay ? channel[d + r] : decay};
    }
    SumWeightedRows(sums, count, p.key_dim, delta_rows, c.n, true, p.value_dim);
  }
}

// Forward substitution, kSumsTogether rows at a time.
inline void SolveChunk(const DeltaChunk& c, const float* const* delta_rows) {
  for (int64_t i = 0; i < c.n; i += kSumsTogether) {
    const int64_t count = c.n - i < kSumsTogether ? c.n - i : kSumsTogether;
    WeightedSum sums[kSumsTogether];
    for (int64_t r = 0; r < count; ++r) {
      sums[r] = {c.solve + (i + r) * kDeltaChunk, c.delta + (i + r) * c.p.value_dim, 1.f};
    }
    SumWeightedRows(sums, count, 1, delta_rows, i, true, c.p.value_dim);
    for (int64_t r = 1; r < count; ++r) {
      sums[r].a += i;
      SumWeightedRows(sums + r, 1, 1, delta_rows + i, r, true, c.p.value_dim);
    }
  }
}

inline void RunChunk(const DeltaChunk& c) {
  const DeltaRuleTask& p = c.p;
  ChunkProducts(c);
  const float* delta_rows[kDeltaChunk];
  for (int64_t i = 0; i < c.n; ++i) delta_rows[i] = c.delta + i * p.value_dim;
  // The rows of the state in pieces of a chunk: a list of all key_dim would need an allocation.
  for (int64_t d = 0; d < p.key_dim; d += kDeltaChunk) {
    const int64_t rows = p.key_dim - d < kDeltaChunk ? p.key_dim - d : kDeltaChunk;
    const float* state_rows[kDeltaChunk];
    for (int64_t i = 0; i < rows; ++i) state_rows[i] = p.state + (d + i) * p.value_dim;
    for (int64_t i = 0; i < c.n; i += kSumsTogether) {
      const int64_t count = c.n - i < kSumsTogether ? c.n - i : kSumsTogether;
      WeightedSum from_k[kSumsTogether];
      WeightedSum from_q[kSumsTogether];
      for (int64_t r = 0; r < count; ++r) {
        const int64_t row = i + r;
        from_k[r] = {c.k_in + row * p.key_dim + d, c.delta + row * p.value_dim, 1.f};
        from_q[r] = {c.q_in + row * p.key_dim + d, p.out + (c.begin + row) * p.out_stride, 1.f};
      }
      SumWeightedRows(from_k, count, 1, state_rows, rows, true, p.value_dim);
      SumWeightedRows(from_q, count, 1, state_rows, rows, d > 0, p.value_dim);
    }
  }
  SolveChunk(c, delta_rows);
  for (int64_t i = 0; i < c.n; i += kSumsTogether) {
    const int64_t count = c.n - i < kSumsTogether ? c.n - i : kSumsTogether;
    WeightedSum sums[kSumsTogether];
    for (int64_t r = 0; r < count; ++r) {
      sums[r] = {c.mix + (i + r) * kDeltaChunk, p.out + (c.begin + i + r) * p.out_stride, 1.f};
    }
    SumWeightedRows(sums, count, 1, delta_rows, i + count, true, p.value_dim);
  }
  UpdateState(c, delta_rows);
}

void DeltaChunked(const DeltaRuleTask& p) {
  float* next = p.scratch;
  const auto take = [&](int64_t width) {
    float* array = next;
    next += kDeltaChunk * width;
    return array;
  };
  float* const q = take(p.key_dim);
  float* const k = take(p.key_dim);
  float* const q_in = take(p.key_dim);
  float* const k_in = take(p.key_dim);
  float* const delta = take(p.value_dim);
  float* const solve = take(kDeltaChunk);
  float* const mix = take(kDeltaChunk);
  float* const g = take(1);
  for (int64_t begin = 0; begin < p.tokens;) {
    int64_t n = p.tokens - begin < kDeltaChunk ? p.tokens - begin : kDeltaChunk;
    if (p.channel_decay) n = ChannelChunk(p, begin, q);
    if (n > 0) {
      RunChunk({p, begin, n, q, k, q_in, k_in, delta, solve, mix, g});
    } else {
      RecurrentSteps(p, begin, begin + 1);  // a decay that no chunk can hold
    }
    begin += n > 0 ? n : 1;
  }
}

}  // namespace
}  // namespace signalbox
