// SPDX-License-Identifier: Apache-2.0
//
// Operations that mix the tokens of a sequence: attention, convolution, delta rule.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "signalbox/ops/ops_test_util.h"

namespace signalbox {
namespace {

std::vector<SequenceSpan> RandomSpans(Random& random, int64_t count, int64_t max_past,
                                      int64_t max_new) {
  std::vector<SequenceSpan> spans;
  int64_t first = 0;
  for (int64_t s = 0; s < count; ++s) {
    const int64_t tokens = random.Below(max_new + 1);
    spans.push_back({first, tokens, random.Below(max_past + 1)});
    first += tokens;
  }
  return spans;
}

int64_t TokensOf(const std::vector<SequenceSpan>& spans) {
  return spans.empty() ? 0 : spans.back().first + spans.back().count;
}

std::vector<Ops*> AllOps() {
  std::vector<Ops*> all = {&Reference()};
  for (const NamedOps& cpu : AllCpuOps()) all.push_back(cpu.ops.get());
  return all;
}

// ---- Attention

struct Heads {
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t value_dim;
  bool in_keys = false;  // values are the front of the keys
};

// A page pool with the past of every sequence in scattered pages and NaN wherever nothing was
// written.
struct Pool {
  std::vector<float> keys;
  std::vector<float> values;
  int64_t block;
  std::vector<std::vector<int32_t>> tables;

  Pool(Random& random, const Heads& h, const std::vector<SequenceSpan>& spans, int64_t page)
      : block(page) {
    std::vector<int64_t> pages;
    for (const SequenceSpan& s : spans) pages.push_back((s.past + s.count + page - 1) / page);
    std::vector<int32_t> ids(std::accumulate(pages.begin(), pages.end(), int64_t{0}) + 1);
    std::iota(ids.begin(), ids.end(), 0);
    for (size_t i = ids.size() - 1; i > 0; --i) std::swap(ids[i], ids[random.Below(i + 1)]);
    auto next = ids.begin();
    for (const int64_t n : pages) {
      tables.emplace_back(next, next + n);
      next += n;
    }
    const int64_t rows = static_cast<int64_t>(ids.size()) * page;
    keys.assign(rows * h.kv_heads * h.head_dim, std::nanf(""));
    values.assign(rows * h.kv_heads * h.value_dim, std::nanf(""));
    for (size_t s = 0; s < spans.size(); ++s) {
      for (int64_t p = 0; p < spans[s].past; ++p) {
        const int64_t row = tables[s][p / page] * page + p % page;
        Fill(random, keys, row, h.kv_heads * h.head_dim);
        Fill(random, values, row, h.kv_heads * h.value_dim);
      }
    }
  }

