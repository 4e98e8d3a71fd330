// SPDX-License-Identifier: Apache-2.0
//
// Sampling: from logits to a token. Values in, values out: nothing is remembered between draws, and
// draw n of a request takes its random number from (seed, n) alone. So a request's tokens depend on
// its own logits and parameters, never on its batch mates, and a draw can be repeated.
//
// The order, each on the result of the one before:
//   1. repetition_penalty r: logits above 0 are divided by r, others multiplied, for tokens in the
//      prompt or among the generated; then frequency_penalty times the number of times generated
//      and presence_penalty for any generated token are subtracted
//   2. logit_bias is added
//   3. banned tokens go (stop ids before the least number of tokens), and all that are not among
//      the allowed ones where a grammar says which are
//   4. temperature 0: the largest (ties: lowest id), and nothing below matters
//   5. temperature divides; softmax
//   6. top_k: the k most likely, exactly k (ties: lowest id)
//   7. top_p: the fewest most likely that hold at least the share p of what 6 left
//   8. min_p: those at least min_p times as likely as the most likely
// Penalties, then bias, then the filters from 6 to 8, are in SGLang's order. vLLM adds the bias
// before the penalties and applies min_p before the other filters: with neutral values for either
// side there is no difference. Log-probabilities are of the model's own logits, before step 1, as
// vLLM's are by default.
//
// Errors: kInvalidArgument for parameters out of range, or where no token is left after step 3;
// kInternal for a logit that is NaN or infinite.
//
//   SB_RETURN_IF_ERROR(CheckSampling(params, vocab));
//   SB_ASSIGN_OR_RETURN(SampledToken next, Sample(params, {.logits = row, .generated = so_far}));
//   so_far.push_back(next.token);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"

namespace signalbox {

struct LogitBias {
  TokenId token;
  float bias;  // in [-100, 100]
};

// The defaults change nothing.
struct SamplingParams {
  float temperature = 0.f;  // >= 0
  uint64_t seed = 0;
  int64_t top_k = 0;                  // -1 or 0: all
  float top_p = 1.f;                  // in (0, 1]
  float min_p = 0.f;                  // in [0, 1]
  float repetition_penalty = 1.f;     // > 0
  float presence_penalty = 0.f;       // in [-2, 2]
  float frequency_penalty = 0.f;      // in [-2, 2]
  std::vector<LogitBias> logit_bias;  // of one token twice: the sum
  // Tokens to report log-probabilities of, beside the chosen one's; -1: not even that one's.
  int64_t logprobs = -1;
};

// Whether the parameters are in range; `vocab` bounds the ids of logit_bias.
Status CheckSampling(const SamplingParams& params, int64_t vocab);

// What one draw looks at.
struct SampleInput {
  std::span<const float> logits;  // [vocab], not empty
  std::span<const TokenId> prompt = {};
  std::span<const TokenId> generated = {};  // their number is the number of the draw
  std::span<const TokenId> banned = {};     // never chosen; ids past the logits are of no effect
  // A bit for each id, id i being bit i % 32 of word i / 32; ids past the end are not allowed.
  // Empty: all are. What a TokenConstraint fills.
  std::span<const uint32_t> allowed = {};
};

struct TokenLogprob {
  TokenId token = 0;
  double logprob = 0;  // natural logarithm
};

struct SampledToken {
  TokenId token = 0;
  double logprob = 0;             // of `token`; 0 where params.logprobs is -1
  std::vector<TokenLogprob> top;  // the params.logprobs most likely (ties: lowest id)
};

// REQUIRES: CheckSampling(params, logits.size()) is OK; `prompt` and `generated` are ids.
Result<SampledToken> Sample(const SamplingParams& params, const SampleInput& input);

// The log-probability of a token that somebody else chose, with so many of the most likely.
// REQUIRES: logits are finite, `token` is one of them.
SampledToken LogprobOf(std::span<const float> logits, TokenId token, int64_t top);

struct TokenProbability {
  TokenId token = 0;
  double probability = 0;
};

// What Sample draws from: every token that is left, most likely first (by id where no filter is
// on). Probabilities sum to one. REQUIRES: as Sample.
Result<std::vector<TokenProbability>> SamplingDistribution(const SamplingParams& params,
                                                           const SampleInput& input);

// Uniform in [0, 1), the same on every machine.
double UniformOf(uint64_t seed, uint64_t draw);

// The largest; ties: lowest id. REQUIRES: not empty.
TokenId ArgMax(std::span<const float> logits);

}  // namespace signalbox
