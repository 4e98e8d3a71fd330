// SPDX-License-Identifier: Apache-2.0
//
// The oracle: every operation as its formula reads, one loop per index. Sums are accumulated in
// double, so that what a fast kernel is compared with has no rounding of its own to speak of.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "signalbox/ops/int8.h"
#include "signalbox/ops/ops.h"

namespace signalbox {
namespace {

double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

double Silu(double x) {
  return x / (1 + std::exp(-x));
}

double Dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// 1 / sqrt(mean(x^2) + eps)
double InverseRms(const float* x, int64_t n, float eps) {
  return 1 / std::sqrt(Dot(x, x, n) / static_cast<double>(n) + eps);
}

// x / sqrt(sum(x^2) + 1e-6) * scale
std::vector<double> L2Normalise(const float* x, int64_t n, double scale) {
  const double inverse = scale / std::sqrt(Dot(x, x, n) + 1e-6);
  std::vector<double> out(n);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * inverse;
  return out;
}

class ReferenceOps final : public Ops {
 public:
  std::string name() const override { return "reference"; }

  void Embed(const MatrixView& table, std::span<const int32_t> ids, float* out) override {
    for (size_t t = 0; t < ids.size(); ++t) {
      table.DecodeRow(
          ids[t], {out + static_cast<int64_t>(t) * table.cols, static_cast<size_t>(table.cols)});
    }
  }

  void MatMul(const MatMulParams& p) override {
    std::vector<float> row(p.w.cols);
    for (int64_t o = 0; o < p.w.rows; ++o) {
      p.w.DecodeRow(o, row);
      for (int64_t t = 0; t < p.tokens; ++t) {
        const double sum = Dot(p.x + t * p.x_stride, row.data(), p.w.cols);
        p.y[t * p.y_stride + o] = static_cast<float>(p.bias != nullptr ? sum + p.bias[o] : sum);
      }
    }
  }

  void RmsNorm(const RmsNormParams& p) override {
    for (int64_t r = 0; r < p.rows; ++r) {
      const float* x = p.x + r * p.x_stride;
      float* y = p.y + r * p.y_stride;
      const double inverse = InverseRms(x, p.width, p.eps);
      for (int64_t i = 0; i < p.width; ++i) {
        y[i] = static_cast<float>(x[i] * inverse * (static_cast<double>(p.offset) + p.weight[i]));
      }
    }
  }

  void GatedRmsNorm(const GatedRmsNormParams& p) override {
    for (int64_t r = 0; r < p.rows; ++r) {
      const float* x = p.x + r * p.width;
      const double inverse = InverseRms(x, p.width, p.eps);
      for (int64_t i = 0; i < p.width; ++i) {
        const double z = p.z[r * p.width + i];
        const double gate = p.gate == Gate::kSilu ? Silu(z) : Sigmoid(z);
        p.y[r * p.width + i] = static_cast<float>(x[i] * inverse * p.weight[i] * gate);
      }
    }
  }

  void Mix(const MixParams& p) override {
    for (int64_t r = 0; r < p.rows; ++r) {
      std::vector<const float*> rows;
      for (int64_t e = 0; e < p.snapshots; ++e) {
        rows.push_back(p.bank + (r * p.snapshots + e) * p.width);
      }
      rows.push_back(p.x + r * p.width);
      std::vector<double> scores;
      for (const float* v : rows) {
        double dot = 0;
        for (int64_t i = 0; i < p.width; ++i) {
          dot += static_cast<double>(v[i]) * p.norm[i] * p.query[i];
        }
        scores.push_back(dot * InverseRms(v, p.width, p.eps));
      }
      const double top = *std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (double& s : scores) total += s = std::exp(s - top);
      std::vector<double> sum(p.width, 0);
      for (size_t e = 0; e < rows.size(); ++e) {
        for (int64_t i = 0; i < p.width; ++i) sum[i] += scores[e] / total * rows[e][i];
      }
      std::copy(sum.begin(), sum.end(), p.y + r * p.width);
    }
  }

