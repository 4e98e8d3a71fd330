// SPDX-License-Identifier: Apache-2.0
#include "signalbox/comm/blocks.h"

#include <algorithm>

namespace signalbox {

void SumAscending(std::span<const float* const> terms, int64_t n, float* out) {
  constexpr int64_t kBlock = 64;  // a known trip count lets the compiler keep the sums in registers
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    float sum[kBlock];
    std::copy_n(terms[0] + i, kBlock, sum);
    for (const float* term : terms.subspan(1)) {
      for (int64_t j = 0; j < kBlock; ++j) sum[j] += term[i + j];
    }
    std::copy_n(sum, kBlock, out + i);
  }
  for (; i < n; ++i) {
    float sum = terms[0][i];
    for (const float* term : terms.subspan(1)) sum += term[i];
    out[i] = sum;
  }
}

}  // namespace signalbox
