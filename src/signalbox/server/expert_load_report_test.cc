// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/expert_load_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace signalbox::expert_load_report_test {
namespace {

const ExpertLoad kBefore = {
    .layers = {1, 3}, .experts = {{1, 1, 0, 0}, {0, 2, 0, 0}}, .ranks = {{2, 0}, {2, 0}}};
const ExpertLoad kNow = {
    .layers = {1, 3}, .experts = {{3, 1, 2, 2}, {6, 2, 0, 0}}, .ranks = {{4, 4}, {8, 0}}};

TEST(ExpertLoadReport, AWindowIsWhatCameInIt) {
  const ExpertLoad window = Difference(kNow, kBefore);
  EXPECT_THAT(window.experts, testing::ElementsAre(testing::ElementsAre(2, 0, 2, 2),
                                                   testing::ElementsAre(6, 0, 0, 0)));
  EXPECT_THAT(window.ranks,
              testing::ElementsAre(testing::ElementsAre(2, 4), testing::ElementsAre(6, 0)));
  EXPECT_EQ(Difference(kNow, {}).experts, kNow.experts);
}

TEST(ExpertLoadReport, BalanceIsTakenOverLayers) {
  const ExpertBalance balance = BalanceOf(kNow);
  EXPECT_DOUBLE_EQ(balance.imbalance_p50, 0);  // 4 and 4
  EXPECT_DOUBLE_EQ(balance.imbalance_p95, 1);  // 8 and 0
  EXPECT_DOUBLE_EQ(balance.imbalance_max, 1);
  EXPECT_DOUBLE_EQ(balance.hot_expert_share, 0.75);
  const ExpertBalance nothing = BalanceOf(Difference(kNow, kNow));
  EXPECT_DOUBLE_EQ(nothing.imbalance_max, 0);
  EXPECT_DOUBLE_EQ(nothing.hot_expert_share, 0);
  EXPECT_DOUBLE_EQ(BalanceOf({}).imbalance_p95, 0);
}

TEST(ExpertLoadReport, JsonAndCsvHoldEveryNumber) {
  const ExpertLoadWindow window{.seconds = 2.5,
                                .load = {.layers = {3}, .experts = {{5, 0}}, .ranks = {{5}}}};
  EXPECT_EQ(ExpertLoadJson(window),
            R"({"experts":[[5,0]],"imbalance":[0.0],"layers":[3],"ranks":[[5]],)"
            R"("window_seconds":2.5})");
  EXPECT_EQ(ExpertLoadCsv(window),
            "layer,of,index,pairs\n3,expert,0,5\n3,expert,1,0\n3,rank,0,5\n");
  EXPECT_EQ(ExpertLoadJson({}),
            R"({"experts":[],"imbalance":[],"layers":[],"ranks":[],"window_seconds":0.0})");
}

}  // namespace
}  // namespace signalbox::expert_load_report_test
