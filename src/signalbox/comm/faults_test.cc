// SPDX-License-Identifier: Apache-2.0
//
// A rank that takes another path ends every rank, with an error that names what differs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "signalbox/comm/conformance.h"
#include "signalbox/comm/fakes.h"
#include "signalbox/comm/thread_world.h"

namespace signalbox {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Short where the deadline is what must end the ranks; long elsewhere, so that a busy machine does
// not.
constexpr std::chrono::milliseconds kShort(400), kLong(30'000), kLate(1000);

std::vector<RankId> Ranks(int n) {
  std::vector<RankId> all;
  for (int r = 0; r < n; ++r) all.push_back(RankId(r));
  return all;
}

// Like RunRanks, but nobody is told when a rank returns: what each rank sees by itself.
std::vector<Status> RunAlone(int n, std::chrono::milliseconds deadline,
                             const std::function<Status(Communicator&)>& fn) {
  auto ranks = ThreadWorld::Create(n, {.deadline = deadline}).value();
  std::vector<Status> seen(n);
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] { seen[r] = fn(*ranks[r]); });
  }
  for (std::thread& t : threads) t.join();
  return seen;
}

// Calls 0 .. 4 of every rank.
Status Program(Communicator& comm) {
  const int n = comm.size();
  const std::vector<RankId> all = Ranks(n);
  std::vector<float> data(64 * n, 1.0f), part(64);
  const std::vector<int64_t> floats(n, 64), bytes(n, 256);
  SB_RETURN_IF_ERROR(comm.AllReduceSum(all, data));
  SB_RETURN_IF_ERROR(comm.ReduceScatterSum(all, data, floats, part));
  SB_RETURN_IF_ERROR(comm.AllGather(all, BytesOf(part), bytes, WritableBytesOf(data)));
  std::vector<float> recv(data.size());
  SB_RETURN_IF_ERROR(comm.AllToAll(all, BytesOf(data), bytes, WritableBytesOf(recv), bytes));
  return comm.Barrier(all);
}

TEST(Faults, EndEveryRankWithTheReason) {
  struct Expectation {
    Fault fault;
    StatusCode code;                // on every rank but the faulty one when it dies
    std::vector<std::string> says;  // parts of the message
  };
  const Expectation expectations[] = {
      {{Fault::kDie, 0}, StatusCode::kDeadlineExceeded, {"for rank 1", "all-reduce over"}},
      {{Fault::kDie, 3}, StatusCode::kDeadlineExceeded, {"rank 1 outside any", "all-to-all over"}},
      {{Fault::kDelay, 2, kLate}, StatusCode::kDeadlineExceeded, {"rank 1 outside", "all-gather"}},
      {{Fault::kSkip, 0}, StatusCode::kInternal, {"all-reduce over", "reduce-scatter over"}},
      {{Fault::kSkip, 2}, StatusCode::kInternal, {"all-gather over", "all-to-all over"}},
      {{Fault::kSkip, 3}, StatusCode::kInternal, {"all-to-all over", "barrier over"}},
      {{Fault::kWrongSize, 0}, StatusCode::kInternal, {"all-reduce over", "252"}},
      {{Fault::kWrongSize, 1}, StatusCode::kInternal, {"reduce-scatter over", "252"}},
      {{Fault::kWrongSize, 2}, StatusCode::kInternal, {"all-gather over", "252"}},
      {{Fault::kWrongSize, 3}, StatusCode::kInternal, {"all-to-all over", "252"}},
  };
  for (int n : {2, 4}) {
    for (const Expectation& e : expectations) {
      const bool late = e.code == StatusCode::kDeadlineExceeded;
      const std::vector<Status> seen = RunAlone(n, late ? kShort : kLong, [&](Communicator& comm) {
        FaultyCommunicator faulty(comm, comm.rank().value() == 1 ? e.fault : Fault{});
        return Program(faulty);
      });
      for (int r = 0; r < n; ++r) {
        const std::string where =
            fmt::format("fault {} at call {}, rank {} of {}: {}", int(e.fault.kind), e.fault.call,
                        r, n, seen[r].ToString());
        if (r == 1 && e.fault.kind == Fault::kDie) {
          EXPECT_THAT(seen[r].message(), HasSubstr("died on purpose")) << where;
          continue;
        }
        EXPECT_EQ(seen[r].code(), e.code) << where;
        for (const std::string& part : e.says) {
          // 64 floats per rank: an all-reduce is of 256 n bytes.
          const bool whole = part == "252" && e.fault.call == 0;
          EXPECT_THAT(seen[r].message(), HasSubstr(whole ? fmt::format("{}", 256 * n - 4) : part))
              << where;
        }
      }
    }
  }
}