  void Rope(const RopeParams& p) override {
    const int64_t half = p.rotary / 2;
    for (int64_t t = 0; t < p.tokens; ++t) {
      for (int64_t h = 0; h < p.heads; ++h) {
        float* x = p.x + t * p.x_stride + h * p.head_dim;
        for (int64_t i = 0; i < half; ++i) {
          // The angle itself is a float, as in the models' own code.
          const float angle = static_cast<float>(p.positions[t]) * p.inv_freq[i];
          const double c = std::cos(static_cast<double>(angle)) * p.scale;
          const double s = std::sin(static_cast<double>(angle)) * p.scale;
          const double a = x[i];
          const double b = x[i + half];
          x[i] = static_cast<float>(a * c - b * s);
          x[i + half] = static_cast<float>(b * c + a * s);
        }
      }
    }
  }

  void StoreKv(const AttentionParams& p) override {
    for (size_t s = 0; s < p.sequences.size(); ++s) {
      for (int64_t i = 0; i < p.sequences[s].count; ++i) AppendKv(p, s, i);
    }
  }

  void Attention(const AttentionParams& p) override {
    StoreKv(p);
    for (size_t s = 0; s < p.sequences.size(); ++s) {
      for (int64_t i = 0; i < p.sequences[s].count; ++i) {
        for (int64_t h = 0; h < p.heads; ++h) AttendOne(p, s, i, h);
      }
    }
  }

  void HeadMatMul(const HeadMatMulParams& p) override {
    std::vector<float> row(p.w.cols);
    for (int64_t h = 0; h < p.heads; ++h) {
      const int64_t width = p.transposed ? p.w.cols : p.rows;
      std::vector<double> sums(p.tokens * width, 0);
      for (int64_t o = 0; o < p.rows; ++o) {
        p.w.DecodeRow(h * p.head_rows + p.first + o, row);
        for (int64_t t = 0; t < p.tokens; ++t) {
          const float* x = p.x + t * p.x_stride + h * p.x_head_stride;
          if (!p.transposed) sums[t * width + o] = Dot(x, row.data(), p.w.cols);
          for (int64_t i = 0; p.transposed && i < width; ++i) {
            sums[t * width + i] += static_cast<double>(x[o]) * row[i];
          }
        }
      }
      for (int64_t t = 0; t < p.tokens; ++t) {
        std::copy_n(sums.begin() + t * width, width, p.y + t * p.y_stride + h * p.y_head_stride);
      }
    }
  }

  void CausalConv(const CausalConvParams& p) override {
    const int64_t taps = p.kernel - 1;  // that reach back
    for (size_t s = 0; s < p.sequences.size(); ++s) {
      const SequenceSpan& span = p.sequences[s];
      for (int64_t c = 0; c < p.channels; ++c) {
        std::vector<float> in;  // state, then the new inputs
        for (int64_t j = 0; j < taps; ++j) in.push_back(p.states[s][j * p.channels + c]);
        for (int64_t t = span.first; t < span.first + span.count; ++t) {
          in.push_back(p.x[t * p.x_stride + c]);
          const double u = Dot(p.weight + c * p.kernel, &in[t - span.first], p.kernel);
          p.y[t * p.y_stride + c] = static_cast<float>(Silu(u));
          float* after = AfterToken(p.after, t, p.states[s]);
          for (int64_t j = 0; j < taps; ++j) {
            after[j * p.channels + c] = in[t - span.first + 1 + j];
          }
        }
      }
    }
  }

  // Always the recurrence; the chunk form is another way to the same numbers.
  void DeltaRule(const DeltaRuleParams& p) override {
    for (size_t s = 0; s < p.sequences.size(); ++s) {
      const float* before = p.states[s];
      for (int64_t i = 0; i < p.sequences[s].count; ++i) {
        const int64_t t = p.sequences[s].first + i;
        float* after = AfterToken(p.after, t, p.states[s]);
        for (int64_t h = 0; h < p.value_heads; ++h) {
          const int64_t head = h * p.key_dim * p.value_dim;
          DeltaStep(p, t, h, before + head, after + head);
        }
        before = after;
      }
    }
  }

