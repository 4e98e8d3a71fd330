// SPDX-License-Identifier: Apache-2.0
//
// Value: what an activation is, on every rank at once. Which axes shard its rows, which its
// features, which addends have flowed into it and who still owes which part of their sums, and what
// it computes once the layout is erased. The checker derives one for every register after every
// step.
//
//   Value h = {.rows = {}, .terms = {{"attn", {.coefficient = 1, .part = tp}}}};
//   h.ToString(mesh);   // "rows: all | attn partial over attn_tp"
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "signalbox/mesh/mesh.h"

namespace signalbox {

// An exact fraction: how often an addend is contained in the completed value.
struct Rational {
  int64_t num = 1;
  int64_t den = 1;
  friend bool operator==(const Rational&, const Rational&) = default;
};

struct Term {
  std::string name;      // "residual", "attn", "routed", "shared", ...
  Rational coefficient;  // 1 when the addend is contained exactly once
  AxisSet part;          // axes whose ranks each hold a share of the addend
  friend bool operator==(const Term&, const Term&) = default;
};

// Whose numbering the expert ids of a routing are in.
enum class IdSpace : uint8_t { kLogical, kSlotGlobal, kSlotLocal, kPosition };
// What rows beyond the valid ones hold.
enum class PadRows : uint8_t { kNone, kMasked, kPoison };

struct Value {
  AxisSet rows;                   // axes that shard the tokens
  AxisSet cols;                   // axes that shard the features
  std::vector<Term> terms;        // in order of addition
  std::vector<std::string> expr;  // the addends as expressions of the model's operations, sorted
  bool weighted = true;  // router weights applied to the routed term (true where there is none)
  IdSpace ids = IdSpace::kLogical;
  PadRows pad = PadRows::kNone;

  std::string ToString(const Mesh& mesh) const;
  friend bool operator==(const Value&, const Value&) = default;
};

}  // namespace signalbox
