// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/expert_load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include <nlohmann/json.hpp>

namespace signalbox {
namespace {

using Table = std::vector<std::vector<int64_t>>;  // [layer][expert or rank]

Table Minus(Table now, const Table& before) {
  for (size_t l = 0; l < now.size() && l < before.size(); ++l) {
    for (size_t i = 0; i < now[l].size(); ++i) now[l][i] -= before[l][i];
  }
  return now;
}

double AtQuantile(const std::vector<double>& ascending, double quantile) {
  if (ascending.empty()) return 0;
  const auto rank =
      static_cast<size_t>(std::ceil(quantile * static_cast<double>(ascending.size())));
  return ascending[std::max<size_t>(rank, 1) - 1];
}

std::vector<double> Imbalances(const ExpertLoad& load) {
  std::vector<double> of_layers;
  for (const auto& ranks : load.ranks) of_layers.push_back(Imbalance(ranks));
  return of_layers;
}

double LargestShare(const std::vector<int64_t>& pairs) {
  const int64_t sum = std::accumulate(pairs.begin(), pairs.end(), int64_t{0});
  if (sum == 0) return 0;
  return static_cast<double>(*std::max_element(pairs.begin(), pairs.end())) /
         static_cast<double>(sum);
}

void AppendCsv(const ExpertLoad& load, const Table& table, std::string_view of, std::string* out) {
  for (size_t l = 0; l < table.size(); ++l) {
    for (size_t i = 0; i < table[l].size(); ++i) {
      fmt::format_to(std::back_inserter(*out), "{},{},{},{}\n", load.layers[l], of, i, table[l][i]);
    }
  }
}

}  // namespace

ExpertLoad Difference(const ExpertLoad& now, const ExpertLoad& before) {
  return {.layers = now.layers,
          .experts = Minus(now.experts, before.experts),
          .ranks = Minus(now.ranks, before.ranks)};
}

ExpertBalance BalanceOf(const ExpertLoad& load) {
  std::vector<double> of_layers = Imbalances(load);
  std::sort(of_layers.begin(), of_layers.end());
  ExpertBalance balance{.imbalance_p50 = AtQuantile(of_layers, 0.5),
                        .imbalance_p95 = AtQuantile(of_layers, 0.95),
                        .imbalance_max = AtQuantile(of_layers, 1)};
  for (const auto& experts : load.experts)
    balance.hot_expert_share = std::max(balance.hot_expert_share, LargestShare(experts));
  return balance;
}

std::string ExpertLoadJson(const ExpertLoadWindow& window) {
  return nlohmann::json{{"window_seconds", window.seconds},
                        {"layers", window.load.layers},
                        {"experts", window.load.experts},
                        {"ranks", window.load.ranks},
                        {"imbalance", Imbalances(window.load)}}
      .dump();
}

std::string ExpertLoadCsv(const ExpertLoadWindow& window) {
  std::string csv = "layer,of,index,pairs\n";
  AppendCsv(window.load, window.load.experts, "expert", &csv);
  AppendCsv(window.load, window.load.ranks, "rank", &csv);
  return csv;
}

}  // namespace signalbox
