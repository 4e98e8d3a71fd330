// SPDX-License-Identifier: Apache-2.0
//
// The table of all metrics: name, type, help, labels, the names that other engines have for it, and
// how its values are found. The text that is scraped and docs/metrics.md are made of it.
//
//   std::string text = MetricsText({.options = options, .stats = stats, .counts = counts, ...});
#pragma once

#include <chrono>
#include <string>

#include "signalbox/server/metrics.h"

namespace signalbox {

inline constexpr std::chrono::seconds kRateWindow{10};
inline constexpr std::chrono::seconds kExpertWindow{60};

// All that values are found in.
struct MetricsSnapshot {
  const MetricsOptions& options;
  const ServiceStats& stats;
  const MetricsCounts& counts;
  const MetricsRates& rates;
  ExpertBalance balance;  // of the last minute
};
std::string MetricsText(const MetricsSnapshot& snapshot);

}  // namespace signalbox
