// SPDX-License-Identifier: Apache-2.0
//
// ExpertPlacement: which logical expert lies in which physical slot, and which slot on which rank
// of the expert group. Slots are numbered over all ranks; rank r holds slots [r * L, (r + 1) * L).
// An immutable value.
//
// Law: for every (row, expert) exactly one slot executes it, whichever replica is picked, as long
// as every rank picks by the same rule.
//
//   SB_ASSIGN_OR_RETURN(auto p, ExpertPlacement::Create({.experts = 16, .redundant = 2, .ranks =
//   3})); p.Choose(ExpertId(1), /*row=*/7);    // slot 1 or 17
#pragma once

#include <cstdint>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"

namespace signalbox {

struct PlacementShape {
  int experts = 0;
  int redundant = 0;  // slots beyond one per expert
  int ranks = 1;
};

class ExpertPlacement {
 public:
  // Slot s holds expert s mod experts: every expert once, then replicas of the first ones.
  // Refused when the slots do not divide by the ranks; the message names the redundancy that works.
  static Result<ExpertPlacement> Create(const PlacementShape& shape);

  int ranks() const { return shape_.ranks; }
  int experts() const { return shape_.experts; }
  int slots() const { return shape_.experts + shape_.redundant; }
  int slots_per_rank() const { return slots() / shape_.ranks; }
  bool replicated() const { return shape_.redundant > 0; }

  ExpertId ExpertOf(SlotId slot) const;
  const std::vector<SlotId>& SlotsOf(ExpertId expert) const;
  // The experts of one rank in slot order.
  std::vector<ExpertId> ExpertsOn(int rank) const;

  // The replica that executes `expert` for a row: rows take turns, all ranks agree.
  SlotId Choose(ExpertId expert, int64_t row) const;
  // The replica that `rank` holds itself where it holds one, else as Choose(). Ranks do not agree
  // on it.
  SlotId ChooseOwn(ExpertId expert, int64_t row, int rank) const;

 private:
  PlacementShape shape_;
  std::vector<std::vector<SlotId>> slots_of_;  // [experts]
};

}  // namespace signalbox