  static void Fill(Random& random, std::vector<float>& pool, int64_t row, int64_t width) {
    for (int64_t i = 0; i < width; ++i) pool[row * width + i] = random.Normal();
  }
};

struct AttentionInput {
  Heads h;
  Rows q;
  Rows k;
  Rows v;
};

AttentionInput RandomAttention(Random& random, const Heads& h, int64_t tokens) {
  const auto rows = [&](int64_t width) {
    return RandomRows(random, tokens, width, width + random.Below(5), 1.f);
  };
  return {h, rows(h.heads * h.head_dim), rows(h.kv_heads * h.head_dim),
          rows(h.kv_heads * h.value_dim)};
}

std::vector<std::byte> Stored(const std::vector<float>& x, DType dtype) {
  std::vector<std::byte> bytes(x.size() * ByteSize(dtype));
  StoreFloats(x.data(), static_cast<int64_t>(x.size()), dtype, bytes.data());
  return bytes;
}
std::vector<float> Loaded(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<float> x(bytes.size() / ByteSize(dtype));
  LoadFloats(bytes.data(), static_cast<int64_t>(x.size()), dtype, x.data());
  return x;
}

// Writes to `pool`, whose numbers are held in `dtype` meanwhile.
std::vector<float> Attend(Ops& ops, const AttentionInput& in, Pool& pool,
                          const std::vector<SequenceSpan>& spans, DType dtype = DType::kF32) {
  std::vector<std::byte> keys = Stored(pool.keys, dtype);
  std::vector<std::byte> values = Stored(pool.values, dtype);
  std::vector<const int32_t*> tables;
  for (const auto& table : pool.tables) tables.push_back(table.data());
  Rows out = EmptyRows(in.q.rows, in.h.heads * in.h.value_dim, in.h.heads * in.h.value_dim + 3);
  ops.Attention({.q = in.q.data.data(),
                 .q_stride = in.q.stride,
                 .k = in.k.data.data(),
                 .k_stride = in.k.stride,
                 .v = in.v.data.data(),
                 .v_stride = in.v.stride,
                 .heads = in.h.heads,
                 .kv_heads = in.h.kv_heads,
                 .head_dim = in.h.head_dim,
                 .value_dim = in.h.value_dim,
                 .scale = 1 / std::sqrt(static_cast<float>(in.h.head_dim)),
                 .sequences = spans,
                 .block_tables = tables,
                 .kv = {.keys = keys.data(),
                        .values = in.h.in_keys ? nullptr : values.data(),
                        .block = pool.block,
                        .dtype = dtype},
                 .out = out.data.data(),
                 .out_stride = out.stride});
  pool.keys = Loaded(keys, dtype);
  pool.values = Loaded(values, dtype);
  return out.data;
}

float Largest(const std::vector<float>& x) {
  float top = 0;
  for (const float v : x) {
    if (!std::isnan(v)) top = std::max(top, std::fabs(v));
  }
  return top;
}

// A score is off by at most chain eps sum |q k|, a weight by e to that, and the output is a mean of
// values under such weights.
double AttentionBound(const AttentionInput& in, const Pool& pool, int64_t keys) {
  const double score = std::sqrt(in.h.head_dim) * Largest(in.q.data) * Largest(pool.keys);
  const double weight = score * (static_cast<double>(in.h.head_dim) / 8 + 16);
  return Largest(pool.values) * kEpsilon * (2 * weight + 2 * static_cast<double>(keys) + 32);
}

constexpr DType kCacheTypes[] = {DType::kF32, DType::kBf16, DType::kF8E4m3};

void ExpectAttention(Random& random, const Heads& h, const std::vector<SequenceSpan>& spans,
                     int64_t page, DType dtype = DType::kF32) {
  const AttentionInput in = RandomAttention(random, h, TokensOf(spans));
  Pool before(random, h, spans, page);
  if (h.in_keys) before.values = before.keys;  // for the bound alone
  Pool after = before;
  const std::vector<float> want = Attend(Reference(), in, after, spans, dtype);
  int64_t keys = 0;
  for (const SequenceSpan& s : spans) keys = std::max(keys, s.past + s.count);
  for (const NamedOps& cpu : AllCpuOps()) {
    Pool pool = before;
    const std::vector<float> got = Attend(*cpu.ops, in, pool, spans, dtype);
    EXPECT_LE(WorstError(got, want, AttentionBound(in, after, keys)), 1)
        << cpu.name << " " << ToString(dtype);
    EXPECT_TRUE(SameBits(pool.keys, after.keys)) << cpu.name;
    EXPECT_TRUE(SameBits(pool.values, after.values)) << cpu.name;
  }
}

RC_GTEST_PROP(Attention, AgreesWithTheDefinition, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const int64_t kv_heads = *rc::gen::inRange<int64_t>(1, 4);
  const Heads h = {.heads = kv_heads * *rc::gen::inRange<int64_t>(1, 5),
                   .kv_heads = kv_heads,
                   .head_dim = *rc::gen::inRange<int64_t>(1, 50),
                   .value_dim = *rc::gen::inRange<int64_t>(1, 50)};
  const auto spans = RandomSpans(random, *rc::gen::inRange<int64_t>(0, 4), 90, 30);
  ExpectAttention(random, h, spans, *rc::gen::inRange<int64_t>(1, 40),
                  kCacheTypes[random.Below(3)]);
  RC_ASSERT(!::testing::Test::HasFailure());
}

// Attention over pages of a type is that over pages of floats which the type has rounded, bit for
// bit: new and old keys and values are what is stored of them, and nothing else is rounded.
RC_GTEST_PROP(Attention, SeesWhatIsStored, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const int64_t head_dim = *rc::gen::inRange<int64_t>(1, 80);
  const bool in_keys = random.Below(2) == 0;
  const Heads h = {.heads = 2 * *rc::gen::inRange<int64_t>(1, 5),
                   .kv_heads = 2,
                   .head_dim = head_dim,
                   .value_dim = *rc::gen::inRange<int64_t>(1, in_keys ? head_dim + 1 : 80),
                   .in_keys = in_keys};
  const auto spans = RandomSpans(random, *rc::gen::inRange<int64_t>(1, 4), 90, 30);
  AttentionInput in = RandomAttention(random, h, TokensOf(spans));
  for (float& x : in.k.data) x *= random.Below(50) == 0 ? 300.f : 1.f;  // some saturate
  const Pool pool(random, h, spans, *rc::gen::inRange<int64_t>(1, 40));
  for (const DType dtype : {DType::kBf16, DType::kF8E4m3}) {
    const auto round = [&](std::vector<float>& x) { x = Loaded(Stored(x, dtype), dtype); };
    AttentionInput rounded = in;
    round(rounded.k.data);
    round(rounded.v.data);
    for (Ops* ops : AllOps()) {
      Pool a = pool;
      Pool b = pool;
      round(b.keys);
      round(b.values);
      const std::vector<float> got = Attend(*ops, in, a, spans, dtype);
      RC_ASSERT(SameBits(got, Attend(*ops, rounded, b, spans)));
      RC_ASSERT(SameBits(a.keys, b.keys));
      RC_ASSERT(SameBits(a.values, b.values));
    }
  }
}

TEST(Attention, LargeEnoughToBeShared) {
  Random random(1);
  for (const DType dtype : kCacheTypes) {
    ExpectAttention(random, {8, 2, 128, 80}, {{0, 70, 0}, {70, 1, 300}, {71, 0, 5}, {71, 33, 64}},
                    16, dtype);
  }
}

// The keys' own first numbers as values give what a copy of them gives.
TEST(Attention, ValuesInKeysAreTheirFront) {
  Random random(13);
  for (const int64_t value_dim : {1, 20, 48}) {
    const Heads copied = {6, 2, 48, value_dim};
    const std::vector<SequenceSpan> spans = {{0, 30, 0}, {30, 1, 70}, {31, 5, 9}};
    AttentionInput in = RandomAttention(random, copied, 36);
    Pool pool(random, copied, spans, 8);
    const auto front = [&](const float* key, float* value) {
      for (int64_t h = 0; h < 2; ++h) {
        std::copy_n(key + h * 48, value_dim, value + h * value_dim);
      }
    };
    for (int64_t t = 0; t < 36; ++t) front(in.k.at(t), in.v.at(t));
    for (size_t row = 0; row < pool.keys.size() / 96; ++row) {
      front(pool.keys.data() + row * 96, pool.values.data() + row * 2 * value_dim);
    }
    AttentionInput in_keys = in;
    in_keys.h.in_keys = true;
    std::fill(in_keys.v.data.begin(), in_keys.v.data.end(), std::nanf(""));
    for (Ops* ops : AllOps()) {
      Pool a = pool;
      Pool b = pool;
      EXPECT_TRUE(SameBits(Attend(*ops, in, a, spans), Attend(*ops, in_keys, b, spans)))
          << ops->name();
      EXPECT_TRUE(SameBits(a.keys, b.keys)) << ops->name();
      EXPECT_TRUE(SameBits(b.values, pool.values)) << ops->name();
    }
  }
}

TEST(Attention, OneKeyGivesItsValue) {
  Random random(2);
  const Heads h = {3, 1, 4, 5};
  const std::vector<SequenceSpan> spans = {{0, 1, 0}};
  const AttentionInput in = RandomAttention(random, h, 1);
  Pool pool(random, h, spans, 4);
  const std::vector<float> out = Attend(Reference(), in, pool, spans);
  for (int64_t i = 0; i < 15; ++i) EXPECT_EQ(out[i], in.v.data[i % 5]);
}

Rows Cut(const Rows& rows, int64_t first, int64_t count) {
  Rows out = EmptyRows(count, rows.width, rows.stride);
  for (int64_t r = 0; r < count; ++r) std::copy_n(rows.at(first + r), rows.width, out.at(r));
  return out;
}

// One prompt in one call, in pieces, and beside other sequences: the same bits.
TEST(Attention, QueriesDoNotDependOnTheBatchOrTheCut) {
  Random random(3);
  const Heads h = {4, 2, 40, 33};
  constexpr int64_t kTokens = 150;
  const AttentionInput in = RandomAttention(random, h, kTokens);
  std::string isa;
  std::vector<float> whole;
  for (const NamedOps& cpu : AllCpuOps()) {
    Random again(4);
    Pool pool(again, h, {{0, kTokens, 0}}, 16);
    const std::vector<float> out = Attend(*cpu.ops, in, pool, {{0, kTokens, 0}});
    if (cpu.ops->name() != isa) {
      isa = cpu.ops->name();
      whole = out;
    }
    ASSERT_TRUE(SameBits(out, whole)) << cpu.name;
    const int64_t stride = 4 * 33 + 3;
    for (const std::vector<int64_t>& pieces :
         {std::vector<int64_t>{1, 63, 64, 22}, {100, 1, 1, 48}, {17, 47, 86}}) {
      Pool pieced(again, h, {{0, kTokens, 0}, {0, 9, 30}}, 7);
      int64_t past = 0;
      for (const int64_t n : pieces) {
        // The other sequence comes first in the batch, with tokens of its own.
        AttentionInput part = RandomAttention(again, h, 9 + n);
        const auto insert = [&](Rows& rows, const Rows& from) {
          for (int64_t r = 0; r < n; ++r)
            std::copy_n(from.at(past + r), rows.width, rows.at(9 + r));
        };
        insert(part.q, in.q);
        insert(part.k, in.k);
        insert(part.v, in.v);
        const std::vector<float> got = Attend(*cpu.ops, part, pieced, {{9, n, past}, {0, 9, 30}});
        for (int64_t r = 0; r < n; ++r) {
          ASSERT_TRUE(
              SameBits(got.data() + (9 + r) * stride, whole.data() + (past + r) * stride, 4 * 33))
              << cpu.name << " token " << past + r;
        }
        past += n;
      }
    }
  }
}

// A later token with a value that is not finite leaves the earlier ones alone.
TEST(Attention, IsCausalForNanToo) {
  Random random(5);
  const Heads h = {2, 1, 16, 16};
  AttentionInput in = RandomAttention(random, h, 20);
  std::fill_n(in.v.at(13), 16, std::nanf(""));
  std::fill_n(in.k.at(13), 16, std::nanf(""));
  for (const NamedOps& cpu : AllCpuOps()) {
    Pool pool(random, h, {{0, 20, 0}}, 8);
    const std::vector<float> out = Attend(*cpu.ops, in, pool, {{0, 20, 0}});
    for (int64_t t = 0; t < 20; ++t) EXPECT_EQ(std::isnan(out[t * 35]), t >= 13) << cpu.name;
  }
}

// ---- Causal convolution

struct Conv {
  int64_t channels;
  int64_t kernel;
  std::vector<float> weight;
};

// Updates `states`, unless states are kept `after` the tokens.
std::vector<float> Convolve(Ops& ops, const Conv& conv, const Rows& x,
                            const std::vector<SequenceSpan>& spans,
                            std::vector<std::vector<float>>& states, StatesAfter after = {}) {
  std::vector<float*> pointers;
  for (auto& state : states) pointers.push_back(state.data());
  Rows y = EmptyRows(x.rows, conv.channels, conv.channels + 1);
  ops.CausalConv({.x = x.data.data(),
                  .x_stride = x.stride,
                  .channels = conv.channels,
                  .kernel = conv.kernel,
                  .weight = conv.weight.data(),
                  .sequences = spans,
                  .states = pointers,
                  .after = after,
                  .y = y.data.data(),
                  .y_stride = y.stride});
  return y.data;
}

RC_GTEST_PROP(CausalConv, AgreesWithTheDefinition, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  Conv conv = {*rc::gen::inRange<int64_t>(1, 150), *rc::gen::inRange<int64_t>(1, 6), {}};
  conv.weight = random.Floats(conv.channels * conv.kernel);
  const auto spans = RandomSpans(random, *rc::gen::inRange<int64_t>(0, 4), 3, 9);
  const Rows x = RandomRows(random, TokensOf(spans), conv.channels, conv.channels + 2);
  std::vector<std::vector<float>> before;
  for (size_t s = 0; s < spans.size(); ++s) {
    before.push_back(random.Floats((conv.kernel - 1) * conv.channels));
  }
  auto after = before;
  const std::vector<float> want = Convolve(Reference(), conv, x, spans, after);
  for (const NamedOps& cpu : AllCpuOps()) {
    auto states = before;
    const std::vector<float> got = Convolve(*cpu.ops, conv, x, spans, states);
    RC_ASSERT(WorstError(got, want, 32 * kEpsilon * 6 * 16) <= 1);  // six taps of at most 4 x 4
    RC_ASSERT(states == after);
  }
}

TEST(CausalConv, PiecesEqualTheWholeInBits) {
  Random random(6);
  Conv conv = {1000, 4, random.Floats(4000)};
  const Rows x = RandomRows(random, 70, 1000, 1000);
  for (const NamedOps& cpu : AllCpuOps()) {
    std::vector<std::vector<float>> whole_state = {std::vector<float>(3000, 0.f)};
    const std::vector<float> whole = Convolve(*cpu.ops, conv, x, {{0, 70, 0}}, whole_state);
    std::vector<std::vector<float>> state = {std::vector<float>(3000, 0.f)};
    int64_t past = 0;
    for (const int64_t n : {1, 2, 1, 3, 40, 23}) {
      const std::vector<float> y = Convolve(*cpu.ops, conv, Cut(x, past, n), {{0, n, past}}, state);
      for (int64_t r = 0; r < n; ++r) {
        ASSERT_TRUE(SameBits(y.data() + r * 1001, whole.data() + (past + r) * 1001, 1000))
            << cpu.name;
      }
      past += n;
    }
    EXPECT_EQ(state, whole_state) << cpu.name;
  }
}

// ---- Delta rule

struct Delta {
  int64_t key_heads;
  int64_t value_heads;
  int64_t key_dim;
  int64_t value_dim;
  bool channel_decay;
  Rows q;
  Rows k;
  Rows v;
  std::vector<float> g;
  std::vector<float> beta;
};

Delta RandomDelta(Random& random, int64_t key_heads, int64_t ratio, int64_t key_dim,
                  int64_t value_dim, bool channel_decay, int64_t tokens) {
  const int64_t heads = key_heads * ratio;
  Delta d = {key_heads, heads, key_dim, value_dim, channel_decay, {}, {}, {}, {}, {}};
  d.q = RandomRows(random, tokens, key_heads * key_dim, key_heads * key_dim + 3);
  d.k = RandomRows(random, tokens, key_heads * key_dim, key_heads * key_dim + 1);
  d.v = RandomRows(random, tokens, heads * value_dim, heads * value_dim + 2);
  d.g = random.Floats(tokens * heads * (channel_decay ? key_dim : 1));
  for (float& g : d.g) g = -std::fabs(g) * (random.Below(8) == 0 ? 20.f : 0.2f);
  d.beta = random.Floats(tokens * heads);
  for (float& b : d.beta) b = 1 / (1 + std::exp(-b));
  return d;
}

// Updates `states`, unless states are kept `after` the tokens.
std::vector<float> RunDelta(Ops& ops, const Delta& d, const std::vector<SequenceSpan>& spans,
                            std::vector<std::vector<float>>& states, bool chunked,
                            int64_t first = 0, StatesAfter after = {}) {
  std::vector<float*> pointers;
  for (auto& state : states) pointers.push_back(state.data());
  const int64_t width = d.value_heads * d.value_dim;
  Rows out = EmptyRows(TokensOf(spans), width, width + 1);
  ops.DeltaRule({.q = d.q.at(first),
                 .k = d.k.at(first),
                 .v = d.v.at(first),
                 .q_stride = d.q.stride,
                 .k_stride = d.k.stride,
                 .v_stride = d.v.stride,
                 .g = d.g.data() + first * d.value_heads * (d.channel_decay ? d.key_dim : 1),
                 .beta = d.beta.data() + first * d.value_heads,
                 .channel_decay = d.channel_decay,
                 .key_heads = d.key_heads,
                 .value_heads = d.value_heads,
                 .key_dim = d.key_dim,
                 .value_dim = d.value_dim,
                 .sequences = spans,
                 .states = pointers,
                 .after = after,
                 .chunked = chunked,
                 .out = out.data.data(),
                 .out_stride = out.stride});
  return out.data;
}

// With unit keys and beta <= 1 a step does not lengthen an error, so errors add up over tokens.
double DeltaBound(const Delta& d, const std::vector<std::vector<float>>& states, int64_t tokens) {
  double size = std::max(1.f, Largest(d.v.data));
  for (const auto& state : states) size = std::max<double>(size, Largest(state));
  const double per_step = static_cast<double>(d.key_dim) / 4 + 32;
  return kEpsilon * size * std::sqrt(d.key_dim) * per_step * (8 + static_cast<double>(tokens) / 4);
}

void ExpectDelta(Random& random, const Delta& d, const std::vector<SequenceSpan>& spans) {
  std::vector<std::vector<float>> before;
  int64_t longest = 0;
  for (const SequenceSpan& s : spans) {
    before.push_back(random.Floats(d.value_heads * d.key_dim * d.value_dim));
    longest = std::max(longest, s.count);
  }
  auto after = before;
  const std::vector<float> want = RunDelta(Reference(), d, spans, after, false);
  const double bound = DeltaBound(d, after, longest);
  for (const NamedOps& cpu : AllCpuOps()) {
    for (const bool chunked : {false, true}) {
      auto states = before;
      const std::vector<float> got = RunDelta(*cpu.ops, d, spans, states, chunked);
      EXPECT_LE(WorstError(got, want, bound), 1) << cpu.name << " chunked " << chunked;
      for (size_t s = 0; s < states.size(); ++s) {
        EXPECT_LE(WorstError(states[s], after[s], bound), 1) << cpu.name << " chunked " << chunked;
      }
    }
  }
}

RC_GTEST_PROP(DeltaRule, AgreesWithTheDefinition, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const auto spans = RandomSpans(random, *rc::gen::inRange<int64_t>(0, 4), 3, 20);
  const Delta d =
      RandomDelta(random, *rc::gen::inRange<int64_t>(1, 3), *rc::gen::inRange<int64_t>(1, 3),
                  *rc::gen::inRange<int64_t>(1, 70), *rc::gen::inRange<int64_t>(1, 70),
                  random.Below(2) == 0, TokensOf(spans));
  ExpectDelta(random, d, spans);
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(DeltaRule, SeveralChunksAgreeWithTheDefinition) {
  Random random(7);
  for (const bool channel_decay : {false, true}) {
    const std::vector<SequenceSpan> spans = {{0, 64, 0}, {64, 65, 9}, {129, 1, 4}, {130, 150, 0}};
    ExpectDelta(random, RandomDelta(random, 1, 2, 128, 96, channel_decay, 280), spans);
  }
}

// The two forms on sizes as released, without the sharp decays that would hide a difference.
TEST(DeltaRule, FormsAgree) {
  Random random(8);
  for (const auto& [channel_decay, weakest] :
       {std::pair{false, -0.1f}, {true, -0.1f}, {true, -1.3f}, {true, -5.f}}) {
    Delta d = RandomDelta(random, 1, 1, 128, 128, channel_decay, 200);
    for (float& g : d.g) g = std::max(g * 4, weakest);
    for (const NamedOps& cpu : AllCpuOps()) {
      std::vector<std::vector<float>> states[2];
      std::vector<float> out[2];
      for (const bool chunked : {false, true}) {
        states[chunked] = {std::vector<float>(128 * 128, 0.f)};
        out[chunked] = RunDelta(*cpu.ops, d, {{0, 200, 0}}, states[chunked], chunked);
      }
      EXPECT_LE(WorstError(out[1], out[0], 1e-5), 1) << cpu.name << " " << weakest;
      EXPECT_LE(WorstError(states[1][0], states[0][0], 1e-5), 1) << cpu.name << " " << weakest;
    }
  }
}

// A decay that leaves nothing must leave zeros, not NaN, in both forms.
TEST(DeltaRule, TotalDecayForgets) {
  Random random(9);
  for (const bool channel_decay : {false, true}) {
    Delta d = RandomDelta(random, 1, 1, 16, 16, channel_decay, 70);
    std::fill(d.g.begin(), d.g.end(), -1e6f);
    ExpectDelta(random, d, {{0, 70, 0}});
  }
}

TEST(DeltaRule, RecallsTheValueOfAKey) {
  // Orthogonal keys, beta 1, no decay: reading with a key gives back its value.
  Delta d = {1, 1, 2, 3, false, {}, {}, {}, {0, 0, 0}, {1, 1, 0}};
  d.k = {{1, 0, 0, 1, 1, 0}, 3, 2, 2};
  d.q = {{1, 0, 0, 1, 1, 0}, 3, 2, 2};
  d.v = {{1, 2, 3, 4, 5, 6, 7, 8, 9}, 3, 3, 3};
  std::vector<std::vector<float>> state = {std::vector<float>(6, 0.f)};
  const std::vector<float> out = RunDelta(Reference(), d, {{0, 3, 0}}, state, false);
  const float scale = 1 / std::sqrt(2.f);
  for (int64_t c = 0; c < 3; ++c) {
    EXPECT_NEAR(out[c], d.v.data[c] * scale, 1e-5);
    EXPECT_NEAR(out[4 + c], d.v.data[3 + c] * scale, 1e-5);
    EXPECT_NEAR(out[8 + c], d.v.data[c] * scale, 1e-5);  // the first key again, nothing written
  }
}

TEST(DeltaRule, RecurrentPiecesEqualTheWholeInBits) {
  Random random(10);
  for (const bool channel_decay : {false, true}) {
    const Delta d = RandomDelta(random, 2, 2, 64, 50, channel_decay, 60);
    const int64_t size = 4 * 64 * 50;
    std::string isa;
    std::vector<float> first;
    for (const NamedOps& cpu : AllCpuOps()) {
      std::vector<std::vector<float>> whole_state = {std::vector<float>(size, 0.f)};
      const std::vector<float> whole = RunDelta(*cpu.ops, d, {{0, 60, 0}}, whole_state, false);
      if (cpu.ops->name() != isa) {
        isa = cpu.ops->name();
        first = whole;
      }
      ASSERT_TRUE(SameBits(whole, first)) << cpu.name;
      std::vector<std::vector<float>> state = {std::vector<float>(size, 0.f)};
      int64_t past = 0;
      for (const int64_t n : {1, 16, 3, 40}) {
        const std::vector<float> out = RunDelta(*cpu.ops, d, {{0, n, past}}, state, false, past);
        for (int64_t r = 0; r < n; ++r) {
          ASSERT_TRUE(SameBits(out.data() + r * 201, whole.data() + (past + r) * 201, 200))
              << cpu.name << " token " << past + r;
        }
        past += n;
      }
      EXPECT_EQ(state, whole_state) << cpu.name;
    }
  }
}

// ---- States after each token

using States = std::vector<std::vector<float>>;
// Runs `spans` from the states given and updates them, or keeps those after each token. The rows of
// what it returns are those of the tokens.
using Carry = std::function<std::vector<float>(const std::vector<SequenceSpan>& spans,
                                               States& states, StatesAfter after)>;

// Kept states and results are, bit for bit, those of one call per token in place. A sequence that
// keeps none beside them runs in place; one of those that does writes a state over its own.
void ExpectKeptStates(Random& random, const std::string& name,
                      const std::vector<SequenceSpan>& spans, const States& before,
                      int64_t out_stride, int64_t out_width, const Carry& carry) {
  const int64_t tokens = TokensOf(spans);
  States states = before;
  States kept(tokens, std::vector<float>(before[0].size(), std::nanf("")));
  std::vector<float*> after(tokens, nullptr);
  std::vector<int64_t> over(spans.size(),
                            -1);  // the token whose state goes over the sequence's own
  std::vector<bool> in_place;
  for (size_t s = 0; s < spans.size(); ++s) {
    const SequenceSpan& span = spans[s];
    in_place.push_back(random.Below(4) == 0);
    if (in_place[s]) continue;
    for (int64_t i = 0; i < span.count; ++i) after[span.first + i] = kept[span.first + i].data();
    if (span.count == 0 || random.Below(2) == 0) continue;
    over[s] = span.first + random.Below(span.count);
    after[over[s]] = states[s].data();
  }
  const std::vector<float> got = carry(spans, states, after);
  for (size_t s = 0; s < spans.size(); ++s) {
    const SequenceSpan& span = spans[s];
    States step = {before[s]};
    for (int64_t t = span.first; t < span.first + span.count; ++t) {
      const std::vector<float> want = carry({{t, 1, 0}}, step, {});
      ASSERT_TRUE(SameBits(got.data() + t * out_stride, want.data() + t * out_stride, out_width))
          << name << " token " << t;
      if (in_place[s]) continue;
      ASSERT_TRUE(SameBits(over[s] == t ? states[s] : kept[t], step[0])) << name << " token " << t;
    }
    if (in_place[s]) {
      ASSERT_TRUE(SameBits(states[s], step[0])) << name;
    } else if (over[s] < 0) {
      ASSERT_TRUE(SameBits(states[s], before[s])) << name;
    }
  }
}

RC_GTEST_PROP(CausalConv, KeptStatesAreThoseOfSingleSteps, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  Conv conv = {*rc::gen::inRange<int64_t>(1, 300), *rc::gen::inRange<int64_t>(1, 6), {}};
  conv.weight = random.Floats(conv.channels * conv.kernel);
  const auto spans = RandomSpans(random, *rc::gen::inRange<int64_t>(1, 5), 3, 6);
  const Rows x = RandomRows(random, TokensOf(spans), conv.channels, conv.channels + 2);
  States before;
  for (size_t s = 0; s < spans.size(); ++s) {
    before.push_back(random.Floats((conv.kernel - 1) * conv.channels));
  }
  for (Ops* ops : AllOps()) {
    ExpectKeptStates(random, ops->name(), spans, before, conv.channels + 1, conv.channels,
                     [&](const std::vector<SequenceSpan>& some, States& states, StatesAfter after) {
                       return Convolve(*ops, conv, x, some, states, after);
                     });
  }
  RC_ASSERT(!::testing::Test::HasFailure());
}

RC_GTEST_PROP(DeltaRule, KeptStatesAreThoseOfSingleSteps, ()) {
  Random random(*rc::gen::arbitrary<uint32_t>());
  const auto spans =
      RandomSpans(random, *rc::gen::inRange<int64_t>(1, 5), 3, random.Below(4) == 0 ? 40 : 5);
  const Delta d =
      RandomDelta(random, *rc::gen::inRange<int64_t>(1, 3), *rc::gen::inRange<int64_t>(1, 3),
                  *rc::gen::inRange<int64_t>(1, 40), *rc::gen::inRange<int64_t>(1, 90),
                  random.Below(2) == 0, TokensOf(spans));
  const int64_t width = d.value_heads * d.value_dim;
  States before;
  for (size_t s = 0; s < spans.size(); ++s) before.push_back(random.Floats(width * d.key_dim));
  // In chunked form a sequence that keeps states is recurrent; the others would not be.
  const bool chunked = random.Below(2) == 0;
  for (Ops* ops : AllOps()) {
    ExpectKeptStates(random, ops->name(), spans, before, width + 1, width,
                     [&](const std::vector<SequenceSpan>& some, States& states, StatesAfter after) {
                       const bool all = std::count(after.begin(), after.end(), nullptr) == 0;
                       return RunDelta(*ops, d, some, states, chunked && all, 0, after);
                     });
  }
  RC_ASSERT(!::testing::Test::HasFailure());
}

}  // namespace
}  // namespace signalbox
