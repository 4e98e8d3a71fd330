// SPDX-License-Identifier: Apache-2.0
#include "signalbox/comm/thread_world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "signalbox/comm/conformance.h"

namespace signalbox {
namespace {

using ::testing::HasSubstr;

std::vector<RankId> World(int n) {
  std::vector<RankId> all;
  for (int r = 0; r < n; ++r) all.push_back(RankId(r));
  return all;
}

TEST(ThreadWorld, EveryOperationOnEveryGroupMatchesTheModel) {
  for (int n = 1; n <= 8; ++n) {
    const Status s = RunRanks(n, {}, [&](Communicator& comm) {
      uint32_t seed = 0;
      for (const auto& axes : Factorisations(n)) {
        for (unsigned chosen = 0; chosen < 8; ++chosen) {
          SB_RETURN_IF_ERROR(CheckCase(comm, MakeCase(n, axes, chosen, ++seed)));
        }
      }
      return OkStatus();
    });
    EXPECT_TRUE(s.ok()) << s.ToString();
  }
}

RC_GTEST_PROP(ThreadWorld, AnyCountsMatchTheModel, ()) {
  const int n = *rc::gen::inRange(1, 9);
  const uint32_t seed = *rc::gen::arbitrary<uint32_t>();
  Case c = MakeCase(n, seed);
  for (auto& row : c.counts) {
    for (int64_t& count : row) count = *rc::gen::inRange<int64_t>(0, 300);
  }
  const Status s = RunRanks(n, {}, [&](Communicator& comm) { return CheckCase(comm, c); });
  if (!s.ok()) RC_FAIL(s.ToString());
}

TEST(ThreadWorld, SumsAreTheSameBitsInEveryRun) {
  for (int64_t n : {1000, 20000}) {  // read directly; reduced by parts
    const Case c{.ranks = 4, .axes = {4}, .chosen = 1};
    std::vector<float> first = DataOf(c, 0, RankId(0), n);
    for (int m = 1; m < 4; ++m) {
      const std::vector<float> more = DataOf(c, 0, RankId(m), n);
      for (int64_t i = 0; i < n; ++i) first[i] += more[i];
    }
    const Status s = RunRanks(4, {}, [&](Communicator& comm) {
      const std::vector<float> mine = DataOf(c, 0, comm.rank(), n);
      for (int run = 0; run < 100; ++run) {
        std::vector<float> data = mine;
        if (run % 4 == comm.rank().value()) std::this_thread::yield();
        SB_RETURN_IF_ERROR(comm.AllReduceSum(World(4), data));
        SB_RETURN_IF_ERROR(ExpectSame(data, first, c, "all-reduce"));
      }
      return OkStatus();
    });
    EXPECT_TRUE(s.ok()) << s.ToString();
  }
}

TEST(ThreadWorld, OwnBlockMayBeInPlace) {
  const Status s = RunRanks(3, {}, [](Communicator& comm) {
    const std::vector<int64_t> counts{100, 0, 5}, bytes{400, 0, 20};
    const std::vector<int64_t> begins{0, 100, 100};
    const int me = comm.rank().value();
    std::vector<float> data(105, 1.0f + me);
    const auto own = std::span(data).subspan(begins[me], counts[me]);
    SB_RETURN_IF_ERROR(comm.ReduceScatterSum(World(3), data, counts, own));
    SB_RETURN_IF_ERROR(comm.AllGather(World(3), std::as_bytes(own), bytes, WritableBytesOf(data)));
    return ExpectSame(data, std::vector<float>(105, 6.0f), {}, "in place");
  });
  EXPECT_TRUE(s.ok()) << s.ToString();
}

TEST(ThreadWorld, GroupsDoNotWaitForEachOther) {
  // Ranks 0 and 1 pass 50 barriers while 2 has not made its first call.
  std::atomic<bool> passed{false};
  const Status s = RunRanks(3, {}, [&](Communicator& comm) {
    const std::vector<RankId> pair = World(2);
    if (comm.rank().value() < 2) {
      for (int i = 0; i < 50; ++i) SB_RETURN_IF_ERROR(comm.Barrier(pair));
      if (comm.rank().value() == 0) passed = true;
    } else {
      while (!passed) std::this_thread::yield();
    }
    return comm.Barrier(World(3));
  });
  EXPECT_TRUE(s.ok()) << s.ToString();
}

TEST(ThreadWorld, RefusesImpossibleSizes) {
  EXPECT_EQ(ThreadWorld::Create(0, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ThreadWorld::Create(kMaxThreadRanks + 1, {}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(RunRanks(-1, {}, [](Communicator&) { return OkStatus(); }).code(),
            StatusCode::kInvalidArgument);
}

TEST(RunRanks, ReturnsTheErrorThatCameFirst) {
  std::vector<Status> seen(4);
  const Status s = RunRanks(4, {}, [&](Communicator& comm) -> Status {
    const int me = comm.rank().value();
    SB_RETURN_IF_ERROR(comm.Barrier(World(4)));
    if (me == 2) return BadCheckpoint({.what = "tensor missing", .where = "layer 7"});
    // Ranks 0, 1 wait for rank 2; rank 3 will only ever wait for rank 0.
    const std::vector<RankId> group =
        me == 3 ? std::vector{RankId(0), RankId(3)} : std::vector{RankId(0), RankId(1), RankId(2)};
    return seen[me] = comm.Barrier(group);
  });
  EXPECT_EQ(s.ToString(), "BAD_CHECKPOINT: tensor missing (rank 2, layer 7)");
  for (int r : {0, 1, 3}) {
    EXPECT_EQ(seen[r].code(), StatusCode::kUnavailable);
    EXPECT_THAT(seen[r].message(), HasSubstr("rank 2 ended the run"));
    EXPECT_THAT(seen[r].message(), HasSubstr("tensor missing"));
  }
}

TEST(RunRanks, AnExceptionEndsTheWorld) {
  const Status s = RunRanks(3, {}, [&](Communicator& comm) -> Status {
    if (comm.rank().value() == 1) throw std::runtime_error("no such file");
    return comm.Barrier(World(3));
  });
  EXPECT_EQ(s.code(), StatusCode::kInternal);
  EXPECT_THAT(s.message(), HasSubstr("a rank threw (rank 1): found no such file"));
}

TEST(RunRanks, ARankThatReturnsEarlyEndsTheOthers) {
  const Status s = RunRanks(3, {}, [&](Communicator& comm) {
    return comm.rank().value() == 1 ? OkStatus() : comm.Barrier(World(3));
  });
  EXPECT_EQ(s.code(), StatusCode::kUnavailable);
  EXPECT_THAT(s.message(), HasSubstr("rank 1 has left"));
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(ThreadWorld, WaitingRanksSleep) {
  const double before = CpuSeconds();
  const Status s = RunRanks(5, {}, [&](Communicator& comm) {
    if (comm.rank().value() == 4) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return comm.Barrier(World(5));
  });
  EXPECT_TRUE(s.ok()) << s.ToString();
  EXPECT_LT(CpuSeconds() - before, 0.2) << "four ranks that spin would use 1 s on two cores";
}

}  // namespace
}  // namespace signalbox
