// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

constexpr double kGone = -std::numeric_limits<double>::infinity();

struct Range {
  const char* name;
  float SamplingParams::*field;
  float least;
  float most;
  bool above;  // `least` itself is out
  const char* expected;
};

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr Range kRanges[] = {
    {"temperature", &SamplingParams::temperature, 0, kLargest, false, "a number of at least 0"},
    {"top_p", &SamplingParams::top_p, 0, 1, true, "above 0 and at most 1; 1 keeps all"},
    {"min_p", &SamplingParams::min_p, 0, 1, false, "from 0 to 1; 0 keeps all"},
    {"repetition_penalty", &SamplingParams::repetition_penalty, 0, kLargest, true,
     "above 0; 1 changes nothing"},
    {"presence_penalty", &SamplingParams::presence_penalty, -2, 2, false, "from -2 to 2"},
    {"frequency_penalty", &SamplingParams::frequency_penalty, -2, 2, false, "from -2 to 2"},
};

Status OutOfRange(const char* name, std::string found, std::string expected) {
  return InvalidArgument({.what = "sampling parameter out of range",
                          .where = name,
                          .found = std::move(found),
                          .expected = std::move(expected)});
}

Status CheckLogits(std::span<const float> logits) {
  const auto bad =
      std::find_if(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); });
  if (bad == logits.end()) return OkStatus();
  return Internal({.what = "logits are not finite",
                   .where = fmt::format("token {}", bad - logits.begin()),
                   .found = fmt::format("{}", *bad),
                   .remedy = "verify MODEL compares the layers with one rank"});
}

Status NothingLeft() {
  return InvalidArgument({.what = "no token may be chosen",
                          .where = "sampling",
                          .found = "every token is banned, or outside the grammar",
                          .remedy = "name fewer stop ids, or ask for no least number of tokens"});
}

void AddPenalties(const SamplingParams& params, const SampleInput& input,
                  std::vector<double>& scores) {
  const bool repetition = params.repetition_penalty != 1.f;
  if (!repetition && params.presence_penalty == 0.f && params.frequency_penalty == 0.f) return;
  std::vector<int32_t> prompt(scores.size());  // how often each token occurs
  std::vector<int32_t> generated(scores.size());
  const auto count = [](std::span<const TokenId> ids, std::vector<int32_t>& counts) {
    for (const TokenId id : ids)
      if (static_cast<size_t>(id) < counts.size()) ++counts[static_cast<size_t>(id)];
  };
  count(input.prompt, prompt);
  count(input.generated, generated);
  for (size_t i = 0; i < scores.size(); ++i) {
    if (repetition && prompt[i] + generated[i] > 0) {
      const double r = params.repetition_penalty;
      scores[i] = scores[i] > 0 ? scores[i] / r : scores[i] * r;
    }
    if (generated[i] > 0) {
      scores[i] -=
          params.presence_penalty + static_cast<double>(params.frequency_penalty) * generated[i];
    }
  }
}

// Logits after penalties, bias and bans: [vocab]; what is banned has kGone.
std::vector<double> Scores(const SamplingParams& params, const SampleInput& input) {
  std::vector<double> scores(input.logits.begin(), input.logits.end());
  AddPenalties(params, input, scores);
  for (const LogitBias& b : params.logit_bias) scores[static_cast<size_t>(b.token)] += b.bias;
  for (const TokenId id : input.banned)
    if (static_cast<size_t>(id) < scores.size()) scores[static_cast<size_t>(id)] = kGone;
  if (input.allowed.empty()) return scores;
  for (size_t i = 0; i < scores.size(); ++i) {
    const bool allowed =
        i / 32 < input.allowed.size() && (input.allowed[i / 32] >> i % 32 & 1) != 0;
    if (!allowed) scores[i] = kGone;
  }
  return scores;
}

bool ScoresAreLogits(const SamplingParams& params, const SampleInput& input) {
  return params.repetition_penalty == 1.f && params.presence_penalty == 0.f &&
         params.frequency_penalty == 0.f && params.logit_bias.empty() && input.banned.empty() &&
         input.allowed.empty();
}

// Sorts `ids` so that ids[0, count) are the ones with the largest values, in order; ids[0, sorted)
// are so already.
template <typename T>
void SortFront(std::span<const T> values, size_t sorted, size_t count, std::vector<TokenId>& ids) {
  const auto at = [&](TokenId id) { return values[static_cast<size_t>(id)]; };
  std::partial_sort(ids.begin() + static_cast<int64_t>(sorted),
                    ids.begin() + static_cast<int64_t>(count), ids.end(),
                    [&](TokenId a, TokenId b) { return at(a) != at(b) ? at(a) > at(b) : a < b; });
}

std::vector<TokenId> AllIds(size_t vocab) {
  std::vector<TokenId> ids(vocab);
  std::iota(ids.begin(), ids.end(), TokenId{0});
  return ids;
}

// The tokens that the filters leave, most likely first. `weights` are relative to the largest
// score's, so the first of all has 1.
std::vector<TokenProbability> Filter(const SamplingParams& params, std::span<const double> scores,
                                     std::span<const double> weights) {
  const size_t vocab = scores.size();
  std::vector<TokenId> ids = AllIds(vocab);
  size_t keep = vocab;
  size_t sorted = 0;
  double total = 0;
  if (params.top_k > 0 && params.top_k < static_cast<int64_t>(vocab)) {
    keep = sorted = static_cast<size_t>(params.top_k);
    SortFront(scores, 0, keep, ids);
  }
  for (size_t i = 0; i < keep; ++i) total += weights[static_cast<size_t>(ids[i])];
  std::vector<TokenProbability> kept;
  double mass = 0;
  for (size_t i = 0; i < keep; ++i) {
    // Few tokens are kept as a rule: the order is made as far as it is looked at.
    if (i == sorted) {
      const size_t end = std::min(keep, std::max<size_t>(64, 4 * sorted));
      SortFront(scores, sorted, end, ids);
      sorted = end;
    }
    const double weight = weights[static_cast<size_t>(ids[i])];
    const bool enough = params.top_p < 1.f && mass >= params.top_p * total;
    if (weight == 0 || weight < params.min_p || enough) break;
    kept.push_back({ids[i], weight});
    mass += weight;
  }
  return kept;
}

