// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/expert_load.h"

#include <algorithm>
#include <numeric>

namespace signalbox {

double Imbalance(std::span<const int64_t> pairs) {
  const int64_t sum = std::accumulate(pairs.begin(), pairs.end(), int64_t{0});
  if (sum == 0) return 0;
  const double mean = static_cast<double>(sum) / static_cast<double>(pairs.size());
  return static_cast<double>(*std::max_element(pairs.begin(), pairs.end())) / mean - 1;
}

}  // namespace signalbox
