// SPDX-License-Identifier: Apache-2.0
//
// Kernels that go over rows once: norms, rotation, convolution, routing, gates.
#pragma once

namespace signalbox {
namespace {

// Sum of squares in four partial sums, so that one addition need not wait for the last.
inline float SumOfSquares(const float* x, int64_t n) {
  Vec sum[4] = {Zero(), Zero(), Zero(), Zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    SB_UNROLL
    for (int j = 0; j < 4; ++j) {
      const Vec v = Load(x + i + j * kLanes);
      sum[j] = Fma(v, v, sum[j]);
    }
  }
  const float* rest = x + i;
  ForVecs(
      n - i,
      [&](int64_t k) {
        const Vec v = Load(rest + k);
        sum[0] = Fma(v, v, sum[0]);
      },
      [&](int64_t k, int lanes) {
        const Vec v = LoadPart(rest + k, lanes);
        sum[0] = Fma(v, v, sum[0]);
      });
  return Sum(Add(Add(sum[0], sum[1]), Add(sum[2], sum[3])));
}

inline float InverseRms(const float* x, int64_t width, float eps) {
  return 1.f / SquareRoot(SumOfSquares(x, width) / static_cast<float>(width) + eps);
}

void RmsNorm(const RmsNormParams& p, int64_t begin, int64_t end) {
  const Vec offset = Set(p.offset);
  for (int64_t r = begin; r < end; ++r) {
    const float* x = p.x + r * p.x_stride;
    float* y = p.y + r * p.y_stride;
    const Vec inverse = Set(InverseRms(x, p.width, p.eps));
    ForVecs(
        p.width,
        [&](int64_t i) {
          Store(y + i, Mul(Mul(Load(x + i), inverse), Add(offset, Load(p.weight + i))));
        },
        [&](int64_t i, int n) {
          const Vec w = Add(offset, LoadPart(p.weight + i, n));
          StorePart(y + i, Mul(Mul(LoadPart(x + i, n), inverse), w), n);
        });
  }
}

void GatedRmsNorm(const GatedRmsNormParams& p, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* x = p.x + r * p.width;
    const float* z = p.z + r * p.width;
    float* y = p.y + r * p.width;
    const Vec inverse = Set(InverseRms(x, p.width, p.eps));
    const auto gated = [&](Vec xv, Vec w, Vec zv) {
      return Mul(Mul(Mul(xv, inverse), w), p.gate == Gate::kSilu ? Silu(zv) : Sigmoid(zv));
    };
    ForVecs(
        p.width,
        [&](int64_t i) { Store(y + i, gated(Load(x + i), Load(p.weight + i), Load(z + i))); },
        [&](int64_t i, int n) {
          const Vec v = gated(LoadPart(x + i, n), LoadPart(p.weight + i, n), LoadPart(z + i, n));
          StorePart(y + i, v, n);
        });
  }
}

// Score of one row of a mix.
inline float MixScore(const MixParams& p, const float* v) {
  Vec sum = Zero();
  ForVecs(
      p.width,
      [&](int64_t i) { sum = Fma(Load(v + i), Mul(Load(p.norm + i), Load(p.query + i)), sum); },
      [&](int64_t i, int n) {
        const Vec w = Mul(LoadPart(p.norm + i, n), LoadPart(p.query + i, n));
        sum = Fma(LoadPart(v + i, n), w, sum);
      });
  return Sum(sum) * InverseRms(v, p.width, p.eps);
}

void Mix(const MixParams& p, int64_t begin, int64_t end, float* weights) {
  for (int64_t r = begin; r < end; ++r) {
    const float* bank = p.bank + r * p.snapshots * p.width;
    const float* x = p.x + r * p.width;
    float* y = p.y + r * p.width;
    float top = weights[p.snapshots] = MixScore(p, x);
    for (int64_t e = 0; e < p.snapshots; ++e) {
      weights[e] = MixScore(p, bank + e * p.width);
      top = weights[e] > top ? weights[e] : top;
    }
    float total = 0;
    for (int64_t e = 0; e <= p.snapshots; ++e) total += weights[e] = Exp(weights[e] - top);
    for (int64_t e = 0; e <= p.snapshots; ++e) weights[e] /= total;
    const auto mixed = [&](int64_t i, int n) {
      Vec sum = Mul(LoadPart(x + i, n), Set(weights[p.snapshots]));
      for (int64_t e = 0; e < p.snapshots; ++e) {
        sum = Fma(LoadPart(bank + e * p.width + i, n), Set(weights[e]), sum);
      }
      StorePart(y + i, sum, n);
    };
    ForVecs(
        p.width, [&](int64_t i) { mixed(i, kLanes); }, mixed);
  }
}

void Rope(float* x, int64_t heads, int64_t head_dim, int64_t rotary, const float* cos,
          const float* sin) {
  const int64_t half = rotary / 2;
  for (int64_t h = 0; h < heads; ++h) {
    float* a = x + h * head_dim;
    float* b = a + half;
    ForVecs(
        half,
        [&](int64_t i) {
          const Vec av = Load(a + i);
          const Vec bv = Load(b + i);
          const Vec c = Load(cos + i);
          const Vec s = Load(sin + i);
          Store(a + i, Sub(Mul(av, c), Mul(bv, s)));
          Store(b + i, Add(Mul(bv, c), Mul(av, s)));
        },
        [&](int64_t i, int n) {
          const Vec av = LoadPart(a + i, n);
          const Vec bv = LoadPart(b + i, n);
          const Vec c = LoadPart(cos + i, n);
          const Vec s = LoadPart(sin + i, n);
          StorePart(a + i, Sub(Mul(av, c), Mul(bv, s)), n);
          StorePart(b + i, Add(Mul(bv, c), Mul(av, s)), n);
        });
  }
}

// Lanes [c, c + n) of one sequence; taps [kernel, kLanes] are their weights. The state goes from
// `before` to `after`, which may be the same.
inline void ConvLanes(const CausalConvTask& p, const SequenceSpan& span, const float* before,
                      float* after, int64_t c, int n, const float* taps) {
  const int64_t back = p.kernel - 1;
  // Input `i` of the sequence with the state before it: 0 is the oldest in the state.
  const auto input = [&](int64_t i) {
    return i < back ? before + i * p.channels + c : p.x + (span.first + i - back) * p.x_stride + c;
  };
  for (int64_t t = 0; t < span.count; ++t) {
    Vec sum = Zero();
    for (int64_t j = 0; j < p.kernel; ++j) {
      sum = Fma(Load(taps + j * kLanes), LoadPart(input(t + j), n), sum);
    }
    StorePart(p.y + (span.first + t) * p.y_stride + c, Silu(sum), n);
  }
  for (int64_t i = 0; i < back; ++i) {
    StorePart(after + i * p.channels + c, LoadPart(input(span.count + i), n), n);
  }
}

void CausalConv(const CausalConvTask& p) {
  // Weights of each vector of channels by tap, for all sequences.
  const int64_t vec_taps = p.kernel * kLanes;
  for (int64_t c = p.begin; c < p.end; ++c) {
    const int64_t i = c - p.begin;
    float* taps = p.scratch + i / kLanes * vec_taps + i % kLanes;
    for (int64_t j = 0; j < p.kernel; ++j) taps[j * kLanes] = p.weight[c * p.kernel + j];
  }
  // A sequence's channels in a row: its states lie a power of two apart more often than not, and
  // would chase one another out of the cache.
  for (int64_t s = 0; s < p.sequence_count; ++s) {
    const SequenceSpan& span = p.sequences[s];
    const bool keep = p.after != nullptr && span.count > 0 && p.after[span.first] != nullptr;
    const float* taps = p.scratch;
    for (int64_t c = p.begin; c < p.end; c += kLanes, taps += vec_taps) {
      const int n = p.end - c < kLanes ? static_cast<int>(p.end - c) : kLanes;
      if (!keep) {
        ConvLanes(p, span, p.states[s], p.states[s], c, n, taps);
        continue;
      }
      const float* before = p.states[s];
      for (int64_t t = span.first; t < span.first + span.count; ++t) {
        ConvLanes(p, {t, 1, 0}, before, p.after[t], c, n, taps);
        before = p.after[t];
      }
    }
  }
}

// The k largest in descending order, equal ones by id: an insertion into a short sorted list.
inline void TopK(const float* logits, int64_t experts, int64_t k, int32_t* ids) {
  int64_t count = 0;
  for (int64_t e = 0; e < experts; ++e) {
    if (count == k && !(logits[e] > logits[ids[k - 1]])) continue;
    int64_t place = count < k ? count++ : k - 1;
    for (; place > 0 && logits[e] > logits[ids[place - 1]]; --place) ids[place] = ids[place - 1];
    ids[place] = static_cast<int32_t>(e);
  }
}

// scratch [2 * experts]
inline void RouteBySigmoid(const RouterParams& p, int64_t t, float* scratch) {
  const float* logits = p.logits + t * p.experts;
  float* scores = scratch;
  float* keys = scratch + p.experts;
  const auto part = [&](int64_t e, int n) {
    const Vec s = Sigmoid(LoadPart(logits + e, n));
    StorePart(scores + e, s, n);
    StorePart(keys + e, p.bias == nullptr ? s : Add(s, LoadPart(p.bias + e, n)), n);
  };
  ForVecs(
      p.experts, [&](int64_t e) { part(e, kLanes); }, part);
  int32_t* ids = p.ids + t * p.top_k;
  float* weights = p.weights + t * p.top_k;
  TopK(keys, p.experts, p.top_k, ids);
  float total = 1e-20f;
  for (int64_t k = 0; k < p.top_k; ++k) total += weights[k] = scores[ids[k]];
  for (int64_t k = 0; p.renormalise && k < p.top_k; ++k) weights[k] /= total;
}

void Router(const RouterParams& p, int64_t begin, int64_t end, float* scratch) {
  for (int64_t t = begin; t < end; ++t) {
    if (p.scores == RouterScores::kSigmoid) {
      RouteBySigmoid(p, t, scratch);
      continue;
    }
    const float* logits = p.logits + t * p.experts;
    int32_t* ids = p.ids + t * p.top_k;
    float* weights = p.weights + t * p.top_k;
    TopK(logits, p.experts, p.top_k, ids);
    const float top = logits[ids[0]];
    float total = 0;
    for (int64_t k = 0; k < p.top_k; ++k) {
      weights[k] = Exp(logits[ids[k]] - top);
      total += weights[k];
    }
    if (!p.renormalise) {
      Vec sum = Zero();
      ForVecs(
          p.experts, [&](int64_t e) { sum = Add(sum, Exp(Sub(Load(logits + e), Set(top)))); },
          [&](int64_t e, int n) {
            float rest[kLanes] = {};
            StorePart(rest, Exp(Sub(LoadPart(logits + e, n), Set(top))), n);
            sum = Add(sum, Load(rest));
          });
      total = Sum(sum);
    }
    for (int64_t k = 0; k < p.top_k; ++k) weights[k] /= total;
  }
}

void Glu(const Activation& activation, const float* gate, const float* up, int64_t n, float* y) {
  const auto map = [&](auto act) {
    ForVecs(
        n, [&](int64_t i) { Store(y + i, act(Load(gate + i), Load(up + i))); },
        [&](int64_t i, int rest) {
          StorePart(y + i, act(LoadPart(gate + i, rest), LoadPart(up + i, rest)), rest);
        });
  };
  if (activation.kind == Activation::Kind::kSilu) {
    return map([](Vec g, Vec u) { return Mul(Silu(g), u); });
  }
  const Vec b = Set(activation.gate_bound);
  const Vec c = Set(activation.up_bound);
  map([&](Vec g, Vec u) {
    const Vec bounded = Mul(Mul(b, Tanh(Div(g, b))), Sigmoid(g));
    return Mul(bounded, Mul(c, Tanh(Div(u, c))));
  });
}

// g = bound * sigmoid(slope * (z + bias))
void BoundedDecay(const float* z, const float* bias, float slope, float bound, int64_t n,
                  float* g) {
  const auto part = [&](int64_t i, int lanes) {
    const Vec x = Mul(Set(slope), Add(LoadPart(z + i, lanes), LoadPart(bias + i, lanes)));
    StorePart(g + i, Mul(Set(bound), Sigmoid(x)), lanes);
  };
  ForVecs(
      n, [&](int64_t i) { part(i, kLanes); }, part);
}

void SigmoidMul(float* x, const float* gate, bool one_gate, int64_t width) {
  const Vec all = one_gate ? Sigmoid(Set(gate[0])) : Zero();
  ForVecs(
      width,
      [&](int64_t i) { Store(x + i, Mul(Load(x + i), one_gate ? all : Sigmoid(Load(gate + i)))); },
      [&](int64_t i, int n) {
        const Vec g = one_gate ? all : Sigmoid(LoadPart(gate + i, n));
        StorePart(x + i, Mul(LoadPart(x + i, n), g), n);
      });
}

void AddScaled(const float* x, float a, int64_t n, float* y) {
  const Vec factor = Set(a);
  ForVecs(
      n, [&](int64_t i) { Store(y + i, Fma(factor, Load(x + i), Load(y + i))); },
      [&](int64_t i, int rest) {
        StorePart(y + i, Fma(factor, LoadPart(x + i, rest), LoadPart(y + i, rest)), rest);
      });
}

}  // namespace
}  // namespace signalbox
