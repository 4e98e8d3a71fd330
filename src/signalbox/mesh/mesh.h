// SPDX-License-Identifier: Apache-2.0
//
// Mesh: the world of R ranks as a product of small named base axes, and groups as sets of base
// axes.
//
// Attention and experts cut the same world differently (attn_dp x attn_tp and moe_ep x moe_tp).
// Both cuts are made of the same base axes, so one reduction over a set of axes can complete a
// value that is partial over both. Ranks are numbered row-major: the last axis varies fastest. A
// mesh is an immutable value.
//
//   Mesh mesh = *Mesh::Create({{"attn_dp", 2}, {"attn_tp", 2}});
//   AxisSet tp = *mesh.Find("attn_tp");
//   mesh.Group(RankId(3), tp);      // {2, 3}
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"

namespace signalbox {

// A set of base axes of one mesh; the empty set is the group of the rank alone.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  static constexpr AxisSet Single(int axis) { return AxisSet(uint8_t(1u << axis)); }

  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool Contains(AxisSet other) const { return (other.bits_ & ~bits_) == 0; }
  constexpr bool Has(int axis) const { return (bits_ >> axis) & 1; }
  constexpr uint8_t bits() const { return bits_; }

  friend constexpr AxisSet operator|(AxisSet a, AxisSet b) { return AxisSet(a.bits_ | b.bits_); }
  friend constexpr AxisSet operator&(AxisSet a, AxisSet b) { return AxisSet(a.bits_ & b.bits_); }
  friend constexpr AxisSet operator-(AxisSet a, AxisSet b) { return AxisSet(a.bits_ & ~b.bits_); }
  friend constexpr bool operator==(AxisSet, AxisSet) = default;

 private:
  constexpr explicit AxisSet(uint8_t bits) : bits_(bits) {}
  uint8_t bits_ = 0;
};

inline constexpr int kMaxAxes = 8;
inline constexpr int kMaxRanks = 1 << 16;

class Mesh {
 public:
  struct Axis {
    std::string name;
    int size;
    friend bool operator==(const Axis&, const Axis&) = default;
  };
  // A second name for a set of base axes: attn_tp where the experts cut attn_tp in two.
  struct View {
    std::string name;
    AxisSet set;
    friend bool operator==(const View&, const View&) = default;
  };

  // The world of one rank.
  Mesh() = default;
  // INVALID_ARGUMENT: more than kMaxAxes axes or kMaxRanks ranks, a size below 1, an empty name, a
  // name with two meanings, a view of axes that are not there.
  static Result<Mesh> Create(std::vector<Axis> axes, std::vector<View> views = {});

  int ranks() const { return Size(all()); }
  const std::vector<Axis>& axes() const { return axes_; }
  const std::vector<View>& views() const { return views_; }
  AxisSet all() const;
  // The axis or view of that name.
  std::optional<AxisSet> Find(std::string_view name) const;
  // Ranks in a group over `set`: the product of its sizes.
  int Size(AxisSet set) const;
  // This rank's place among the ranks of its group over `set`, 0 .. Size(set)-1, row-major in axis
  // order.
  int Position(RankId rank, AxisSet set) const;
  // The ranks that differ from `rank` only along `set`, in order of Position.
  std::vector<RankId> Group(RankId rank, AxisSet set) const;
  // "attn_tp", "attn_dp+attn_tp": the fewest names that cover `set`; "nothing" for the empty set.
  std::string Names(AxisSet set) const;
  // "attn_dp 2 x attn_tp 2"; "1 rank".
  std::string ToString() const;

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  std::vector<Axis> axes_;
  std::vector<View> views_;
};

}  // namespace signalbox
