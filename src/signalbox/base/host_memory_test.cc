// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace signalbox {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kKibi = 1024;

using Files = std::map<std::string, std::string>;

// A made-up root directory.
class Root {
 public:
  explicit Root(const Files& files)
      : path_(fs::temp_directory_path() / ("signalbox_memory_" + std::to_string(getpid()))) {
    fs::remove_all(path_);
    for (const auto& [name, text] : files) {
      fs::create_directories((path_ / name).parent_path());
      std::ofstream(path_ / name) << text;
    }
  }
  ~Root() { fs::remove_all(path_); }
  Result<HostMemory> Read() const { return ReadHostMemory(path_.string()); }

 private:
  fs::path path_;
};

const std::string kMeminfo =
    "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    600 kB\n";

void ExpectMemory(const Root& root, int64_t total, int64_t available, const std::string& source) {
  const auto memory = root.Read();
  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  EXPECT_EQ(memory->total, total);
  EXPECT_EQ(memory->available, available);
  EXPECT_EQ(memory->source, source);
}

TEST(HostMemory, WithoutAGroupIsTheMachines) {
  ExpectMemory(Root({{"proc/meminfo", kMeminfo}}), 1000 * kKibi, 600 * kKibi, "the machine");
  ExpectMemory(Root({{"proc/meminfo", kMeminfo},
                     {"proc/self/cgroup", "0::/a\n"},
                     {"sys/fs/cgroup/a/memory.max", "max\n"}}),
               1000 * kKibi, 600 * kKibi, "the machine");
}

TEST(HostMemory, IsTheSmallestLimitAroundTheProcess) {
  ExpectMemory(Root({{"proc/meminfo", kMeminfo},
                     {"proc/self/cgroup", "0::/a/b\n"},
                     {"sys/fs/cgroup/a/memory.max", "409600\n"},
                     {"sys/fs/cgroup/a/memory.current", "204800\n"},
                     {"sys/fs/cgroup/a/memory.stat",
                      "anon 102400\nfile 102400\nactive_file 2400\ninactive_file 100000\n"},
                     {"sys/fs/cgroup/a/b/memory.max", "512000\n"}}),
               409600, 409600 - 204800 + 102400, "control group /a");
}

// A container's own group is often the root of what it sees.
TEST(HostMemory, AGroupSeenAsTheRootCounts) {
  ExpectMemory(Root({{"proc/meminfo", kMeminfo},
                     {"proc/self/cgroup", "0::/docker/123\n"},
                     {"sys/fs/cgroup/memory.max", "102400\n"}}),
               102400, 102400, "control group /");
}

TEST(HostMemory, VersionOne) {
  ExpectMemory(
      Root({{"proc/meminfo", kMeminfo},
            {"proc/self/cgroup", "9:name=systemd:/\n4:memory,hugetlb:/x\n1:cpu:/\n0::/\n"},
            {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
            {"sys/fs/cgroup/memory/x/memory.limit_in_bytes", "204800\n"},
            {"sys/fs/cgroup/memory/x/memory.usage_in_bytes", "300000\n"},
            {"sys/fs/cgroup/memory/x/memory.stat", "active_file 9\ntotal_active_file 100000\n"}}),
      204800, 4800, "control group /x");
}

TEST(HostMemory, DamagedTablesAreErrorsOrIgnored) {
  EXPECT_EQ(Root(Files()).Read().status().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(Root(Files{{"proc/meminfo", "MemTotal: lots\n"}}).Read().ok());
  ExpectMemory(Root({{"proc/meminfo", kMeminfo},
                     {"proc/self/cgroup", ":\n::\n0::\nx\n0::nowhere\n0::/a\n"},
                     {"sys/fs/cgroup/a/memory.max", "-1\n"}}),
               1000 * kKibi, 600 * kKibi, "the machine");
}

TEST(HostMemory, OfThisMachine) {
  const auto memory = ReadHostMemory();
  if (!memory.ok()) GTEST_SKIP() << memory.status().ToString();
  EXPECT_GT(memory->total, 0);
  EXPECT_GT(memory->available, 0);
  EXPECT_LE(memory->available, memory->total);
}

}  // namespace
}  // namespace signalbox
