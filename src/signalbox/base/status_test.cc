// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/status.h"

#include <gtest/gtest.h>

namespace signalbox {
namespace {

Result<int> Half(int n) {
  if (n % 2 != 0) {
    return InvalidArgument({.what = "odd number",
                            .where = "--n",
                            .found = std::to_string(n),
                            .expected = "an even number",
                            .remedy = "add one"});
  }
  return n / 2;
}

Result<int> Quarter(int n) {
  SB_ASSIGN_OR_RETURN(int h, Half(n));
  return Half(h);
}

TEST(Status, MessageHasWhatWhereFoundExpectedRemedy) {
  EXPECT_EQ(Half(3).status().message(),
            "odd number (--n): found 3, expected an even number; add one");
  EXPECT_EQ(ExitCode(Half(3).status().code()), 2);
}

TEST(Status, MacrosPassValuesAndErrorsOn) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_FALSE(Quarter(6).ok());
  EXPECT_TRUE(Quarter(4).status().ok());
}

TEST(Status, AtPutsTheOuterPlaceFirst) {
  EXPECT_EQ(Half(3).status().At("config.yaml").detail().where, "config.yaml, --n");
  EXPECT_TRUE(OkStatus().At("anywhere").ok());
}

TEST(CheckDeathTest, PrintsConditionAndContext) {
  EXPECT_DEATH(SB_CHECK(1 == 2) << "rank 3", "1 == 2.*rank 3");
}

}  // namespace
}  // namespace signalbox
