// SPDX-License-Identifier: Apache-2.0
#include "signalbox/a2a/measure.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "signalbox/comm/fakes.h"
#include "signalbox/comm/thread_world.h"

namespace signalbox {
namespace {

TEST(MeasureExchangeTest, ReportsTheTrafficOfTheContract) {
  for (const Contract& c : AllContracts()) {
    if (c.shape == RowShape::kNone || c.own_router) continue;
    SCOPED_TRACE(ContractId(c));
    const ExchangeShape shape{.ranks = 2, .slots = 2, .hidden = 8, .top_k = 4, .capacity = 16};
    const Status status = RunRanks(2, {}, [&](Communicator& comm) -> Status {
      CountingCommunicator counting(comm);
      SB_ASSIGN_OR_RETURN(auto transport,
                          Transport::Create(c, counting, {RankId(0), RankId(1)}, shape));
      SB_ASSIGN_OR_RETURN(const ExchangeTiming timing,
                          MeasureExchange(*transport, {.tokens = 16, .repeats = 2}));
      // Every token uses all four slots: both ranks, two experts on each.
      const int64_t there = transport->contract().dedup_wire ? 2 : 4;
      const int64_t back = transport->contract().weighting == Weighting::kLibraryAtSource ? 4 : 2;
      EXPECT_EQ(timing.dispatched.rows, 16 * there);
      EXPECT_EQ(timing.dispatched.remote_rows, 8 * there);
      EXPECT_EQ(timing.dispatched.PayloadBytes(), 16 * there * 8 * 4);
      EXPECT_EQ(timing.combined.rows, transport->fused() ? 0 : 16 * back);
      EXPECT_EQ(timing.routed.sent, 16 * there);
      EXPECT_EQ(timing.routed.back_away, 8 * back);
      EXPECT_EQ(timing.calls, 3);
      EXPECT_EQ(counting.count(OpKind::kAllToAll).sent, 3 * timing.BytesByFormula());
      return OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

// Three ranks of two slots each; rank 1 counts.
TEST(CountRoutedRowsTest, DedupsPerRankWhereTheContractDoes) {
  const ExchangeShape shape{.ranks = 3, .slots = 2, .top_k = 3};
  const std::vector<int32_t> ids = {0,  1,  2,   // ranks 0, 0, 1
                                    4,  5,  -1,  // rank 2 twice
                                    -1, -1, 3,   // itself
                                    -1, -1, -1};
  Contract contract;
  contract.dedup_wire = true;
  contract.weighting = Weighting::kCaller;
  const RoutedRows dedup = CountRoutedRows(contract, shape, 1, ids);
  EXPECT_EQ(dedup.sent, 4);
  EXPECT_EQ(dedup.sent_away, 2);
  EXPECT_EQ(dedup.back, 4);
  EXPECT_EQ(dedup.back_away, 2);
  contract.dedup_wire = false;
  contract.weighting = Weighting::kLibraryAtSource;
  const RoutedRows each = CountRoutedRows(contract, shape, 1, ids);
  EXPECT_EQ(each.sent, 6);
  EXPECT_EQ(each.sent_away, 4);
  EXPECT_EQ(each.back, 6);
  EXPECT_EQ(each.back_away, 4);
}

}  // namespace
}  // namespace signalbox
