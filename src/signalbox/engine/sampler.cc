// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/sampler.h"

#include <algorithm>
#include <cmath>

namespace signalbox {

TokenId ArgMax(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TokenId Sampler::Sample(std::span<const float> logits) {
  if (params_.temperature <= 0.f) return ArgMax(logits);
  const double top = *std::max_element(logits.begin(), logits.end());
  const auto mass = [&](float logit) {
    return std::exp((static_cast<double>(logit) - top) / params_.temperature);
  };
  double total = 0;
  for (float logit : logits) total += mass(logit);
  // 53 random bits: a double in [0, 1) that does not depend on the standard library's distribution.
  double left = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
  for (size_t i = 0; i < logits.size(); ++i) {
    left -= mass(logits[i]);
    if (left < 0) return static_cast<TokenId>(i);
  }
  return ArgMax(logits);  // rounding left a crumb of the total
}

}  // namespace signalbox
