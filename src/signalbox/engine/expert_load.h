// SPDX-License-Identifier: Apache-2.0
//
// ExpertLoad: how many (token, expert) pairs went where, since the model was loaded. Counted where
// experts are computed, rows that only pad a step excluded.
//
//   SB_ASSIGN_OR_RETURN(const ExpertLoad load, engine->ExpertLoadSoFar());
//   fmt::print("layer {}: imbalance {:.2f}\n", load.layers[0], Imbalance(load.ranks[0]));
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace signalbox {

struct ExpertLoad {
  std::vector<int32_t> layers;                // that have experts, ascending
  std::vector<std::vector<int64_t>> experts;  // [layer][logical expert]: pairs
  std::vector<std::vector<int64_t>> ranks;    // [layer][rank]: pairs computed there
};

// max/mean - 1 over what is given; 0 when it is all zero or empty.
double Imbalance(std::span<const int64_t> pairs);

}  // namespace signalbox