  void Router(const RouterParams& p) override {
    for (int64_t t = 0; t < p.tokens; ++t) {
      if (p.scores == RouterScores::kSigmoid) {
        RouteBySigmoid(p, t);
        continue;
      }
      const float* logits = p.logits + t * p.experts;
      const double top = *std::max_element(logits, logits + p.experts);
      double all = 0;
      for (int64_t e = 0; e < p.experts; ++e) all += std::exp(logits[e] - top);
      std::vector<bool> taken(p.experts, false);
      double chosen = 0;
      for (int64_t k = 0; k < p.top_k; ++k) {
        int64_t best = -1;
        for (int64_t e = 0; e < p.experts; ++e) {
          if (!taken[e] && (best < 0 || logits[e] > logits[best])) best = e;
        }
        taken[best] = true;
        p.ids[t * p.top_k + k] = static_cast<int32_t>(best);
        chosen += std::exp(logits[best] - top);
      }
      for (int64_t k = 0; k < p.top_k; ++k) {
        const double e = std::exp(logits[p.ids[t * p.top_k + k]] - top);
        p.weights[t * p.top_k + k] = static_cast<float>(e / (p.renormalise ? chosen : all));
      }
    }
  }

  void GroupedMlp(const GroupedMlpParams& p) override {
    for (size_t e = 0; e < p.experts.size(); ++e) {
      const ExpertWeights& w = p.experts[e];
      const int64_t rows = p.offsets[e + 1] - p.offsets[e];
      if (rows == 0) continue;
      const float* x = p.x + p.offsets[e] * p.x_stride;
      const int64_t inner = w.gate.rows;
      std::vector<float> gate(rows * inner);
      std::vector<float> up(rows * inner);
      const auto project = [&](const MatrixView& matrix, std::vector<float>& out) {
        Project({.x = x,
                 .x_stride = p.x_stride,
                 .tokens = rows,
                 .w = matrix,
                 .y = out.data(),
                 .y_stride = inner},
                p.precision);
      };
      project(w.gate, gate);
      project(w.up, up);
      Glu(p.activation, gate.data(), up.data(), rows * inner, up.data());
      Project({.x = up.data(),
               .x_stride = inner,
               .tokens = rows,
               .w = w.down,
               .y = p.y + p.offsets[e] * p.y_stride,
               .y_stride = p.y_stride},
              p.precision);
    }
  }

  void Project(const MatMulParams& p, ActivationPrecision precision) {
    if (precision != ActivationPrecision::kInt8 || p.w.format != WeightFormat::kMxfp4) {
      return MatMul(p);
    }
    std::vector<Int8Block> q(p.w.cols / kMxBlock);
    for (int64_t t = 0; t < p.tokens; ++t) {
      QuantiseRow(p.x + t * p.x_stride, p.w.cols, q.data());
      for (int64_t r = 0; r < p.w.rows; ++r) {
        p.y[t * p.y_stride + r] = Int8Dot(q.data(), p.w, r);
      }
    }
  }

  void GatherRows(const GatherRowsParams& p) override {
    for (size_t i = 0; i < p.rows.size(); ++i) {
      float* out = p.out + static_cast<int64_t>(i) * p.out_stride;
      if (p.rows[i] < 0) {
        std::fill_n(out, p.width, 0.f);
      } else {
        LoadFloats(ElementAt(p.in, p.rows[i] * p.in_stride, p.dtype), p.width, p.dtype, out);
      }
    }
  }

  void Glu(const Activation& activation, const float* gate, const float* up, int64_t n,
           float* y) override {
    if (activation.kind == Activation::Kind::kSilu) {
      for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(Silu(gate[i]) * up[i]);
      return;
    }
    const double b = activation.gate_bound;
    const double c = activation.up_bound;
    for (int64_t i = 0; i < n; ++i) {
      y[i] = static_cast<float>(b * std::tanh(gate[i] / b) * Sigmoid(gate[i]) * c *
                                std::tanh(up[i] / c));
    }
  }

