// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/signals.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

namespace signalbox::signals_test {
namespace {

using std::chrono::milliseconds;

TEST(Signals, TheFirstIsToldAndTheSecondEndsTheProcess) {
  {
    const auto signals = Signals::Catch();
    ASSERT_TRUE(signals.ok()) << signals.status().ToString();
    EXPECT_FALSE((*signals)->Wait(milliseconds(0)));
    std::raise(SIGTERM);
    EXPECT_TRUE((*signals)->Wait(milliseconds(0)));
    EXPECT_TRUE((*signals)->Wait(milliseconds(0)));  // it stays so
  }
  EXPECT_EXIT(
      {
        const auto signals = Signals::Catch();
        std::raise(SIGINT);
        if ((*signals)->Wait(milliseconds(0))) std::raise(SIGTERM);
        std::exit(0);
      },
      testing::ExitedWithCode(128 + SIGTERM), "");
}

}  // namespace
}  // namespace signalbox::signals_test
