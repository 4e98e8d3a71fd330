// SPDX-License-Identifier: Apache-2.0
#include "signalbox/moe/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

namespace signalbox::placement_test {
namespace {

TEST(Placement, RefusalNamesTheRedundancyThatWorks) {
  const Status s = ExpertPlacement::Create({.experts = 16, .ranks = 3}).status();
  EXPECT_EQ(s.code(), StatusCode::kRefused);
  EXPECT_THAT(s.message(), testing::HasSubstr("--ep-num-redundant-experts 2 works (18 slots)"));
  EXPECT_TRUE(ExpertPlacement::Create({.experts = 16, .redundant = 2, .ranks = 3}).ok());
}

// IDX-11: the two maps are inverse, every expert is reachable, every slot in range.
RC_GTEST_PROP(Placement, Idx11MapsAreInverse, ()) {
  const int ranks = *rc::gen::inRange(1, 6);
  const int experts = *rc::gen::inRange(1, 20);
  const int redundant = (ranks - experts % ranks) % ranks + ranks * *rc::gen::inRange(0, 3);
  const auto p =
      ExpertPlacement::Create({.experts = experts, .redundant = redundant, .ranks = ranks});
  RC_ASSERT(p.ok());
  std::map<int, int> seen;
  for (int e = 0; e < experts; ++e) {
    RC_ASSERT(!p->SlotsOf(ExpertId(e)).empty());
    for (SlotId s : p->SlotsOf(ExpertId(e))) {
      RC_ASSERT(p->ExpertOf(s) == ExpertId(e));
      ++seen[s.value()];
    }
  }
  RC_ASSERT(static_cast<int>(seen.size()) == p->slots());
  int held = 0;
  for (int r = 0; r < ranks; ++r) held += static_cast<int>(p->ExpertsOn(r).size());
  RC_ASSERT(held == p->slots());
}

// IDX-06: for each (row, expert) one rank executes it; choosing the own replica breaks that.
TEST(Placement, Idx06OneRankExecutes) {
  const auto p = ExpertPlacement::Create({.experts = 8, .redundant = 4, .ranks = 2});
  int disagreements = 0;
  for (int e = 0; e < 8; ++e) {
    for (int64_t row = 0; row < 5; ++row) {
      const SlotId slot = p->Choose(ExpertId(e), row);
      EXPECT_EQ(p->ExpertOf(slot), ExpertId(e));
      disagreements += p->ChooseOwn(ExpertId(e), row, 0) != p->ChooseOwn(ExpertId(e), row, 1);
    }
  }
  EXPECT_GT(disagreements, 0);
}

}  // namespace
}  // namespace signalbox::placement_test
