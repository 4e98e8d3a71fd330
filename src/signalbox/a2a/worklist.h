// SPDX-License-Identifier: Apache-2.0
//
// WorkList: which received row each local expert must compute, for any contract. It reads only what
// the contract promises (counts, ids in the contract's spelling, weights as delivered), so it is
// the reference for every remap, mask, sanitise, permute and weighting epilogue.
//
//   SB_ASSIGN_OR_RETURN(WorkList list, BuildWorkList(contract, shape, rank, delivered));
//   // gather rows list.rows, run the experts over list.offsets, giving y [items, hidden]
//   ScatterResults(contract, shape, list, y, expert_out);
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "signalbox/a2a/exchange.h"

namespace signalbox {

struct WorkList {
  std::vector<int64_t> offsets;  // [slots + 1]; items of local expert e: offsets[e] .. offsets[e+1]
  std::vector<int64_t> rows;     // [items] row of Delivered
  std::vector<float> weights;    // [items] what the expert side multiplies by: 1 where the library
                                 // weights
  std::vector<int64_t> valid;    // rows that combine will read, ascending
};

// Internal when a row that counts as valid holds an id of no slot: unwritten memory was read.
// `rank` is the position in the exchange's group.
Result<WorkList> BuildWorkList(const Contract& contract, const ExchangeShape& shape, int rank,
                               const Delivered& delivered);

// Writes what combine expects into expert_out [capacity, hidden] from y [items, hidden], the
// experts' unweighted results: weighted sums over the local experts of a row where the caller
// weights. Rows that are not valid stay as they are.
void ScatterResults(const Contract& contract, const ExchangeShape& shape, const WorkList& list,
                    std::span<const float> y, std::span<float> expert_out);

// Runs the local experts over rows grouped by expert: y[i] = expert(x[i]), unweighted, rows
// offsets[e] .. offsets[e+1] for local expert e. x and y [offsets.back(), hidden].
using ExpertFn = std::function<Status(std::span<const float> x, std::span<const int64_t> offsets,
                                      std::span<float> y)>;

// All of it: list, gather, `experts`, scatter. expert_out [capacity, hidden].
Status RunExperts(const Contract& contract, const ExchangeShape& shape, int rank,
                  const Delivered& delivered, const ExpertFn& experts, std::span<float> expert_out);

}  // namespace signalbox
