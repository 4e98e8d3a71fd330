// SPDX-License-Identifier: Apache-2.0
#include "signalbox/a2a/worklist.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "signalbox/a2a/exchange_testing.h"
#include "signalbox/a2a/oracle.h"

namespace signalbox {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two ranks of two slots, two lanes, room for four tokens: flat rows with global ids, poison tail.
constexpr ExchangeShape kShape = {.ranks = 2, .slots = 2, .hidden = 1, .top_k = 2, .capacity = 4};

Contract FlatGlobal() {
  Contract c{.name = "flat",
             .shape = RowShape::kFlat,
             .dedup_wire = true,
             .order = RowOrder::kSourceSorted,
             .ids = ReceivedIds::kGlobal,
             .id_bits_out = 32,
             .weights = ReceivedWeights::kRaw,
             .negative_ids = NegativeIds::kSkip,
             .counts = {Counts::kDevTotal},
             .rows_bound = RowsBound::kRanksTokens};
  SB_CHECK(Validate(c).ok()) << Validate(c).ToString();
  return c;
}

std::vector<RankInput> TwoInputs() {
  return {{.x = {1, 2}, .ids = {0, 3, 2, -1}, .weights = {.25f, .75f, .5f, .125f}},
          {.x = {3}, .ids = {3, 1}, .weights = {1.f, 2.f}}};
}

Delivered OnRank(const Contract& c, int rank) {
  const auto delivered = OracleDispatch(c, kShape, TwoInputs());
  EXPECT_TRUE(delivered.ok()) << delivered.status().ToString();
  return (*delivered)[rank];
}

TEST(WorkListTest, GlobalIdsOfOtherRanksAndMaskedLanesAreSkipped) {
  const Contract c = FlatGlobal();
  const Delivered d = OnRank(c, 1);
  ASSERT_EQ(d.total_rows, 3);
  EXPECT_THAT(std::vector(d.ids.begin(), d.ids.begin() + 6), ElementsAre(0, 3, 2, -1, 3, 1));
  EXPECT_EQ(d.ids[6], kPoisonId);
  const Result<WorkList> list = BuildWorkList(c, kShape, 1, d);
  ASSERT_TRUE(list.ok()) << list.status().ToString();
  EXPECT_THAT(list->offsets, ElementsAre(0, 1, 3));
  EXPECT_THAT(list->rows, ElementsAre(1, 0, 2));
  EXPECT_THAT(list->weights, ElementsAre(.5f, .75f, 1.f));
  EXPECT_THAT(list->valid, ElementsAre(0, 1, 2));
}

TEST(WorkListTest, EverySpellingOfMaskedGivesTheSameWork) {
  const Result<WorkList> expected = BuildWorkList(FlatGlobal(), kShape, 1, OnRank(FlatGlobal(), 1));
  for (ReceivedWeights weights : {ReceivedWeights::kRaw, ReceivedWeights::kZeroedOffRank}) {
    for (MaskSpelling masked :
         {MaskSpelling::kNone, MaskSpelling::kMinusOne, MaskSpelling::kNumExperts}) {
      for (TailRows tail : {TailRows::kPoison, TailRows::kMaskedIds}) {
        for (ReceivedIds ids : {ReceivedIds::kGlobal, ReceivedIds::kLocal}) {
          Contract c = FlatGlobal();
          c.ids = ids;
          c.masked = masked;
          c.tail = tail;
          c.weights = weights;
          if (tail == TailRows::kMaskedIds) c.counts = {};
          if (!Validate(c).ok()) continue;
          const Result<WorkList> list = BuildWorkList(c, kShape, 1, OnRank(c, 1));
          ASSERT_TRUE(list.ok()) << list.status().ToString();
          EXPECT_EQ(list->offsets, expected->offsets);
          EXPECT_EQ(list->rows, expected->rows);
          EXPECT_EQ(list->weights, expected->weights);
        }
      }
    }
  }
}

// A lane of weight 0 may stand for a masked one: its expert does not run, its row still counts.
TEST(WorkListTest, LanesOfWeightZeroAreNotComputed) {
  const Contract c = FlatGlobal();
  Delivered d = OnRank(c, 1);
  d.weights[4] = 0.f;  // row 2, expert 3
  const Result<WorkList> list = BuildWorkList(c, kShape, 1, d);
  ASSERT_TRUE(list.ok()) << list.status().ToString();
  EXPECT_THAT(list->rows, ElementsAre(1, 0));
  EXPECT_THAT(list->valid, ElementsAre(0, 1, 2));
}

TEST(WorkListTest, ReadingBeyondTheCountIsFound) {
  const Contract c = FlatGlobal();
  Delivered d = OnRank(c, 1);
  d.total_rows = 4;
  const Result<WorkList> list = BuildWorkList(c, kShape, 1, d);
  EXPECT_EQ(list.status().code(), StatusCode::kInternal);
  EXPECT_THAT(list.status().message(), HasSubstr("row 3, lane 0"));
}

TEST(WorkListTest, ASpellingThatTheContractDoesNotHaveIsFound) {
  const Contract c = FlatGlobal();
  Delivered d = OnRank(c, 1);
  d.ids[0] = kShape.total_slots();  // "masked" elsewhere, an id of no slot here
  EXPECT_EQ(BuildWorkList(c, kShape, 1, d).status().code(), StatusCode::kInternal);
}

TEST(WorkListTest, RowsWithoutCountMustBeSanitisedFirst) {
  Contract c = FlatGlobal();
  c.masked = MaskSpelling::kCallerId;
  c.counts = {};
  ASSERT_TRUE(Validate(c).ok());
  Delivered d = OnRank(c, 1);
  EXPECT_THAT(BuildWorkList(c, kShape, 1, d).status().message(), HasSubstr("sanitise"));
  std::fill(d.ids.begin() + 6, d.ids.end(), 77);
  d.sanitised = 77;
  EXPECT_TRUE(BuildWorkList(c, kShape, 1, d).ok());
}

TEST(WorkListTest, ScatterWritesValidRowsOnly) {
  const Contract c = FlatGlobal();
  const Result<WorkList> list = BuildWorkList(c, kShape, 1, OnRank(c, 1));
  ASSERT_TRUE(list.ok());
  std::vector<float> out(8, kPoison);
  ScatterResults(c, kShape, *list, std::vector<float>{10, 20, 30}, out);
  EXPECT_THAT(std::vector(out.begin(), out.begin() + 3), ElementsAre(15.f, 5.f, 30.f));
  EXPECT_TRUE(std::all_of(out.begin() + 3, out.end(), [](float v) { return std::isnan(v); }));
}

// The epilogue for contracts that forbid -1: same result as with the masked lanes left out.
RC_GTEST_PROP(WithoutMaskedProperty, KeepsTheSumAndNeedsNoMask, ()) {
  Scenario s;
  s.shape = {.ranks = *rc::gen::inRange(1, 5), .slots = *rc::gen::inRange(1, 5), .hidden = 2};
  s.shape.top_k = *rc::gen::inRange(1, std::min(s.shape.total_slots(), 8) + 1);
  s.shape.capacity = 12;
  s.masked = true;
  s.tokens.assign(s.shape.ranks, 12);
  s.seed = *rc::gen::inRange<uint64_t>(1, 1000);
  Contract c = FlatGlobal();
  c.negative_ids = NegativeIds::kForbidden;
  const RankInput in = DrawInputs(s)[0];
  const UnmaskedRouting clean = WithoutMasked(in.routing(), s.shape);

  RankInput kept{.ids = clean.ids, .weights = clean.weights};
  for (int64_t t : clean.tokens) {
    kept.x.insert(kept.x.end(), in.x.begin() + 2 * t, in.x.begin() + 2 * t + 2);
  }
  const auto tokens = static_cast<int64_t>(clean.tokens.size());
  RC_ASSERT(CheckInput(c, s.shape, tokens, 2 * tokens, kept.routing()).ok());
  const std::vector<float> before = DenseReference(s.shape, in);
  const std::vector<float> after = DenseReference(s.shape, kept);
  for (int64_t i = 0; i < tokens; ++i) {
    RC_ASSERT(before[2 * clean.tokens[i]] == after[2 * i]);
    std::set<int32_t> ids(clean.ids.begin() + i * s.shape.top_k,
                          clean.ids.begin() + (i + 1) * s.shape.top_k);
    RC_ASSERT(static_cast<int>(ids.size()) == s.shape.top_k);
  }
  // A replaced lane goes to a rank that the token goes to anyway while that rank has free slots.
  if (s.shape.top_k <= s.shape.slots) {
    RC_ASSERT(RowsByFormula(c, s.shape, kept) == RowsByFormula(c, s.shape, in));
  }
}

}  // namespace
}  // namespace signalbox
