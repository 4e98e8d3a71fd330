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

// Routing of `tokens` tokens: distinct experts, uniform.
std::vector<int32_t> UniformIds(const ExchangeShape& shape, int64_t tokens, uint64_t seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::vector<int32_t> slots(shape.total_slots());
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int k = 0; k < shape.top_k; ++k) {
      std::swap(slots[k], slots[k + random() % (slots.size() - k)]);
      ids.push_back(slots[k]);
    }
  }
  return ids;
}

struct Stopwatch {
  std::vector<double> dispatch, combine, copy;
};

double CopyMicroseconds(const std::vector<float>& from, std::vector<float>& to) {
  const auto start = Clock::now();
  std::memcpy(to.data(), from.data(), from.size() * sizeof(float));
  return MicrosecondsSince(start);
}

Status ExchangeOnce(Transport& transport, std::span<const float> x, const Routing& own,
                    std::vector<float>& expert_out, std::span<float> out, ExchangeTiming& timing,
                    Stopwatch& watch) {
  const auto start = Clock::now();
  SB_ASSIGN_OR_RETURN(const Dispatched got, transport.Dispatch(x, own));
  watch.dispatch.push_back(MicrosecondsSince(start));
  expert_out.resize(got.rows().rows.size());
  const auto middle = Clock::now();
  SB_ASSIGN_OR_RETURN(const CombineReport report, transport.Combine(expert_out, got, own, out));
  watch.combine.push_back(MicrosecondsSince(middle));
  timing.dispatched = got.traffic();
  timing.combined = report.traffic;
  return OkStatus();
}

Status FusedOnce(Transport& transport, std::span<const float> x, const Routing& own,
                 std::span<float> out, ExchangeTiming& timing, Stopwatch& watch) {
  const ExpertFn copy = [](std::span<const float> rows, std::span<const int64_t>,
                           std::span<float> y) {
    std::ranges::copy(rows, y.begin());
    return OkStatus();
  };
  const auto start = Clock::now();
  SB_ASSIGN_OR_RETURN(timing.dispatched, transport.FusedLayer(x, own, copy, out));
  watch.dispatch.push_back(MicrosecondsSince(start));
  watch.combine.push_back(0);
  return OkStatus();
}

}  // namespace

RoutedRows CountRoutedRows(const Contract& contract, const ExchangeShape& shape, int position,
                           std::span<const int32_t> ids) {
  const bool one_per_rank = contract.dedup_wire;
  const bool back_per_rank = contract.weighting != Weighting::kLibraryAtSource;
  RoutedRows rows;
  std::vector<int64_t> experts(shape.ranks);  // of the token, by rank
  for (size_t first = 0; first < ids.size(); first += shape.top_k) {
    std::ranges::fill(experts, 0);
    for (int32_t id : ids.subspan(first, shape.top_k)) {
      if (id >= 0) ++experts[id / shape.slots];
    }
    for (int r = 0; r < shape.ranks; ++r) {
      const int64_t once = experts[r] > 0 ? 1 : 0;
      const int64_t sent = one_per_rank ? once : experts[r];
      const int64_t back = back_per_rank ? once : experts[r];
      rows.sent += sent;
      rows.back += back;
      if (r == position) continue;
      rows.sent_away += sent;
      rows.back_away += back;
    }
  }
  return rows;
}

Result<ExchangeTiming> MeasureExchange(Transport& transport, const MeasureOptions& options) {
  const ExchangeShape& shape = transport.shape();
  const std::vector<int32_t> ids =
      UniformIds(shape, options.tokens, options.seed + static_cast<uint64_t>(transport.position()));
  const std::vector<float> x(options.tokens * shape.hidden, 1.f);  // [tokens, hidden]
  const std::vector<float> weights(ids.size(), 1.f / static_cast<float>(shape.top_k));
  const Routing own{.ids = ids, .weights = weights};
  std::vector<float> out(x.size()), expert_out;

  ExchangeTiming timing;
  // A fused contract is counted as the exchange that executes it.
  timing.routed = CountRoutedRows(transport.contract(), shape, transport.position(), ids);
  const std::vector<float> from((timing.routed.sent + timing.routed.back) * shape.hidden, 1.f);
  std::vector<float> to(from.size());
  Stopwatch watch;
  for (; timing.calls <= options.repeats; ++timing.calls) {
    SB_RETURN_IF_ERROR(transport.fused()
                           ? FusedOnce(transport, x, own, out, timing, watch)
                           : ExchangeOnce(transport, x, own, expert_out, out, timing, watch));
    watch.copy.push_back(CopyMicroseconds(from, to));
    if (timing.calls == 0 && options.repeats > 0) watch = {};  // it warmed up
  }
  timing.dispatch_us = Median(watch.dispatch);
  timing.combine_us = Median(watch.combine);
  timing.copy_us = Median(watch.copy);
  return timing;
}

}  // namespace signalbox
