// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic that every module needs and the standard library lacks.
//
//   const int64_t blocks = CeilDiv(rows, int64_t{16});

#pragma once

#include <cstdint>

namespace signalbox {

// How many groups of `size` hold `count` things. count >= 0, size > 0.
constexpr int64_t CeilDiv(int64_t count, int64_t size) {
  return count / size + (count % size != 0 ? 1 : 0);
}

}  // namespace signalbox
