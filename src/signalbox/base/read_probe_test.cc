// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/read_probe.h"

#include <gtest/gtest.h>

#include <cmath>

namespace signalbox {
namespace {

// Word i is i: a pass that leaves a byte out has another sum.
TEST(ReadProbe, ReadsEveryByteAtAnyNumberOfThreads) {
  for (const int threads : {1, 2, 3}) {
    for (const int64_t bytes : {64, 1000, 5 << 20}) {
      auto probe = ReadProbe::Create({.threads = threads, .bytes = bytes});
      ASSERT_TRUE(probe.ok()) << probe.status().ToString();
      EXPECT_GE((*probe)->bytes(), bytes);
      const double rate = (*probe)->Measure();
      EXPECT_TRUE(std::isfinite(rate));
      EXPECT_GT(rate, 0);
      const auto words = static_cast<uint64_t>((*probe)->bytes() / 8);
      EXPECT_EQ((*probe)->sum(), words * (words - 1) / 2);
    }
  }
}

TEST(ReadProbe, MoreThanThereIsIsAnError) {
  EXPECT_EQ(ReadProbe::Create({.bytes = int64_t{1} << 60}).status().code(),
            StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace signalbox
