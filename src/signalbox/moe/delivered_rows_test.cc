// SPDX-License-Identifier: Apache-2.0
#include "signalbox/moe/delivered_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "signalbox/a2a/oracle.h"
#include "signalbox/a2a/worklist.h"

namespace signalbox::delivered_rows_test {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr float kNan = kPoison;

// Rank 1 of 2 with 3 slots each: slots 3, 4 and 5 are here.
constexpr ExchangeShape kShape{.ranks = 2, .slots = 3, .hidden = 1, .top_k = 2, .capacity = 3};

Contract Flat() {
  return {.name = "flat",
          .shape = RowShape::kFlat,
          .dedup_wire = true,
          .ids = ReceivedIds::kGlobal,
          .id_bits_out = 32,
          .weights = ReceivedWeights::kRaw,
          .counts = {Counts::kDevTotal},
          .rows_bound = RowsBound::kRanksTokens};
}

// Two rows and a tail that nobody wrote.
Delivered FlatRows() {
  return {.shape = RowShape::kFlat,
          .capacity = 6,
          .rows = {1, 2, kNan, kNan, kNan, kNan},
          .ids = {4, 0, 5, 3, kPoisonId, kPoisonId, kPoisonId, kPoisonId, kPoisonId, kPoisonId,
                  kPoisonId, kPoisonId},
          .weights = {.5f, .5f, .25f, .75f, kNan, kNan, kNan, kNan, kNan, kNan, kNan, kNan},
          .weight_cols = 2,
          .total_rows = 2};
}

// Expert e multiplies by silu(1) * (e + 1).
struct Factors {
  std::vector<float> one = {1};
  std::vector<std::vector<float>> factor;
  std::vector<ExpertWeights> experts;