  void SigmoidMul(float* x, int64_t x_stride, const float* gate, int64_t gate_stride,
                  int64_t gate_width, int64_t rows, int64_t width) override {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < width; ++i) {
        const double g = gate[r * gate_stride + (gate_width == 1 ? 0 : i)];
        x[r * x_stride + i] = static_cast<float>(x[r * x_stride + i] * Sigmoid(g));
      }
    }
  }

  void AddScaled(const float* x, float a, int64_t n, float* y) override {
    for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(y[i] + static_cast<double>(a) * x[i]);
  }

  void DeltaGates(const float* a, const float* b, const float* a_log, const float* dt_bias,
                  int64_t tokens, int64_t heads, float* g, float* beta) override {
    for (int64_t i = 0; i < tokens * heads; ++i) {
      const int64_t h = i % heads;
      const double z = static_cast<double>(a[i]) + dt_bias[h];
      // log(1 + e^z); past 20 the two agree to float precision and e^z could overflow.
      const double softplus = z > 20 ? z : std::log1p(std::exp(z));
      g[i] = static_cast<float>(-std::exp(static_cast<double>(a_log[h])) * softplus);
      beta[i] = static_cast<float>(Sigmoid(b[i]));
    }
  }

  void BoundedDeltaGates(const BoundedDeltaGatesParams& p) override {
    for (int64_t i = 0; i < p.tokens * p.heads; ++i) {
      const int64_t h = i % p.heads;
      for (int64_t d = 0; d < p.key_dim; ++d) {
        const double z = static_cast<double>(p.z[i * p.key_dim + d]) + p.dt_bias[h * p.key_dim + d];
        p.g[i * p.key_dim + d] =
            static_cast<float>(p.bound * Sigmoid(std::exp(static_cast<double>(p.a_log[h])) * z));
      }
      p.beta[i] = static_cast<float>(Sigmoid(p.b[i]));
    }
  }

 private:
  // The choice is made among floats, so that equal scores are equal on every device.
  static void RouteBySigmoid(const RouterParams& p, int64_t t) {
    const float* logits = p.logits + t * p.experts;
    const auto score = [&](int64_t e) { return static_cast<float>(Sigmoid(logits[e])); };
    const auto key = [&](int64_t e) { return score(e) + (p.bias != nullptr ? p.bias[e] : 0.f); };
    std::vector<bool> taken(p.experts, false);
    double chosen = 1e-20;
    for (int64_t k = 0; k < p.top_k; ++k) {
      int64_t best = -1;
      for (int64_t e = 0; e < p.experts; ++e) {
        if (!taken[e] && (best < 0 || key(e) > key(best))) best = e;
      }
      taken[best] = true;
      p.ids[t * p.top_k + k] = static_cast<int32_t>(best);
      chosen += score(best);
    }
    for (int64_t k = 0; k < p.top_k; ++k) {
      const double s = score(p.ids[t * p.top_k + k]);
      p.weights[t * p.top_k + k] = static_cast<float>(p.renormalise ? s / chosen : s);
    }
  }

  // Row of token `position` of sequence `s` in the page pool.
  static int64_t PageRow(const AttentionParams& p, size_t s, int64_t position) {
    return p.block_tables[s][position / p.kv.block] * p.kv.block + position % p.kv.block;
  }

  static void AppendKv(const AttentionParams& p, size_t s, int64_t i) {
    const int64_t t = p.sequences[s].first + i;
    const int64_t row = PageRow(p, s, p.sequences[s].past + i);
    const int64_t key_width = p.kv_heads * p.head_dim;
    const int64_t value_width = p.kv_heads * p.value_dim;
    StoreFloats(p.k + t * p.k_stride, key_width, p.kv.dtype,
                ElementAt(p.kv.keys, row * key_width, p.kv.dtype));
    if (p.kv.values == nullptr) return;
    StoreFloats(p.v + t * p.v_stride, value_width, p.kv.dtype,
                ElementAt(p.kv.values, row * value_width, p.kv.dtype));
  }

