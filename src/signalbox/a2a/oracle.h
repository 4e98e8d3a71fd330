// SPDX-License-Identifier: Apache-2.0
//
// Oracle: what a contract says each rank must receive and get back, computed by one thread from all
// ranks' inputs with plain loops and no communication. The transport is tested against it.
//
// Row orders that depend on arrival come out in the order of sender, token and lane inside each
// group whose members may be permuted; CanonicalOrder() brings another result into the same order.
//
//   SB_ASSIGN_OR_RETURN(std::vector<Delivered> got, OracleDispatch(contract, shape, inputs));
//   // ... experts write outputs[r], [got[r].capacity, hidden] ...
//   SB_ASSIGN_OR_RETURN(auto back, OracleCombine(contract, shape, inputs, got, outputs));
#pragma once

#include <vector>

#include "signalbox/a2a/exchange.h"

namespace signalbox {

// One rank's tokens.
struct RankInput {
  std::vector<float> x;        // [tokens, hidden]
  std::vector<int32_t> ids;    // [tokens, top_k]
  std::vector<float> weights;  // [tokens, top_k]

  Routing routing() const { return {.ids = ids, .weights = weights}; }
};

struct Combined {
  std::vector<float> out;           // [tokens, hidden]
  std::vector<float> weights_back;  // [tokens, top_k]; empty when the contract returns none
};

// One entry per rank. The first rank's error of CheckInput, and ResourceExhausted where a receive
// budget is exceeded on a device that stops.
Result<std::vector<Delivered>> OracleDispatch(const Contract& contract, const ExchangeShape& shape,
                                              const std::vector<RankInput>& inputs);

// `outputs` holds the expert side's results in the rows of `delivered`, weighted or not as the
// contract says; rows without an origin are not read.
std::vector<Combined> OracleCombine(const Contract& contract, const ExchangeShape& shape,
                                    const std::vector<RankInput>& inputs,
                                    const std::vector<Delivered>& delivered,
                                    const std::vector<std::vector<float>>& outputs);

// `delivered` with the rows of every group that the contract lets permute sorted by sender, token
// and lane. Internal when rows that must lie together do not.
Result<Delivered> CanonicalOrder(const Contract& contract, const ExchangeShape& shape,
                                 const Delivered& delivered);

}  // namespace signalbox
