// SPDX-License-Identifier: Apache-2.0
//
// Strong integer types, so that a logical expert cannot be passed where a physical slot is meant.
//
//   SlotId s{3};  s.value() == 3;  ExpertId e = s;  // does not compile
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace signalbox {

template <typename Tag>
class StrongId {
 public:
  constexpr StrongId() = default;
  constexpr explicit StrongId(int32_t value) : value_(value) {}
  constexpr int32_t value() const { return value_; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;

 private:
  int32_t value_ = 0;
};

using RankId = StrongId<struct RankTag>;      // position in the world, 0 .. R-1
using ExpertId = StrongId<struct ExpertTag>;  // the model's view: logical expert, 0 .. E-1
using SlotId = StrongId<struct SlotTag>;  // the engine's view: physical place that holds a replica
using BlockId = StrongId<struct BlockTag>;  // page of the KV pool
using TokenId = int32_t;                    // vocabulary index; plain, it fills whole arrays

}  // namespace signalbox

template <typename Tag>
struct std::hash<signalbox::StrongId<Tag>> {
  std::size_t operator()(signalbox::StrongId<Tag> id) const noexcept {
    return std::hash<int32_t>()(id.value());
  }
};