  // New token `i` of sequence `s`, query head `h`.
  static void AttendOne(const AttentionParams& p, size_t s, int64_t i, int64_t h) {
    const int64_t t = p.sequences[s].first + i;
    const int64_t keys = p.sequences[s].past + i + 1;
    const int64_t kv_head = h / (p.heads / p.kv_heads);
    const float* q = p.q + t * p.q_stride + h * p.head_dim;
    std::vector<double> scores(keys);
    const auto load = [&](const void* pages, int64_t row, std::vector<float>& out) {
      const auto width = static_cast<int64_t>(out.size());
      LoadFloats(ElementAt(pages, row * width, p.kv.dtype), width, p.kv.dtype, out.data());
    };
    std::vector<float> key(p.head_dim);
    std::vector<float> own_value(p.value_dim);
    const std::vector<float>& value = p.kv.values == nullptr ? key : own_value;
    double top = -std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t row = PageRow(p, s, j) * p.kv_heads + kv_head;
      load(p.kv.keys, row, key);
      scores[j] = Dot(q, key.data(), p.head_dim) * p.scale;
      top = std::max(top, scores[j]);
    }
    double total = 0;
    std::vector<double> sum(p.value_dim, 0);
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t row = PageRow(p, s, j) * p.kv_heads + kv_head;
      if (p.kv.values == nullptr) {
        load(p.kv.keys, row, key);
      } else {
        load(p.kv.values, row, own_value);
      }
      const double weight = std::exp(scores[j] - top);
      total += weight;
      for (int64_t c = 0; c < p.value_dim; ++c) sum[c] += weight * value[c];
    }
    float* out = p.out + t * p.out_stride + h * p.value_dim;
    for (int64_t c = 0; c < p.value_dim; ++c) out[c] = static_cast<float>(sum[c] / total);
  }

  static float* AfterToken(StatesAfter after, int64_t t, float* in_place) {
    return after.empty() || after[t] == nullptr ? in_place : after[t];
  }

  // One token of value head `h`; `before` and `after` are that head's states [key_dim, value_dim].
  static void DeltaStep(const DeltaRuleParams& p, int64_t t, int64_t h, const float* before,
                        float* after) {
    const int64_t key_head = h / (p.value_heads / p.key_heads);
    const std::vector<double> q = L2Normalise(p.q + t * p.q_stride + key_head * p.key_dim,
                                              p.key_dim, 1 / std::sqrt(double(p.key_dim)));
    const std::vector<double> k =
        L2Normalise(p.k + t * p.k_stride + key_head * p.key_dim, p.key_dim, 1);
    const float* v = p.v + t * p.v_stride + h * p.value_dim;
    const float* g = p.g + (t * p.value_heads + h) * (p.channel_decay ? p.key_dim : 1);
    const double beta = p.beta[t * p.value_heads + h];
    for (int64_t c = 0; c < p.value_dim; ++c) {
      std::vector<double> column(p.key_dim);
      double memory = 0;
      for (int64_t d = 0; d < p.key_dim; ++d) {
        column[d] = std::exp(double{g[p.channel_decay ? d : 0]}) * before[d * p.value_dim + c];
        memory += column[d] * k[d];
      }
      const double delta = beta * (v[c] - memory);
      double out = 0;
      for (int64_t d = 0; d < p.key_dim; ++d) {
        column[d] += k[d] * delta;
        out += column[d] * q[d];
        after[d * p.value_dim + c] = static_cast<float>(column[d]);
      }
      p.out[t * p.out_stride + h * p.value_dim + c] = static_cast<float>(out);
    }
  }
};

}  // namespace

std::unique_ptr<Ops> MakeReferenceOps() {
  return std::make_unique<ReferenceOps>();
}

}  // namespace signalbox
