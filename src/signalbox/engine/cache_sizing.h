// SPDX-License-Identifier: Apache-2.0
//
// How the memory of a rank is divided: weights that it maps, pages of keys and values, slots of
// state. All of it follows from the plan, before a weight is read.
//
//   SB_ASSIGN_OR_RETURN(CacheBudget budget, SizeCache({.sequences = 8}, memory, demand));
//   RankMemory rank = MemoryOfRank(plan.memory, budget.size());
//   rank.ToString();   // "weights 14.9 MiB, KV 1028 pages x 16.0 KiB, ..."
#pragma once

#include <cstdint>
#include <string>

#include "signalbox/base/status.h"
#include "signalbox/cache/cache_pool.h"
#include "signalbox/plan/planner.h"

namespace signalbox {

struct RankMemory {
  int64_t weights = 0;     // bytes mapped; threads of one process share what they have in common
  CacheSize size;          // of the rank's part
  int64_t page_bytes = 0;  // of one page in all layers
  int64_t slot_bytes = 0;

  int64_t cache() const { return size.pages * page_bytes + size.slots * slot_bytes; }
  // "weights 14.9 MiB, KV 1028 pages x 16.0 KiB = 16.1 MiB, state 8 slots x 100.0 KiB = 800.0 KiB"
  std::string ToString() const;
  friend bool operator==(const RankMemory&, const RankMemory&) = default;
};
RankMemory MemoryOfRank(const MemoryPlan& plan, const CacheSize& size);

// What the ranks of one process need.
struct CacheDemand {
  int64_t max_position = 0;  // tokens of a sequence at most
  int64_t weights = 0;       // bytes mapped by all of them together
  int64_t ranks = 1;
  int64_t page_bytes = 0;  // of each rank
  int64_t slot_bytes = 0;
};
// Of as many of the layout's ranks as are in this process. `whole`: the model, uncut.
CacheDemand DemandOf(const LayoutPlan& layout, const LayoutFacts& whole, int64_t max_position,
                     int64_t ranks);

// Fills in what `asked` leaves open: 4 sequences; room for all of them at full length, at most
// 16,384 tokens. With `memory` (bytes, for the weights and the cache of these ranks; 0: no limit)
// it is as many pages as the weights and slots leave, at most the sequences at full length, and no
// more tokens than asked for.
// Errors: kRefused, with the numbers, when not one page fits; kInvalidArgument for budgets that no
// machine has.
Result<CacheBudget> SizeCache(const CacheBudget& asked, int64_t memory, const CacheDemand& demand);

}  // namespace signalbox
