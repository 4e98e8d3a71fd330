// SPDX-License-Identifier: Apache-2.0
#include "signalbox/moe/expert_runner.h"

#include <algorithm>
#include <vector>

namespace signalbox {

void RunFlatExperts(Ops& ops, Scratch& scratch, std::span<const ExpertWeights> experts,
                    const RoutedRows& in, float* out) {
  const auto held = [&](int32_t id) {
    return id >= 0 && id < static_cast<int64_t>(experts.size());
  };
  const int64_t lanes = in.rows * in.top_k;

  // Counting sort of (row, lane) by expert; stable, so that rows of an expert stay in row order.
  std::vector<int64_t> offsets(experts.size() + 1, 0);
  for (int64_t i = 0; i < lanes; ++i) {
    if (held(in.ids[i])) ++offsets[static_cast<size_t>(in.ids[i]) + 1];
  }
  for (size_t e = 1; e < offsets.size(); ++e) offsets[e] += offsets[e - 1];
  std::vector<int64_t> next(offsets.begin(), offsets.end() - 1);
  std::vector<int64_t> source(static_cast<size_t>(offsets.back()));  // sorted place -> row
  std::vector<int64_t> place(static_cast<size_t>(lanes), -1);        // (row, lane) -> sorted place
  for (int64_t i = 0; i < lanes; ++i) {
    if (!held(in.ids[i])) continue;
    const int64_t p = next[static_cast<size_t>(in.ids[i])]++;
    source[static_cast<size_t>(p)] = i / in.top_k;
    place[static_cast<size_t>(i)] = p;
  }

  Scratch::Scope scope(scratch);
  const int64_t sorted = offsets.back();
  float* x = scratch.Take(sorted * in.hidden);  // [sorted, hidden]
  float* y = scratch.Take(sorted * in.hidden);  // [sorted, hidden]
  ops.GatherRows({.in = in.x,
                  .in_stride = in.hidden,
                  .width = in.hidden,
                  .rows = source,
                  .out = x,
                  .out_stride = in.hidden});
  ops.GroupedMlp({.x = x,
                  .x_stride = in.hidden,
                  .offsets = offsets,
                  .experts = experts,
                  .activation = in.activation,
                  .precision = in.precision,
                  .y = y,
                  .y_stride = in.hidden});
  std::fill_n(out, in.rows * in.hidden, 0.f);
  for (int64_t i = 0; i < lanes; ++i) {
    const int64_t p = place[static_cast<size_t>(i)];
    if (p < 0) continue;
    ops.AddScaled(y + p * in.hidden, in.weights == nullptr ? 1.f : in.weights[i], in.hidden,
                  out + i / in.top_k * in.hidden);
  }
}

}  // namespace signalbox