std::vector<TokenProbability> Normalised(std::vector<TokenProbability> tokens) {
  double total = 0;
  for (const TokenProbability& t : tokens) total += t.probability;
  for (TokenProbability& t : tokens) t.probability /= total;
  return tokens;
}

Result<std::vector<TokenProbability>> DistributionOf(const SamplingParams& params,
                                                     const std::vector<double>& scores) {
  const auto best = std::max_element(scores.begin(), scores.end());
  if (*best == kGone) return NothingLeft();
  if (params.temperature == 0.f) {
    return std::vector<TokenProbability>{{static_cast<TokenId>(best - scores.begin()), 1.0}};
  }
  std::vector<double> weights(scores.size());
  std::transform(scores.begin(), scores.end(), weights.begin(),
                 [&](double s) { return std::exp((s - *best) / params.temperature); });
  if (params.top_k > 0 || params.top_p < 1.f || params.min_p > 0.f) {
    return Normalised(Filter(params, scores, weights));
  }
  std::vector<TokenProbability> all;
  all.reserve(weights.size());
  for (size_t i = 0; i < weights.size(); ++i)
    if (weights[i] > 0) all.push_back({static_cast<TokenId>(i), weights[i]});
  return Normalised(std::move(all));
}

// Log-softmax of the logits, of the token and of the most likely ones.
void AddLogprobs(int64_t count, std::span<const float> logits, SampledToken& sampled) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(logit - top);
  const double log_total = top + std::log(total);
  const auto logprob = [&](TokenId id) { return logits[static_cast<size_t>(id)] - log_total; };
  sampled.logprob = logprob(sampled.token);
  const size_t n = std::min(static_cast<size_t>(count), logits.size());
  if (n == 0) return;
  std::vector<TokenId> ids = AllIds(logits.size());
  SortFront(logits, 0, n, ids);
  for (size_t i = 0; i < n; ++i) sampled.top.push_back({ids[i], logprob(ids[i])});
}

// One round of SplitMix64's finaliser.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

Status CheckSampling(const SamplingParams& params, int64_t vocab) {
  for (const Range& r : kRanges) {
    const float value = params.*r.field;
    // Written so that NaN fails.
    const bool in = (r.above ? value > r.least : value >= r.least) && value <= r.most;
    if (!in) return OutOfRange(r.name, fmt::format("{}", value), r.expected);
  }
  if (params.top_k < -1) {
    return OutOfRange("top_k", fmt::format("{}", params.top_k),
                      "a whole number of at least 1, or -1 or 0 for all");
  }
  if (params.logprobs < -1) {
    return OutOfRange("logprobs", fmt::format("{}", params.logprobs),
                      "a whole number of at least 0, or -1 for none");
  }
  for (const LogitBias& b : params.logit_bias) {
    if (b.token < 0 || b.token >= vocab) {
      return OutOfRange("logit_bias", fmt::format("token {}", b.token),
                        fmt::format("a token id below {}", vocab));
    }
    if (!(b.bias >= -100.f && b.bias <= 100.f)) {
      return OutOfRange("logit_bias", fmt::format("{} for token {}", b.bias, b.token),
                        "from -100 to 100");
    }
  }
  return OkStatus();
}

Result<SampledToken> Sample(const SamplingParams& params, const SampleInput& input) {
  SB_CHECK(!input.logits.empty());
  SB_RETURN_IF_ERROR(CheckLogits(input.logits));
  SampledToken sampled;
  if (params.temperature == 0.f && ScoresAreLogits(params, input)) {
    sampled.token = ArgMax(input.logits);
  } else {
    SB_ASSIGN_OR_RETURN(const auto tokens, DistributionOf(params, Scores(params, input)));
    double left = UniformOf(params.seed, input.generated.size());
    sampled.token = tokens.back().token;  // where rounding leaves a crumb of the total
    for (const TokenProbability& t : tokens) {
      left -= t.probability;
      if (left >= 0) continue;
      sampled.token = t.token;
      break;
    }
  }
  if (params.logprobs >= 0) AddLogprobs(params.logprobs, input.logits, sampled);
  return sampled;
}

SampledToken LogprobOf(std::span<const float> logits, TokenId token, int64_t top) {
  SampledToken chosen{.token = token};
  AddLogprobs(top, logits, chosen);
  return chosen;
}

Result<std::vector<TokenProbability>> SamplingDistribution(const SamplingParams& params,
                                                           const SampleInput& input) {
  SB_CHECK(!input.logits.empty());
  SB_RETURN_IF_ERROR(CheckLogits(input.logits));
  return DistributionOf(params, Scores(params, input));
}

double UniformOf(uint64_t seed, uint64_t draw) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
  // The seed is mixed first, so that no seed's draws are another one's, shifted.
  return static_cast<double>(Mix(Mix(seed + kStep) + (draw + 1) * kStep) >> 11) * 0x1p-53;
}

TokenId ArgMax(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace signalbox
