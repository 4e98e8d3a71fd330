// SPDX-License-Identifier: Apache-2.0
//
// Laws of sampling, over random logits and parameters.
#include "signalbox/engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

namespace signalbox::sampler_test {
namespace {

using testing::HasSubstr;
using Tokens = std::vector<TokenProbability>;

// A case with ties among the logits (they are quarters) in a vocabulary of `vocab` tokens.
struct Case {
  std::vector<float> logits;
  std::vector<TokenId> prompt;
  std::vector<TokenId> generated;
  std::vector<TokenId> banned;  // never all
  SampleInput input() const { return {logits, prompt, generated, banned}; }
};

int Below(int n) {
  return *rc::gen::inRange(0, n);
}
float Between(float least, float most) {
  return least + (most - least) * static_cast<float>(Below(1001)) / 1000.f;
}

std::vector<TokenId> Ids(int vocab, int count) {
  std::vector<TokenId> ids(static_cast<size_t>(Below(count + 1)));
  for (TokenId& id : ids) id = Below(vocab);
  return ids;
}

Case AnyCase(int most_vocab = 400) {
  const int vocab = 1 + Below(most_vocab);
  std::mt19937 random(static_cast<uint32_t>(Below(1 << 30)));
  Case c;
  for (int i = 0; i < vocab; ++i)
    c.logits.push_back(static_cast<float>(static_cast<int>(random() % 65) - 32) / 4.f);
  c.prompt = Ids(vocab, 20);
  c.generated = Ids(vocab, 20);
  c.banned = Ids(vocab, 3);
  std::erase(c.banned, vocab - 1);
  return c;
}

SamplingParams AnyParams(int vocab) {
  SamplingParams p;
  p.temperature = Between(0.1f, 3.f);
  p.seed = static_cast<uint64_t>(Below(1000));
  p.top_k = Below(3) == 0 ? Below(vocab + 3) - 1 : 0;
  p.top_p = Below(2) == 0 ? Between(0.001f, 1.f) : 1.f;
  p.min_p = Below(2) == 0 ? Between(0.f, 1.f) : 0.f;
  if (Below(2) == 0) p.repetition_penalty = Between(0.5f, 2.f);
  if (Below(2) == 0) p.presence_penalty = Between(-2.f, 2.f);
  if (Below(2) == 0) p.frequency_penalty = Between(-2.f, 2.f);
  for (const TokenId id : Ids(vocab, 4)) p.logit_bias.push_back({id, Between(-100.f, 100.f)});
  return p;
}

// Steps 1 to 3 of the header, token by token.
std::map<TokenId, double> NaiveScores(const SamplingParams& p, const Case& c) {
  std::map<TokenId, double> scores;
  for (TokenId id = 0; id < static_cast<TokenId>(c.logits.size()); ++id) {
    double score = c.logits[static_cast<size_t>(id)];
    const auto in = [&](const auto& ids) { return std::count(ids.begin(), ids.end(), id); };
    if (in(c.prompt) + in(c.generated) > 0) {
      if (score > 0) {
        score /= p.repetition_penalty;
      } else {
        score *= p.repetition_penalty;
      }
    }
    score -= p.frequency_penalty * static_cast<double>(in(c.generated));
    if (in(c.generated) > 0) score -= p.presence_penalty;
    for (const LogitBias& b : p.logit_bias)
      if (b.token == id) score += b.bias;
    if (in(c.banned) == 0) scores[id] = score;
  }
  return scores;
}

// Softmax of the scores, most likely first (by `scores`; ties: lowest id).
Tokens NaiveSoftmax(const std::map<TokenId, double>& scores, double temperature) {
  double top = -std::numeric_limits<double>::infinity();
  for (const auto& [id, score] : scores) top = std::max(top, score);
  Tokens tokens;
  double total = 0;
  for (const auto& [id, score] : scores) {
    tokens.push_back({id, std::exp((score - top) / temperature)});
    total += tokens.back().probability;
  }
  for (auto& t : tokens) t.probability /= total;
  std::stable_sort(tokens.begin(), tokens.end(), [&](const auto& a, const auto& b) {
    return scores.at(a.token) > scores.at(b.token);
  });
  return tokens;
}

Tokens DistributionOf(const SamplingParams& p, const Case& c) {
  auto d = SamplingDistribution(p, c.input());
  RC_ASSERT(d.ok());
  return *d;
}

double Mass(const Tokens& tokens, size_t count) {
  double mass = 0;
  for (size_t i = 0; i < count; ++i) mass += tokens[i].probability;
  return mass;
}

void ExpectSame(const Tokens& a, const Tokens& b) {
  RC_ASSERT(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    RC_ASSERT(a[i].token == b[i].token);
    RC_ASSERT(std::abs(a[i].probability - b[i].probability) < 1e-9);
  }
}

RC_GTEST_PROP(SamplerLaws, ScoresAreTheNaiveOnes, ()) {
  const Case c = AnyCase();
  SamplingParams p = AnyParams(static_cast<int>(c.logits.size()));
  p.top_k = 0;
  p.top_p = 1.f;
  p.min_p = 0.f;
  std::map<TokenId, double> want;
  for (const auto& t : NaiveSoftmax(NaiveScores(p, c), p.temperature))
    want[t.token] = t.probability;
  for (const auto& t : DistributionOf(p, c)) {
    RC_ASSERT(want.contains(t.token));
    RC_ASSERT(std::abs(want[t.token] - t.probability) < 1e-9);
    want.erase(t.token);
  }
  // What is left out has no share to speak of.
  for (const auto& [id, probability] : want) RC_ASSERT(probability < 1e-300);
}

RC_GTEST_PROP(SamplerLaws, WithNothingSetItIsSoftmaxInIdOrder, ()) {
  Case c = AnyCase();
  c.banned.clear();
  const SamplingParams p{.temperature = Between(0.5f, 3.f)};
  Tokens expected = NaiveSoftmax(NaiveScores(p, c), p.temperature);
  std::sort(expected.begin(), expected.end(),
            [](const auto& a, const auto& b) { return a.token < b.token; });
  ExpectSame(DistributionOf(p, c), expected);
}

RC_GTEST_PROP(SamplerLaws, NothingFilteredIsSampledAndSharesSumToOne, ()) {
  const Case c = AnyCase();
  const SamplingParams p = AnyParams(static_cast<int>(c.logits.size()));
  const Tokens kept = DistributionOf(p, c);
  RC_ASSERT(!kept.empty());
  RC_ASSERT(std::abs(Mass(kept, kept.size()) - 1) < 1e-9);
  const auto sampled = Sample(p, c.input());
  RC_ASSERT(sampled.ok());
  RC_ASSERT(std::any_of(kept.begin(), kept.end(),
                        [&](const auto& t) { return t.token == sampled->token; }));
  RC_ASSERT(std::count(c.banned.begin(), c.banned.end(), sampled->token) == 0);
}

// Bits for all tokens but the banned ones.
std::vector<uint32_t> AllBut(const std::vector<TokenId>& banned, size_t vocab) {
  std::vector<uint32_t> allowed((vocab + 31) / 32, ~uint32_t{0});
  for (const TokenId id : banned) {
    const auto i = static_cast<uint32_t>(id);
    allowed[i / 32] &= ~(uint32_t{1} << (i % 32));
  }
  return allowed;
}

RC_GTEST_PROP(SamplerLaws, AMaskIsABanOfTheOthersAndLeavesLogprobsAlone, ()) {
  const Case c = AnyCase();
  SamplingParams p = AnyParams(static_cast<int>(c.logits.size()));
  if (Below(4) == 0) p.temperature = 0.f;
  p.logprobs = Below(5);
  SampleInput masked = c.input();
  masked.banned = {};
  const std::vector<uint32_t> allowed = AllBut(c.banned, c.logits.size());
  masked.allowed = allowed;
  const auto one = Sample(p, masked);
  const auto other = Sample(p, c.input());
  RC_ASSERT(one.ok() && other.ok());
  RC_ASSERT(one->token == other->token);
  RC_ASSERT(one->logprob == other->logprob);
  RC_ASSERT(one->top.size() == other->top.size());
  for (size_t i = 0; i < one->top.size(); ++i)
    RC_ASSERT(one->top[i].logprob == other->top[i].logprob);
}

RC_GTEST_PROP(SamplerLaws, TopKOneIsGreedy, ()) {
  const Case c = AnyCase();
  SamplingParams p = AnyParams(static_cast<int>(c.logits.size()));
  p.top_k = 1;
  SamplingParams greedy = p;
  greedy.temperature = 0.f;
  RC_ASSERT(Sample(p, c.input())->token == Sample(greedy, c.input())->token);
  // A temperature at which all weights round to the same does not change the order.
  p.temperature = 1e30f;
  RC_ASSERT(Sample(p, c.input())->token == Sample(greedy, c.input())->token);
}

RC_GTEST_PROP(SamplerLaws, GreedyWithNothingSetIsArgMax, ()) {
  Case c = AnyCase();
  c.banned.clear();
  const TokenId best = Sample({}, c.input())->token;
  for (size_t i = 0; i < c.logits.size(); ++i) {
    const float top = c.logits[static_cast<size_t>(best)];
    const bool ordered = static_cast<TokenId>(i) < best ? c.logits[i] < top : c.logits[i] <= top;
    RC_ASSERT(ordered);
  }
}

RC_GTEST_PROP(SamplerLaws, TopKKeepsThatMany, ()) {
  Case c = AnyCase();
  c.banned.clear();
  const int vocab = static_cast<int>(c.logits.size());
  const SamplingParams p{.temperature = 1.f, .top_k = 1 + Below(vocab + 5)};
  const Tokens all = NaiveSoftmax(NaiveScores(p, c), 1.0);
  const size_t count = std::min(static_cast<size_t>(p.top_k), all.size());
  const Tokens kept = DistributionOf(p, c);
  RC_ASSERT(kept.size() == count);
  if (p.top_k >= vocab) return;  // no filter: in order of ids
  for (size_t i = 0; i < count; ++i) RC_ASSERT(kept[i].token == all[i].token);
}

RC_GTEST_PROP(SamplerLaws, TopPKeepsTheFewestThatHoldTheShare, ()) {
  const Case c = AnyCase();
  SamplingParams p{.temperature = Between(0.3f, 3.f), .top_p = Between(0.001f, 0.999f)};
  if (Below(2) == 0) p.top_k = 1 + Below(static_cast<int>(c.logits.size()));
  Tokens before = NaiveSoftmax(NaiveScores(p, c), p.temperature);
  if (p.top_k > 0) before.resize(std::min(before.size(), static_cast<size_t>(p.top_k)));
  const double total = Mass(before, before.size());
  const Tokens kept = DistributionOf(p, c);
  const double crumb = 1e-9;
  RC_ASSERT(kept.size() <= before.size());
  for (size_t i = 0; i < kept.size(); ++i) RC_ASSERT(kept[i].token == before[i].token);
  RC_ASSERT(Mass(before, kept.size()) / total >= p.top_p - crumb);
  const bool fewest = kept.size() == 1 || Mass(before, kept.size() - 1) / total < p.top_p + crumb;
  RC_ASSERT(fewest);
}

RC_GTEST_PROP(SamplerLaws, MinPKeepsWhatIsLikelyEnoughBesideTheMostLikely, ()) {
  const Case c = AnyCase();
  const SamplingParams p{.temperature = Between(0.3f, 3.f), .min_p = Between(0.001f, 1.f)};
  const Tokens before = NaiveSoftmax(NaiveScores(p, c), p.temperature);
  const Tokens kept = DistributionOf(p, c);
  const double least = static_cast<double>(p.min_p) * before[0].probability;
  for (size_t i = 0; i < kept.size(); ++i) {
    RC_ASSERT(kept[i].token == before[i].token);
    RC_ASSERT(before[i].probability >= least * (1 - 1e-9));
  }
  for (size_t i = kept.size(); i < before.size(); ++i)
    RC_ASSERT(before[i].probability < least * (1 + 1e-9));
}

RC_GTEST_PROP(SamplerLaws, LogprobsAreLogSoftmaxOfTheModelsLogits, ()) {
  const Case c = AnyCase();
  SamplingParams p = AnyParams(static_cast<int>(c.logits.size()));
  p.logprobs = Below(static_cast<int>(c.logits.size()) + 3);
  const auto sampled = Sample(p, c.input());
  RC_ASSERT(sampled.ok());
  Case raw = c;
  raw.banned.clear();
  const Tokens all = NaiveSoftmax(NaiveScores({}, raw), 1.0);
  const size_t count = std::min(static_cast<size_t>(p.logprobs), all.size());
  RC_ASSERT(sampled->top.size() == count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    RC_ASSERT(sampled->top[i].token == all[i].token);
    RC_ASSERT(std::abs(sampled->top[i].logprob - std::log(all[i].probability)) < 1e-9);
    sum += std::exp(sampled->top[i].logprob);
  }
  if (count == all.size()) RC_ASSERT(std::abs(sum - 1) < 1e-9);
  for (const auto& t : all)
    if (t.token == sampled->token)
      RC_ASSERT(std::abs(sampled->logprob - std::log(t.probability)) < 1e-9);
  // Asking changes no draw.
  p.logprobs = -1;
  RC_ASSERT(Sample(p, c.input())->token == sampled->token);
}

RC_GTEST_PROP(SamplerLaws, LogitsThatAreNotFiniteAreAnErrorThatSaysWhere, ()) {
  Case c = AnyCase();
  SamplingParams p = AnyParams(static_cast<int>(c.logits.size()));
  if (Below(2) == 0) p.temperature = 0.f;
  const float inf = std::numeric_limits<float>::infinity();
  const float bad[] = {std::nanf(""), inf, -inf};
  const int at = Below(static_cast<int>(c.logits.size()));
  c.logits[static_cast<size_t>(at)] = bad[Below(3)];
  const Status s = Sample(p, c.input()).status();
  RC_ASSERT(s.code() == StatusCode::kInternal);
  RC_ASSERT(s.detail().where == "token " + std::to_string(at));
  RC_ASSERT(SamplingDistribution(p, c.input()).status().code() == StatusCode::kInternal);
}

// The largest finite values in every place: no overflow makes a share NaN.
TEST(Sampler, ExtremeValuesStayFinite) {
  const float big = std::numeric_limits<float>::max();
  const float tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<float> logits = {-big, big, 0.f, tiny, big};
  const std::vector<TokenId> seen = {1, 0, 1};
  for (const float temperature : {tiny, 1.f, big}) {
    for (const float repetition : {tiny, big}) {
      const SamplingParams p{.temperature = temperature,
                             .top_p = 0.5f,
                             .repetition_penalty = repetition,
                             .logprobs = 5};
      ASSERT_TRUE(CheckSampling(p, 5).ok());
      const SampleInput input{.logits = logits, .prompt = seen, .generated = seen};
      const auto d = SamplingDistribution(p, input);
      ASSERT_TRUE(d.ok());
      for (const auto& t : *d) EXPECT_TRUE(std::isfinite(t.probability) && t.probability > 0);
      const auto sampled = Sample(p, input);
      ASSERT_TRUE(sampled.ok());
      EXPECT_FALSE(std::isnan(sampled->logprob));
    }
  }
}

TEST(Sampler, BanningEveryTokenIsTheRequestsFault) {
  const std::vector<float> logits = {1.f, 2.f};
  const std::vector<TokenId> all = {0, 1};
  for (const float temperature : {0.f, 1.f}) {
    const auto sampled = Sample({.temperature = temperature}, {.logits = logits, .banned = all});
    EXPECT_EQ(sampled.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(Sampler, AMaskThatLeavesNothingIsRefused) {
  const std::vector<float> logits(40, 1.f);
  const std::vector<uint32_t> none = {0, 0};
  const std::vector<uint32_t> one_word = {0};  // ids from 32 on are past its end
  const std::vector<uint32_t> last = {0, 1u << 7};
  const std::vector<TokenId> banned = {39};
  for (const float temperature : {0.f, 1.f}) {
    const SamplingParams p{.temperature = temperature};
    for (const auto* mask : {&none, &one_word}) {
      const auto sampled = Sample(p, {.logits = logits, .allowed = *mask});
      EXPECT_EQ(sampled.status().code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(sampled.status().message(), HasSubstr("outside the grammar"));
    }
    EXPECT_EQ(Sample(p, {.logits = logits, .allowed = last})->token, 39);
    EXPECT_FALSE(Sample(p, {.logits = logits, .banned = banned, .allowed = last}).ok());
  }
}

// Ids of a larger vocabulary (a prompt of special tokens that are never sampled) are of no effect.
TEST(Sampler, IdsPastTheLogitsAreIgnored) {
  const std::vector<float> logits = {1.f, 2.f};
  const std::vector<TokenId> past = {2, 900000};
  const SamplingParams p{.repetition_penalty = 2.f, .presence_penalty = 1.f};
  const auto sampled =
      Sample(p, {.logits = logits, .prompt = past, .generated = past, .banned = past});
  ASSERT_TRUE(sampled.ok());
  EXPECT_EQ(sampled->token, 1);
}

// Pearson's chi-square of 20000 draws against the distribution, for each way of making draws
// differ: the position under one seed, and the seed at one position. With k - 1 degrees of freedom
// the statistic has mean k - 1 and variance 2 (k - 1); six deviations are far beyond chance, and
// the seeds are fixed.
double ChiSquare(const Tokens& expected, const std::map<TokenId, int>& counts, int draws) {
  double sum = 0;
  for (const auto& t : expected) {
    const double want = t.probability * draws;
    const double found = counts.contains(t.token) ? counts.at(t.token) : 0;
    sum += (found - want) * (found - want) / want;
  }
  return sum;
}

TEST(Sampler, DrawsFollowTheDistribution) {
  constexpr int kDraws = 20000;
  const std::vector<float> logits = {0.f, 1.f, 2.f, -1.f, 1.5f, 0.5f, 1.f, -9.f};
  const std::vector<TokenId> zeros(kDraws, 0);
  for (const SamplingParams& base :
       {SamplingParams{.temperature = 1.f, .top_k = 7}, SamplingParams{.temperature = 2.f},
        SamplingParams{.temperature = 0.7f, .top_p = 0.9f},
        SamplingParams{.temperature = 1.3f, .min_p = 0.2f}}) {
    const auto expected = SamplingDistribution(base, {.logits = logits});
    ASSERT_TRUE(expected.ok());
    const double freedom = static_cast<double>(expected->size()) - 1;
    const double limit = freedom + 6 * std::sqrt(2 * freedom);
    for (const uint64_t seed : {0u, 1u, 77u}) {
      std::map<TokenId, int> by_position;
      std::map<TokenId, int> by_seed;
      SamplingParams p = base;
      for (int i = 0; i < kDraws; ++i) {
        const auto position = static_cast<size_t>(i);
        p.seed = seed;
        ++by_position[Sample(p, {.logits = logits, .generated = {zeros.data(), position}})->token];
        p.seed = static_cast<uint64_t>(i);
        ++by_seed[Sample(p, {.logits = logits, .generated = {zeros.data(), seed}})->token];
      }
      EXPECT_LT(ChiSquare(*expected, by_position, kDraws), limit);
      EXPECT_LT(ChiSquare(*expected, by_seed, kDraws), limit);
    }
  }
}

// Neighbouring seeds and positions share nothing: no number comes twice in a square of them, and
// products of neighbours have the mean of independent ones (1/4, deviation sqrt(7)/12 of one).
TEST(Sampler, RandomNumbersOfSeedsAndDrawsAreTheirOwn) {
  std::set<double> numbers;
  double along = 0;
  double across = 0;
  constexpr int kSide = 200;
  for (uint64_t seed = 0; seed < kSide; ++seed) {
    for (uint64_t draw = 0; draw < kSide; ++draw) {
      const double u = UniformOf(seed, draw);
      EXPECT_TRUE(u >= 0 && u < 1);
      EXPECT_TRUE(numbers.insert(u).second) << seed << " " << draw;
      EXPECT_NE(UniformOf(seed + 0x9e3779b97f4a7c15u, draw), UniformOf(seed, draw + 1));
      along += u * UniformOf(seed, draw + 1);
      across += u * UniformOf(seed + 1, draw);
    }
  }
  constexpr double kBound = 6 * 0.2205 / kSide;
  EXPECT_NEAR(along / (kSide * kSide), 0.25, kBound);
  EXPECT_NEAR(across / (kSide * kSide), 0.25, kBound);
}

TEST(Sampler, ParametersOutOfRangeAreNamed) {
  const float nan = std::nanf("");
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& [params, name] : std::vector<std::pair<SamplingParams, const char*>>{
           {{.temperature = -0.1f}, "temperature"},
           {{.temperature = nan}, "temperature"},
           {{.temperature = inf}, "temperature"},
           {{.top_k = -2}, "top_k"},
           {{.top_p = 0.f}, "top_p"},
           {{.top_p = 1.01f}, "top_p"},
           {{.top_p = nan}, "top_p"},
           {{.min_p = -0.1f}, "min_p"},
           {{.min_p = 1.1f}, "min_p"},
           {{.repetition_penalty = 0.f}, "repetition_penalty"},
           {{.repetition_penalty = inf}, "repetition_penalty"},
           {{.presence_penalty = 2.1f}, "presence_penalty"},
           {{.frequency_penalty = -2.1f}, "frequency_penalty"},
           {{.logit_bias = {{7, 0.f}}}, "logit_bias"},
           {{.logit_bias = {{-1, 0.f}}}, "logit_bias"},
           {{.logit_bias = {{1, 100.5f}}}, "logit_bias"},
           {{.logit_bias = {{1, nan}}}, "logit_bias"},
           {{.logprobs = -2}, "logprobs"}}) {
    const Status s = CheckSampling(params, 7);
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(s.message(), HasSubstr(name));
  }
  EXPECT_TRUE(CheckSampling({}, 7).ok());
  EXPECT_TRUE(CheckSampling({.top_k = -1, .logit_bias = {{6, -100.f}, {0, 100.f}}}, 7).ok());
}

}  // namespace
}  // namespace signalbox::sampler_test
