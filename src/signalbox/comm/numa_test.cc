// SPDX-License-Identifier: Apache-2.0
#include "signalbox/comm/numa.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace signalbox {
namespace {

TEST(CpuList, ParsesWhatTheKernelWrites) {
  EXPECT_EQ(ParseCpuList("0-3,8,10-11\n").value(), (CpuSet{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(ParseCpuList("5").value(), CpuSet{5});
  EXPECT_EQ(ParseCpuList("\n").value(), CpuSet{});
}

TEST(CpuList, RefusesAnythingElse) {
  for (const char* text : {"a", "1,", ",1", "3-1", "1-", "-1", "1,,2", "2,1", "1 2", "0-70000",
                           "99999999999999999999", "0-3,2", "0x1"}) {
    EXPECT_EQ(ParseCpuList(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
}

TEST(NumaNodes, AreReadInNumericOrder) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(testing::TempDir()) / "signalbox_numa_test";
  fs::remove_all(root);
  for (const auto& [name, cpus] : {std::pair{"node10", "8-9"},
                                   {"node2", "4-5,7"},
                                   {"node0", "0-1"},
                                   {"node3", ""},
                                   {"nodeX", "1"},
                                   {"power", "1"}}) {
    fs::create_directories(root / name);
    std::ofstream(root / name / "cpulist") << cpus << "\n";
  }
  fs::create_directories(root / "node11");  // no list
  EXPECT_EQ(NumaNodes(root), (std::vector<CpuSet>{{0, 1}, {4, 5, 7}, {8, 9}}));
  EXPECT_TRUE(NumaNodes(root / "absent").empty());
  fs::remove_all(root);
}

TEST(BindThisThread, NeedsACpuThatMayBeUsed) {
  std::thread([] {
    EXPECT_FALSE(BindThisThread({}));
    EXPECT_FALSE(BindThisThread({60000}));
#if defined(__linux__)
    CpuSet all;
    for (int c = 0; c < 1024; ++c) all.push_back(c);
    EXPECT_TRUE(BindThisThread(all));
#endif
  }).join();
}

}  // namespace
}  // namespace signalbox