  explicit Factors(int n) : factor(n) {
    for (int e = 0; e < n; ++e) {
      factor[e] = {static_cast<float>(e + 1)};
      experts.push_back({F32View(one, 1, 1), F32View(one, 1, 1), F32View(factor[e], 1, 1)});
    }
  }
};

float Silu(float x) {
  return x / (1 + std::exp(-x));
}
float Expert(int local, float x) {
  return static_cast<float>(local + 1) * Silu(x) * x;
}

TEST(DeliveredRows, IdsToLocalSlotsAndBack) {
  const Contract contract = Flat();
  const Delivered delivered = FlatRows();
  DeliveredRows rows(contract, kShape, 1);
  ASSERT_TRUE(rows.Reset(delivered).ok());
  EXPECT_THAT(rows.rows(), ElementsAre(0, 1));
  EXPECT_THAT(rows.ids(), ElementsAre(4, 0, 5, 3));
  ASSERT_TRUE(rows.RemapIds(SlotSpace::kLocal).ok());
  EXPECT_THAT(rows.ids(), ElementsAre(1, -1, 2, 0));
  EXPECT_THAT(rows.RemapIds(SlotSpace::kLocal).message(), HasSubstr("ids are local already"));
  ASSERT_TRUE(rows.RemapIds(SlotSpace::kGlobal).ok());
  EXPECT_THAT(rows.ids(), ElementsAre(4, -1, 5, 3));
}

TEST(DeliveredRows, MaskedLanesInEverySpelling) {
  struct Case {
    MaskSpelling masked;
    int32_t spelt;
  };
  for (const auto& [masked, spelt] : {Case{MaskSpelling::kMinusOne, -1},
                                      {MaskSpelling::kNumExperts, 6},
                                      {MaskSpelling::kCallerId, 77},
                                      {MaskSpelling::kNone, -1}}) {
    Contract contract = Flat();
    contract.counts = {};
    contract.tail = TailRows::kMaskedIds;
    contract.masked = masked;
    Delivered delivered = FlatRows();
    delivered.total_rows.reset();
    std::ranges::replace(delivered.ids, kPoisonId, spelt);
    delivered.ids[1] = spelt;
    if (masked == MaskSpelling::kCallerId) delivered.sanitised = spelt;
    DeliveredRows rows(contract, kShape, 1);
    ASSERT_TRUE(rows.Reset(delivered).ok());
    EXPECT_THAT(rows.rows(), ElementsAre(0, 1)) << spelt;
    EXPECT_THAT(rows.ids(), ElementsAre(4, -1, 5, 3)) << spelt;
  }
}

TEST(DeliveredRows, LanesOfWeightZeroAskForNothing) {
  const Contract contract = Flat();
  Delivered delivered = FlatRows();
  delivered.weights[0] = 0;
  DeliveredRows rows(contract, kShape, 1);
  ASSERT_TRUE(rows.Reset(delivered).ok());
  EXPECT_THAT(rows.ids(), ElementsAre(-1, 0, 5, 3));
}

TEST(DeliveredRows, WhatContradictsTheContractIsNotRead) {
  const Contract contract = Flat();
  const auto reset = [&](const std::function<void(Contract&, Delivered&)>& change) {
    Contract changed = contract;
    Delivered delivered = FlatRows();
    change(changed, delivered);
    DeliveredRows rows(changed, kShape, 1);
    const Status status = rows.Reset(delivered);
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_EQ(rows.RemapIds(SlotSpace::kLocal).code(), StatusCode::kInternal);
    return status.message();
  };
  EXPECT_THAT(reset([](Contract&, Delivered& d) { d.total_rows = 3; }),
              HasSubstr("row 2 holds an id of no expert slot"));
  EXPECT_THAT(reset([](Contract&, Delivered& d) { d.total_rows = 7; }),
              HasSubstr("more rows are counted than the buffers hold"));
  EXPECT_THAT(reset([](Contract&, Delivered& d) { d.total_rows = -1; }),
              HasSubstr("more rows are counted"));
  EXPECT_THAT(reset([](Contract&, Delivered& d) { d.ids[1] = 6; }), HasSubstr("no expert slot"));
  EXPECT_THAT(reset([](Contract& c, Delivered& d) {
                c.masked = MaskSpelling::kCallerId;
                d.total_rows.reset();
              }),
              HasSubstr("sanitise their ids first"));
  EXPECT_THAT(reset([](Contract& c, Delivered& d) {
                c.ids = ReceivedIds::kAbsent;
                c.weights = ReceivedWeights::kDenseByExpert;
                d.weights.assign(36, 1.f);
                d.weight_cols = 6;
              }),
              HasSubstr("weights for too many experts"));
  EXPECT_THAT(reset([](Contract& c, Delivered& d) {
                c.shape = d.shape = RowShape::kExpertMajorCompact;
                d.zone_begin = {0, 2, 2};
                d.zone_end = {2, 2, 7};
              }),
              HasSubstr("rows of local expert 2 do not lie in the buffers"));
}

TEST(DeliveredRows, RowsOfSeveralExpertsAreRepeatedAndSummedBack) {
  const Contract contract = Flat();
  const Delivered delivered = FlatRows();
  const Factors factors(3);
  const auto ops = MakeReferenceOps();
  Scratch scratch;
  DeliveredRows rows(contract, kShape, 1);
  // The second round would show what the first left behind.
  for (const bool run_weighs : {true, false}) {
    ASSERT_TRUE(rows.Reset(delivered).ok());
    EXPECT_THAT(rows.Permute(RowShape::kExpertMajorPadded).message(),
                HasSubstr("grouping rows by expert needs local ids"));
    ASSERT_TRUE(rows.RemapIds(SlotSpace::kLocal).ok());
    ASSERT_TRUE(rows.Permute(RowShape::kExpertMajorPadded).ok());
    EXPECT_THAT(rows.rows(), ElementsAre(1, 0, 1));
    EXPECT_THAT(rows.offsets(), ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(rows.ids(), IsEmpty());
    EXPECT_THAT(rows.RemapIds(SlotSpace::kGlobal).message(), HasSubstr("have no ids to map"));
    EXPECT_THAT(rows.Permute(RowShape::kFlat).message(),
                HasSubstr("no permutation of rows from expert_major_padded to flat"));
    EXPECT_EQ(rows.PermuteResults(RowShape::kFlat, false).code(), StatusCode::kInternal);
    EXPECT_EQ(rows.Results().status().code(), StatusCode::kInternal);
    ASSERT_TRUE(rows.Run(*ops, scratch, factors.experts, run_weighs).ok());
    EXPECT_EQ(rows.Permute(RowShape::kExpertMajorCompact).code(), StatusCode::kInternal);
    EXPECT_THAT(rows.Results().status().message(),
                HasSubstr("combine takes flat rows, the experts return expert_major_padded rows"));
    ASSERT_TRUE(rows.PermuteResults(RowShape::kFlat, !run_weighs).ok());
    EXPECT_THAT(rows.PermuteResults(RowShape::kFlat, true).message(), HasSubstr("summed already"));
    EXPECT_THAT(rows.PermuteResults(RowShape::kExpertMajorPadded, false).message(),
                HasSubstr("no permutation of results from flat to expert_major_padded"));
    const auto results = rows.Results();
    ASSERT_TRUE(results.ok());
    ASSERT_EQ(results->size(), 6u);
    EXPECT_NEAR((*results)[0], .5f * Expert(1, 1), 1e-6);
    EXPECT_NEAR((*results)[1], .25f * Expert(2, 2) + .75f * Expert(0, 2), 1e-6);
    EXPECT_THAT(results->subspan(2), ElementsAre(0, 0, 0, 0));
    EXPECT_EQ(rows.Results().status().code(), StatusCode::kInternal);
  }
}

TEST(DeliveredRows, RunnersRefuseRowsTheyCannotRead) {
  const Delivered delivered = FlatRows();
  const Factors factors(3);
  const auto ops = MakeReferenceOps();
  Scratch scratch;
  Contract contract = Flat();
  DeliveredRows rows(contract, kShape, 1);
  EXPECT_EQ(rows.Run(*ops, scratch, factors.experts, false).code(), StatusCode::kInternal);
  ASSERT_TRUE(rows.Reset(delivered).ok());
  EXPECT_THAT(rows.Run(*ops, scratch, factors.experts, true).message(),
              HasSubstr("the runner reads local ids, rows have global ids"));
  ASSERT_TRUE(rows.Permute(RowShape::kRankMajorPadded).ok());
  EXPECT_THAT(rows.Run(*ops, scratch, factors.experts, true).message(),
              HasSubstr("no runner reads rank_major_padded rows"));

  contract = {.name = "padded",
              .shape = RowShape::kExpertMajorPadded,
              .order = RowOrder::kExpertThenSource,
              .counts = {Counts::kDevExpert},
              .rows_bound = RowsBound::kLocalRanksTokens,
              .weighting = Weighting::kLibraryAtSource};
  Delivered padded{.shape = RowShape::kExpertMajorPadded,
                   .capacity = 18,
                   .rows = std::vector<float>(18, kNan),
                   .expert_rows = {1, 0, 1}};
  padded.rows[0] = 1;
  padded.rows[12] = 2;
  DeliveredRows unweighted(contract, kShape, 1);
  ASSERT_TRUE(unweighted.Reset(padded).ok());
  EXPECT_THAT(unweighted.Run(*ops, scratch, factors.experts, true).message(),
              HasSubstr("no router weights were delivered"));
  ASSERT_TRUE(unweighted.Run(*ops, scratch, factors.experts, false).ok());
  EXPECT_THAT(unweighted.PermuteResults(RowShape::kExpertMajorPadded, true).message(),
              HasSubstr("no router weights were delivered"));
  const auto results = unweighted.Results();
  ASSERT_TRUE(results.ok());
  std::vector<float> want(18, 0.f);
  want[0] = Expert(0, 1);
  want[12] = Expert(2, 2);
  EXPECT_THAT(*results, ElementsAreArray(want));
}

TEST(DeliveredRows, AMistakenReaderSeesTheTailOrItsMask) {
  const Contract contract = Flat();
  const Delivered delivered = FlatRows();
  const Factors factors(3);
  const auto ops = MakeReferenceOps();
  Scratch scratch;
  for (const bool masked : {false, true}) {
    DeliveredRows rows(contract, kShape, 1, /*read_too_far=*/true);
    ASSERT_TRUE(rows.Reset(delivered).ok());
    ASSERT_TRUE(rows.RemapIds(SlotSpace::kLocal).ok());
    if (masked) rows.MaskTail();
    ASSERT_TRUE(rows.Run(*ops, scratch, factors.experts, true).ok());
    const auto results = rows.Results();
    ASSERT_TRUE(results.ok());
    EXPECT_NEAR((*results)[0], .5f * Expert(1, 1), 1e-6);
    EXPECT_EQ(std::isnan((*results)[1]), !masked);
    EXPECT_TRUE(!masked || (*results)[1] == 0.f);
  }
}

// Rows grouped by expert are the reference's work list, for every contract and any routing.
RC_GTEST_PROP(DeliveredRowsProperty, GroupedRowsAreTheWorkList, ()) {
  std::vector<Contract> contracts;
  std::ranges::copy_if(AllContracts(), std::back_inserter(contracts), [](const Contract& c) {
    return c.shape != RowShape::kNone && c.shape != RowShape::kFused;
  });
  const Contract c = *rc::gen::elementOf(contracts);
  ExchangeShape shape{.ranks = *rc::gen::inRange(1, 5),
                      .slots = *rc::gen::inRange(1, 6),
                      .hidden = 1,
                      .capacity = 6};
  shape.top_k = *rc::gen::inRange(1, std::min(shape.total_slots(), 4) + 1);
  std::mt19937 random(*rc::gen::inRange<unsigned>(0, 1000));
  const int rows = *rc::gen::inRange(0, 7);
  std::vector<RankInput> inputs(shape.ranks);
  std::vector<int32_t> slots(shape.total_slots());
  std::iota(slots.begin(), slots.end(), 0);
  for (RankInput& in : inputs) {
    const auto tokens = c.limits.equal_tokens ? rows : static_cast<int>(random() % 7);
    in.x.assign(tokens, 1.f);
    for (int t = 0; t < tokens; ++t) {
      std::ranges::shuffle(slots, random);
      for (int k = 0; k < shape.top_k; ++k) {
        const bool masked = c.negative_ids == NegativeIds::kSkip && random() % 4 == 0;
        in.ids.push_back(masked ? -1 : slots[k]);
        in.weights.push_back(static_cast<float>(random() % 3));
      }
    }
  }
  auto delivered = OracleDispatch(c, shape, inputs);
  RC_ASSERT(delivered.ok());
  for (int r = 0; r < shape.ranks; ++r) {
    Delivered& d = (*delivered)[r];
    if (c.masked == MaskSpelling::kCallerId) {
      d.sanitised = -1;
      for (size_t i = 0; i < d.ids.size(); ++i) {
        if (d.origins[i / shape.top_k].source < 0) d.ids[i] = -1;
      }
    }
    const auto list = BuildWorkList(c, shape, r, d);
    RC_ASSERT(list.ok());
    DeliveredRows grouped(c, shape, r);
    RC_ASSERT(grouped.Reset(d).ok());
    if (c.ids == ReceivedIds::kGlobal) RC_ASSERT(grouped.RemapIds(SlotSpace::kLocal).ok());
    RC_ASSERT(std::ranges::equal(grouped.rows(), list->valid));
    RC_ASSERT(grouped.Permute(RowShape::kExpertMajorCompact).ok());
    RC_ASSERT(std::ranges::equal(grouped.rows(), list->rows));
    RC_ASSERT(std::ranges::equal(grouped.offsets(), list->offsets));
  }
}

}  // namespace
}  // namespace signalbox::delivered_rows_test
