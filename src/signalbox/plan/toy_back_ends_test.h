// SPDX-License-Identifier: Apache-2.0
//
// Contracts that stand for the kinds there are, for tests.
#pragma once

#include <string_view>

#include "signalbox/base/check.h"
#include "signalbox/plan/check.h"

namespace signalbox {

// flat-local: one row per token and rank, local ids, ids masked behind the valid rows.
// flat-global: the caller's ids unchanged, unwritten memory behind the valid rows.
// expert-major: one row per (token, expert), weighed by the library.
// none: no exchange.
inline Contract ToyContract(std::string_view kind) {
  Contract c{.name = "acme", .shape = RowShape::kFlat, .tail = TailRows::kPoison};
  if (kind == "flat-local") {
    c.ids = ReceivedIds::kLocal;
    c.weights = ReceivedWeights::kZeroedOffRank;
    c.tail = TailRows::kMaskedIds;
  } else if (kind == "flat-global") {
    c.ids = ReceivedIds::kGlobal;
    c.weights = ReceivedWeights::kRaw;
  } else if (kind == "none") {
    c.shape = RowShape::kNone;
  } else {
    SB_CHECK(kind == "expert-major") << kind;
    c.shape = RowShape::kExpertMajorPadded;
    c.weighting = Weighting::kLibraryAtSource;
  }
  return c;
}

// A runner named after the ids it reads: flat rows, or grouped by expert for kPosition.
inline RunnerTerms ToyRunner(IdSpace ids) {
  return {.name = std::string(ToString(ids)),
          .shape = ids == IdSpace::kPosition ? RowShape::kExpertMajorPadded : RowShape::kFlat,
          .ids = ids};
}

}  // namespace signalbox
