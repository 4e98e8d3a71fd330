// SPDX-License-Identifier: Apache-2.0
//
// How the weights of a layer kind may be cut over a mesh. Internal to the planner.
#pragma once

#include <vector>

#include "signalbox/plan/planner.h"

namespace signalbox::planning {

// INVALID_ARGUMENT: numbers that no model has.
Status ValidateFacts(const LayoutFacts& facts);

struct Cuts {
  std::vector<LayerCut> cuts;      // what --shared-experts allows, the usual ones first
  std::vector<Rejected> rejected;  // placements of the shared expert that its sizes rule out
};

// REFUSED when heads, expert slots or expert widths do not divide, or the placement asked for is
// not possible; a fill of redundant experts that would do is named.
Result<Cuts> CutsOf(const LayerKindFacts& facts, const ParallelConfig& config,
                    const ParallelMesh& parallel, SharedChoice shared);

// Bytes of one layer's parts on each rank.
MemoryPlan MemoryOf(const LayerKindFacts& facts, const LayerCut& cut, const Mesh& mesh);

}  // namespace signalbox::planning
