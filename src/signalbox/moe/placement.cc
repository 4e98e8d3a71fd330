// SPDX-License-Identifier: Apache-2.0
#include "signalbox/moe/placement.h"

#include <fmt/format.h>

namespace signalbox {

Result<ExpertPlacement> ExpertPlacement::Create(const PlacementShape& shape) {
  ExpertPlacement p;
  p.shape_ = shape;
  const int missing = (shape.ranks - p.slots() % shape.ranks) % shape.ranks;
  if (missing != 0) {
    return Refused({.what = "experts do not divide by the ranks",
                    .where = "--ep",
                    .found = fmt::format("{} experts and {} redundant ones over {} ranks",
                                         shape.experts, shape.redundant, shape.ranks),
                    .expected = "as many slots on every rank",
                    .remedy = fmt::format("--ep-num-redundant-experts {} works ({} slots)",
                                          shape.redundant + missing, p.slots() + missing)});
  }
  p.slots_of_.resize(static_cast<size_t>(shape.experts));
  for (int32_t s = 0; s < p.slots(); ++s)
    p.slots_of_[static_cast<size_t>(s % shape.experts)].emplace_back(s);
  return p;
}

ExpertId ExpertPlacement::ExpertOf(SlotId slot) const {
  return ExpertId(slot.value() % shape_.experts);
}

const std::vector<SlotId>& ExpertPlacement::SlotsOf(ExpertId expert) const {
  return slots_of_[static_cast<size_t>(expert.value())];
}

std::vector<ExpertId> ExpertPlacement::ExpertsOn(int rank) const {
  std::vector<ExpertId> experts;
  for (int32_t s = rank * slots_per_rank(); s < (rank + 1) * slots_per_rank(); ++s) {
    experts.push_back(ExpertOf(SlotId(s)));
  }
  return experts;
}

SlotId ExpertPlacement::Choose(ExpertId expert, int64_t row) const {
  const std::vector<SlotId>& slots = SlotsOf(expert);
  return slots[static_cast<size_t>(row) % slots.size()];
}

SlotId ExpertPlacement::ChooseOwn(ExpertId expert, int64_t row, int rank) const {
  for (SlotId slot : SlotsOf(expert)) {
    if (slot.value() / slots_per_rank() == rank) return slot;
  }
  return Choose(expert, row);
}

}  // namespace signalbox