TEST(Faults, ASkippedLastCallEndsTheOthers) {
  const std::vector<Status> seen = RunAlone(3, kShort, [&](Communicator& comm) {
    FaultyCommunicator faulty(
        comm, {.kind = comm.rank().value() == 1 ? Fault::kSkip : Fault::kNone, .call = 4});
    return Program(faulty);
  });
  EXPECT_TRUE(seen[1].ok());
  for (int r : {0, 2}) {
    EXPECT_EQ(seen[r].code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(seen[r].message(), AllOf(HasSubstr("rank 1 outside"), HasSubstr("barrier over")));
  }
}

TEST(Faults, AFlippedBitArrives) {
  for (const bool flip : {false, true}) {
    std::vector<float> result[2];
    const std::vector<Status> seen = RunAlone(2, kLong, [&](Communicator& comm) {
      const int me = comm.rank().value();
      FaultyCommunicator faulty(comm, {.kind = flip && me == 1 ? Fault::kFlip : Fault::kNone});
      const std::vector<float> mine(8, 1.0f);
      result[me].resize(16);
      return faulty.AllGather(Ranks(2), BytesOf(mine), std::vector<int64_t>{32, 32},
                              WritableBytesOf(result[me]));
    });
    EXPECT_TRUE(seen[0].ok() && seen[1].ok());
    EXPECT_EQ(result[0] == std::vector<float>(16, 1.0f), !flip);
    EXPECT_EQ(result[0], result[1]);
  }
}

// One call per rank, different in one respect.
using CallOfRank = std::function<Status(Communicator&, int rank)>;

TEST(Faults, DifferentPathsAreNamed) {
  const auto reduce = [](Communicator& comm, std::vector<RankId> group, int64_t n) {
    std::vector<float> data(n);
    return comm.AllReduceSum(group, data);
  };
  struct Difference {
    const char* name;
    CallOfRank call;
    std::vector<std::string> says;
  };
  const Difference differences[] = {
      {"size",
       [&](auto& comm, int r) { return reduce(comm, Ranks(3), r == 1 ? 5 : 4); },
       {"gives {16, 16, 16}", "gives {20, 20, 20}"}},
      {"group",
       [&](auto& comm, int r) { return reduce(comm, Ranks(r == 1 ? 2 : 3), 4); },
       {"over ranks {0, 1},", "over ranks {0, 1, 2},"}},
      {"operation",
       [&](auto& comm, int r) {
         return r == 1 ? comm.Barrier(Ranks(3)) : reduce(comm, Ranks(3), 4);
       },
       {"barrier over", "all-reduce over"}},
      {"root",
       [&](auto& comm, int r) {
         std::vector<float> data(4);
         return comm.Broadcast(Ranks(3), RankId(r == 1 ? 1 : 0), WritableBytesOf(data));
       },
       {"broadcast from rank 0", "broadcast from rank 1"}},
      {"agreement",
       [&](auto& comm, int r) {
         std::vector<int64_t> v(1);
         return comm.Agree(Ranks(3), r == 1 ? Agreement::kMax : Agreement::kMin, v);
       },
       {"agree on the minimum", "agree on the maximum"}},
      {"step",
       [&](auto& comm, int r) {
         comm.set_step(r == 1 ? 12 : 11);
         return reduce(comm, Ranks(3), 4);
       },
       {"at step 11", "at step 12"}},
      {"counts of one pair",
       [&](auto& comm, int r) {
         std::vector<std::byte> send(3), recv(r == 2 ? 4 : 3);
         const std::vector<int64_t> ones(3, 1), wrong{1, 2, 1};
         return comm.AllToAll(Ranks(3), send, ones, recv, r == 2 ? wrong : ones);
       },
       {"takes {1, 2, 1}", "gives {1, 1, 1}"}},
  };
  for (const Difference& d : differences) {
    const std::vector<Status> seen =
        RunAlone(3, kLong, [&](Communicator& comm) { return d.call(comm, comm.rank().value()); });
    for (const Status& s : seen) {
      EXPECT_EQ(s.code(), StatusCode::kInternal) << d.name << ": " << s.ToString();
      for (const std::string& part : d.says) EXPECT_THAT(s.message(), HasSubstr(part)) << d.name;
    }
  }
}

TEST(Faults, ACircleOfGroupsEndsAtTheDeadline) {
  // 0 waits for 1, 1 for 2, 2 for 0.
  const std::vector<Status> seen = RunAlone(3, kShort, [&](Communicator& comm) {
    const int me = comm.rank().value();
    const int next = (me + 1) % 3;
    return comm.Barrier(std::vector{RankId(std::min(me, next)), RankId(std::max(me, next))});
  });
  for (const Status& s : seen) EXPECT_FALSE(s.ok());
}

// A rank that waits for work waits as long as there is none, but not for one that has gone.
TEST(Faults, AnIdleBroadcastHasNoDeadline) {
  for (const bool leaves : {false, true}) {
    const auto seen = RunAlone(3, kShort, [&](Communicator& comm) -> Status {
      std::vector<std::byte> data(8);
      if (comm.rank() != RankId(0)) return comm.Broadcast(Ranks(3), RankId(0), data, /*idle=*/true);
      std::this_thread::sleep_for(kLate);
      if (leaves) comm.Abort(Internal({.what = "no more work"}));
      return leaves ? OkStatus() : comm.Broadcast(Ranks(3), RankId(0), data);
    });
    for (int r = 1; r < 3; ++r) EXPECT_EQ(seen[r].ok(), !leaves) << seen[r].ToString();
  }
}

TEST(Faults, AnEndedWorldStaysEnded) {
  const std::vector<Status> seen = RunAlone(2, kLong, [&](Communicator& comm) {
    if (comm.rank().value() == 0) comm.Abort(Cancelled({.what = "stopped by the user"}));
    const Status first = comm.Barrier(Ranks(2));
    const Status second = comm.Barrier(std::vector{comm.rank()});
    EXPECT_EQ(first.ToString(), second.ToString());
    return second;
  });
  for (const Status& s : seen) {
    EXPECT_EQ(s.code(), StatusCode::kUnavailable);
    EXPECT_THAT(s.message(), HasSubstr("rank 0 ended the run: found CANCELLED: stopped by"));
  }
}

// Buffers die with the call that failed, while other ranks may be in the middle of reading them.
TEST(Faults, BuffersAreNotReadAfterAFailedCall) {
  for (int run = 0; run < 50; ++run) {
    std::atomic<int> calls{0};
    const Status s = RunRanks(4, {}, [&](Communicator& comm) -> Status {
      if (comm.rank().value() == 3) {
        while (calls < run % 10) std::this_thread::yield();
        return Cancelled({.what = "enough"});
      }
      for (;;) {
        std::vector<float> data(50000, 1.0f);
        if (comm.rank().value() == 0) ++calls;
        SB_RETURN_IF_ERROR(comm.AllReduceSum(Ranks(3), data));
      }
    });
    EXPECT_EQ(s.code(), StatusCode::kCancelled) << s.ToString();
  }
}

TEST(Counting, CountsCallsAndBytes) {
  const std::vector<Status> seen = RunAlone(2, kLong, [&](Communicator& comm) -> Status {
    CountingCommunicator counting(comm);
    SB_RETURN_IF_ERROR(Program(counting));
    SB_RETURN_IF_ERROR(counting.Barrier(Ranks(2)));
    using Count = CountingCommunicator::Count;
    EXPECT_EQ(counting.count(OpKind::kAllReduceSum), (Count{1, 512, 512}));
    EXPECT_EQ(counting.count(OpKind::kReduceScatterSum), (Count{1, 256, 256}));
    EXPECT_EQ(counting.count(OpKind::kAllGather), (Count{1, 256, 256}));
    EXPECT_EQ(counting.count(OpKind::kAllToAll), (Count{1, 256, 256}));
    EXPECT_EQ(counting.count(OpKind::kBarrier), (Count{2, 0, 0}));
    std::vector<float> data(4);
    SB_RETURN_IF_ERROR(counting.Broadcast(Ranks(2), RankId(1), WritableBytesOf(data)));
    const bool root = comm.rank() == RankId(1);
    EXPECT_EQ(counting.count(OpKind::kBroadcast), (root ? Count{1, 16, 0} : Count{1, 0, 16}));
    return OkStatus();
  });
  for (const Status& s : seen) EXPECT_TRUE(s.ok()) << s.ToString();
}

}  // namespace
}  // namespace signalbox
