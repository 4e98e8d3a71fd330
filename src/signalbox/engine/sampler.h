// SPDX-License-Identifier: Apache-2.0
//
// Sampler: from logits to a token. Temperature 0 is greedy (ties: lowest id); otherwise softmax
// sampling from the request's own seeded generator, so a request's draws do not depend on its batch
// mates.
//
//   Sampler sampler({.temperature = 0.7f, .seed = 1});
//   TokenId next = sampler.Sample(logits);   // logits [vocab]
#pragma once

#include <cstdint>
#include <random>
#include <span>

#include "signalbox/base/ids.h"

namespace signalbox {

struct SamplingParams {
  float temperature = 0.f;  // >= 0
  uint64_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const SamplingParams& params) : params_(params), random_(params.seed) {}
  // REQUIRES: logits not empty.
  TokenId Sample(std::span<const float> logits);

 private:
  SamplingParams params_;
  std::mt19937_64 random_;
};

TokenId ArgMax(std::span<const float> logits);

}  // namespace signalbox
