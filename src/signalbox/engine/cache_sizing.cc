// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/cache_sizing.h"

#include <fmt/format.h>

#include <algorithm>

#include "signalbox/base/text_util.h"

namespace signalbox {
namespace {

constexpr int64_t kUsualSequences = 4;
constexpr int64_t kUsualTokens = 16384;

// More than any machine holds, and page and slot numbers fit 31 bits.
constexpr int64_t kMostTokens = int64_t{1} << 32;
constexpr int64_t kMostSequences = int64_t{1} << 20;
constexpr int64_t kMostSlotsPerSequence = 64;

Status CheckRange(std::string_view what, std::string_view flag, int64_t value, int64_t most) {
  if (value >= 0 && value <= most) return OkStatus();
  return InvalidArgument({.what = fmt::format("{} that no cache has", what),
                          .where = std::string(flag),
                          .found = fmt::format("{}", value),
                          .expected = fmt::format("at most {}", most)});
}

// Both factors are in range.
int64_t AllAtFullLength(const CacheBudget& budget, int64_t max_position) {
  return std::min(budget.sequences * std::min(max_position, kMostTokens), kMostTokens);
}

Status TooLittle(const CacheBudget& budget, int64_t memory, const CacheDemand& demand) {
  const int64_t slots = budget.size().slots * demand.ranks;
  std::string found = fmt::format("{} of weights", HumanBytes(demand.weights));
  if (demand.slot_bytes > 0)
    found += fmt::format(", {} states of {}", slots, HumanBytes(demand.slot_bytes));
  if (demand.page_bytes > 0) {
    found += fmt::format(", at least {} pages of {}", (budget.sequences + 1) * demand.ranks,
                         HumanBytes(demand.page_bytes));
  }
  const bool weights = demand.weights >= memory;
  return Refused(
      {.what = weights ? "the weights alone need more memory than they may have"
                       : "no room for the cache beside the weights",
       .where = "--mem-fraction-static",
       .found = std::move(found),
       .expected = fmt::format("at most {} for the ranks of this process", HumanBytes(memory)),
       .remedy = weights ? "raise it, or use the memory of more hosts"
                         : "raise it, or ask for fewer --max-running-requests"});
}

}  // namespace

std::string RankMemory::ToString() const {
  std::string text = fmt::format("weights {}", HumanBytes(weights));
  if (page_bytes > 0) {
    text += fmt::format(", KV {} pages of {} tokens x {} = {}", size.pages, kBlockTokens,
                        HumanBytes(page_bytes), HumanBytes(size.pages * page_bytes));
  }
  if (slot_bytes > 0) {
    text += fmt::format(", state {} slots x {} = {}", size.slots, HumanBytes(slot_bytes),
                        HumanBytes(size.slots * slot_bytes));
  }
  return text;
}

RankMemory MemoryOfRank(const MemoryPlan& plan, const CacheSize& size) {
  return {.weights = plan.weights(),
          .size = size,
          .page_bytes = kBlockTokens * plan.cache_per_token,
          .slot_bytes = plan.cache_per_sequence};
}

CacheDemand DemandOf(const LayoutPlan& layout, const LayoutFacts& whole, int64_t max_position,
                     int64_t ranks) {
  int64_t file = whole.trunk_bytes;
  for (const LayerKindFacts& kind : whole.kinds) {
    const LayerBytes& b = kind.bytes;
    file += (b.mixer + b.experts + b.shared + b.dense + b.whole) * kind.layers;
  }
  const RankMemory one = MemoryOfRank(layout.memory, {});
  return {.max_position = max_position,
          .weights = std::min(one.weights * ranks, file),
          .ranks = ranks,
          .page_bytes = one.page_bytes,
          .slot_bytes = one.slot_bytes};
}

Result<CacheBudget> SizeCache(const CacheBudget& asked, int64_t memory, const CacheDemand& demand) {
  CacheBudget budget = asked;
  if (budget.sequences == 0) budget.sequences = kUsualSequences;
  SB_RETURN_IF_ERROR(
      CheckRange("requests at a time", "--max-running-requests", budget.sequences, kMostSequences));
  SB_RETURN_IF_ERROR(
      CheckRange("states", "--max-prefix-states", budget.snapshots.value_or(0), kMostSequences));
  SB_RETURN_IF_ERROR(CheckRange("states", "--speculative-num-steps", budget.slots_per_sequence,
                                kMostSlotsPerSequence));
  SB_RETURN_IF_ERROR(CheckRange("tokens", "--max-total-tokens", budget.tokens, kMostTokens));
  const int64_t all = AllAtFullLength(budget, demand.max_position);
  if (memory == 0) {
    if (budget.tokens == 0) budget.tokens = std::min(all, kUsualTokens);
    return budget;
  }
  if (budget.tokens == 0) budget.tokens = all;
  const int64_t left =
      memory - demand.weights - budget.size().slots * demand.slot_bytes * demand.ranks;
  if (demand.page_bytes == 0) {
    if (left < 0) return TooLittle(budget, memory, demand);
    return budget;
  }
  // The budget has one page more for each sequence.
  const int64_t pages = left / (demand.page_bytes * demand.ranks) - budget.sequences;
  if (pages < 1) return TooLittle(budget, memory, demand);
  budget.tokens = std::min(budget.tokens, std::min(pages, kMostTokens) * kBlockTokens);
  return budget;
}

}  // namespace signalbox
