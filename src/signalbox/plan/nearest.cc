// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/nearest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

namespace signalbox::planning {
namespace {

constexpr size_t kMostTries = 64;  // layouts near the one asked for; most fail at their sizes

struct Neighbour {
  ParallelConfig config;
  double distance;
};

double Steps(int from, int to) {
  return std::abs(std::log2(double(to) / from));
}

// Changes of redundancy come first, then of the expert groups, of attention DP, of the ranks.
double Distance(const ParallelConfig& from, const ParallelConfig& to) {
  const auto changed = [](int a, int b, double weight) {
    return a == b ? 0 : weight * (1 + Steps(a, b));
  };
  return (from.redundant_experts == to.redundant_experts ? 0 : 0.5) + changed(from.ep, to.ep, 1) +
         changed(from.dp, to.dp, 1.01) + changed(from.tp, to.tp, 4);
}

// Redundant experts that make the slots of every kind divide.
int Fill(const PlanRequest& request, int ep) {
  int64_t fill = request.parallel.redundant_experts;
  for (const LayerKindFacts& kind : request.facts.kinds) {
    if (!kind.moe) continue;
    const int64_t over = (kind.moe->experts + fill) % ep;
    if (over != 0) fill += ep - over;
  }
  return static_cast<int>(fill);
}

std::vector<Neighbour> Neighbours(const PlanRequest& request) {
  const ParallelConfig& asked = request.parallel;
  std::vector<Neighbour> found;
  for (int tp = std::max(1, asked.tp / 2); tp <= std::min(2 * asked.tp, kMaxRanks); ++tp) {
    if (tp > asked.tp + 8 && tp != 2 * asked.tp) continue;
    if (tp < asked.tp - 8 && 2 * tp != asked.tp) continue;
    for (int dp = 1; dp <= tp; ++dp) {
      if (tp % dp != 0) continue;
      for (int ep = 1; ep <= tp; ++ep) {
        if (tp % ep != 0 || (dp % ep != 0 && ep % dp != 0)) continue;
        for (int redundant : {asked.redundant_experts, Fill(request, ep), 0}) {
          const ParallelConfig config{.tp = tp, .dp = dp, .ep = ep, .redundant_experts = redundant};
          found.push_back({config, Distance(asked, config)});
        }
      }
    }
  }
  std::ranges::sort(found, {}, [](const Neighbour& n) {
    return std::tuple(n.distance, n.config.tp, -n.config.ep, n.config.dp,
                      n.config.redundant_experts);
  });
  return found;
}

std::string Flags(const PlanRequest& asked, const PlanRequest& near, const LayoutPlan& plan) {
  std::vector<std::string> flags;
  const auto add = [&](std::string_view name, int from, int to) {
    if (from != to) flags.push_back(fmt::format("{} {}", name, to));
  };
  const ParallelConfig& from = asked.parallel;
  const ParallelConfig& to = near.parallel;
  add("--tp", from.tp, to.tp);
  add("--dp", from.dp, to.dp);
  add("--ep", from.ep, to.ep);
  add("--ep-num-redundant-experts", from.redundant_experts, to.redundant_experts);
  if (asked.shared != near.shared) flags.push_back("--shared-experts auto");
  std::string text = fmt::format("{}", fmt::join(flags, " "));
  const auto moe = std::ranges::find_if(plan.kinds, [](const auto& k) { return k.cut.slots > 0; });
  if (from.redundant_experts != to.redundant_experts && moe != plan.kinds.end()) {
    text +=
        fmt::format(", which makes {} slots, {} per rank", moe->cut.slots, moe->cut.slots_per_rank);
  }
  return text;
}

}  // namespace

Status WithNearest(const Status& refusal, const PlanRequest& request) {
  ErrorDetail detail = refusal.detail();
  if (!detail.remedy.empty() && detail.remedy != kAnotherLayout) return refusal;
  PlanRequest near = request;
  for (SharedChoice shared : {request.shared, SharedChoice::kAuto}) {
    near.shared = shared;
    size_t tries = 0;
    for (const Neighbour& neighbour : Neighbours(request)) {
      if (neighbour.distance == 0 && shared == request.shared) continue;
      if (++tries > kMostTries) break;
      near.parallel = neighbour.config;
      const Result<LayoutPlan> plan = PlanExactly(near);
      if (!plan.ok()) continue;
      detail.remedy = "nearest layout that works: " + Flags(request, near, *plan);
      return Refused(std::move(detail));
    }
    if (request.shared == SharedChoice::kAuto) break;
  }
  detail.remedy = "no sizes near these work: " + std::string(kAnotherLayout);
  return Refused(std::move(detail));
}

}  // namespace signalbox::planning
