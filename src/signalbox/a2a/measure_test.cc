// SPDX-License-Identifier: Apache-2.0
#include "signalbox/a2a/measure.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "signalbox/comm/thread_world.h"

namespace signalbox {
namespace {

TEST(MeasureExchangeTest, ReportsTheTrafficOfTheContract) {
  for (const Contract& c : AllContracts()) {
    if (c.shape == RowShape::kNone || c.own_router) continue;
    SCOPED_TRACE(ContractId(c));
    const ExchangeShape shape{.ranks = 2, .slots = 2, .hidden = 8, .top_k = 4, .capacity = 16};
    const Status status = RunRanks(2, {}, [&](Communicator& comm) -> Status {
      SB_ASSIGN_OR_RETURN(auto transport,
                          Transport::Create(c, comm, {RankId(0), RankId(1)}, shape));
      const auto timing = MeasureExchange(*transport, {.tokens = 16, .repeats = 2});
      EXPECT_EQ(timing.ok(), c.shape != RowShape::kFused);
      if (!timing.ok()) return OkStatus();
      // Every token uses all four slots: both ranks, two experts on each.
      const int64_t per_token = c.dedup_wire ? 2 : 4;
      EXPECT_EQ(timing->dispatched.rows, 16 * per_token);
      EXPECT_EQ(timing->dispatched.remote_rows, 8 * per_token);
      EXPECT_EQ(timing->dispatched.PayloadBytes(), 16 * per_token * 8 * 4);
      const int64_t back = c.weighting == Weighting::kLibraryAtSource ? 4 : 2;
      EXPECT_EQ(timing->combined.rows, 16 * back);
      return OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

}  // namespace
}  // namespace signalbox
