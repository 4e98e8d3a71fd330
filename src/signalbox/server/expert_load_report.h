// SPDX-License-Identifier: Apache-2.0
//
// What is said of ExpertLoad: how even a window of it was, and all of it as JSON or CSV.
//
//   const ExpertLoad window = Difference(*stats.experts, before);
//   BalanceOf(window).imbalance_p95;            // a few numbers, for metrics
//   ExpertLoadJson({.seconds = 60, .load = window});   // every number, for /expert_load
#pragma once

#include <string>

#include "signalbox/engine/expert_load.h"

namespace signalbox {

// What was counted in so many seconds.
struct ExpertLoadWindow {
  double seconds = 0;
  ExpertLoad load;
};

// `now` less what had been counted before; `before` may have no layers.
ExpertLoad Difference(const ExpertLoad& now, const ExpertLoad& before);

// Over layers, each counted alike: Imbalance() of its ranks at the median, at the 95th percentile
// (nearest rank) and at the worst; and the largest share of a layer's pairs that one expert got.
// All 0 where nothing was counted.
struct ExpertBalance {
  double imbalance_p50 = 0;
  double imbalance_p95 = 0;
  double imbalance_max = 0;
  double hot_expert_share = 0;
};
ExpertBalance BalanceOf(const ExpertLoad& load);

// {"window_seconds": 60, "layers": [3, 4], "experts": [[...], [...]], "ranks": [[...], [...]],
//  "imbalance": [0.12, 0.4]}, one row a layer.
std::string ExpertLoadJson(const ExpertLoadWindow& window);
// "layer,of,index,pairs", `of` being expert or rank; one line a number.
std::string ExpertLoadCsv(const ExpertLoadWindow& window);

}  // namespace signalbox
