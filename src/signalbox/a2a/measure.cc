// SPDX-License-Identifier: Apache-2.0
#include "signalbox/a2a/measure.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>

namespace signalbox {
namespace {

using Clock = std::chrono::steady_clock;

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size()) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Result<ExchangeTiming> MeasureExchange(Transport& transport, const MeasureOptions& options) {
  const ExchangeShape& shape = transport.shape();
  std::mt19937 random(
      static_cast<uint32_t>(options.seed + static_cast<uint64_t>(transport.position())));
  const std::vector<float> x(options.tokens * shape.hidden, 1.f);
  std::vector<float> out(x.size());
  std::vector<int32_t> slots(shape.total_slots());
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < options.tokens; ++t) {
    for (int k = 0; k < shape.top_k; ++k) {
      std::swap(slots[k], slots[k + random() % (slots.size() - k)]);
      ids.push_back(slots[k]);
    }
  }
  const std::vector<float> weights(ids.size(), 1.f / static_cast<float>(shape.top_k));
  const Routing own{.ids = ids, .weights = weights};

  ExchangeTiming timing;
  std::vector<double> dispatch, combine, copy;
  std::vector<float> expert_out;
  for (int i = 0; i <= options.repeats; ++i) {  // the first one warms up
    const auto start = Clock::now();
    SB_ASSIGN_OR_RETURN(const Dispatched got, transport.Dispatch(x, own));
    const double dispatched = MicrosecondsSince(start);
    expert_out.resize(got.rows().rows.size());
    const auto middle = Clock::now();
    SB_ASSIGN_OR_RETURN(const CombineReport report, transport.Combine(expert_out, got, own, out));
    const double combined = MicrosecondsSince(middle);
    timing.dispatched = got.traffic();
    timing.combined = report.traffic;

    const int64_t bytes = got.traffic().PayloadBytes() + report.traffic.PayloadBytes();
    std::vector<char> from(bytes), to(bytes);
    const auto copy_start = Clock::now();
    std::memcpy(to.data(), from.data(), bytes);
    const double copied = MicrosecondsSince(copy_start);
    if (i == 0) continue;
    dispatch.push_back(dispatched);
    combine.push_back(combined);
    copy.push_back(copied);
  }
  if (dispatch.empty()) return timing;
  timing.dispatch_us = Median(dispatch);
  timing.combine_us = Median(combine);
  timing.copy_us = Median(copy);
  return timing;
}

}  // namespace signalbox
