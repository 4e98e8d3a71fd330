// SPDX-License-Identifier: Apache-2.0
//
// Where the blocks of a call lie and how blocks are summed: the arithmetic that all transports
// share, so that they agree to the last bit.
//
//   SumAscending({a, b, c}, n, out);        // out[i] = (a[i] + b[i]) + c[i]
//   PartBegin(n, members, m);               // first element that member m reduces
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>

#include "signalbox/comm/communicator.h"

namespace signalbox {

// All-reduces up to this size read every member's whole buffer: one wait less than a
// reduce-scatter and all-gather, which move fewer bytes.
inline constexpr int64_t kDirectBytes = 16'384;

// out[i] <- ((terms[0][i] + terms[1][i]) + terms[2][i]) + ...  `out` may be one of the terms.
void SumAscending(std::span<const float* const> terms, int64_t n, float* out);

// Member `m` of `members` reduces elements [PartBegin(m), PartBegin(m + 1)) of n; parts begin at
// cache lines of the buffer, so that members do not write to the same one.
inline int64_t PartBegin(int64_t n, int64_t members, int64_t m) {
  constexpr int64_t kLine = 16;
  const int64_t lines = (n + kLine - 1) / kLine;
  return std::min(n, lines * m / members * kLine);
}

inline bool IsSum(OpKind kind) {
  return kind == OpKind::kAllReduceSum || kind == OpKind::kReduceScatterSum;
}

// Whether `send` holds one block per member; otherwise all members are given the same bytes.
inline bool EachItsOwn(OpKind kind) {
  return kind == OpKind::kAllToAll || kind == OpKind::kReduceScatterSum;
}

// The first byte of block `m` when blocks lie one after another.
inline int64_t BlockBegin(std::span<const int64_t> bytes, int m) {
  return std::accumulate(bytes.begin(), bytes.begin() + m, int64_t{0});
}

// The first byte of what `op` sends to member `m`.
inline const std::byte* BlockFor(const Collective& op, int m) {
  return EachItsOwn(op.tag.kind) ? op.send + BlockBegin(op.tag.give, m) : op.send;
}

}  // namespace signalbox
