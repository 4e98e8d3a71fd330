// SPDX-License-Identifier: Apache-2.0
//
// Tests of the MPI communicator. Every rank runs every test, in the same order:
//   mpirun -n 3 comm_mpi_test
//   mpirun -n 2 comm_mpi_test --fail      ends with an error of rank 1
// The tests of faults leave the MPI job alive: each makes a world of its own and breaks only that.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>
#include <sys/resource.h>

#include <thread>

#include "signalbox/comm/conformance.h"
#include "signalbox/comm/fakes.h"
#include "signalbox/comm/mpi_world.h"

namespace signalbox {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Communicator> NewWorld(int deadline_ms) {
  MPI_Barrier(MPI_COMM_WORLD);  // a rank may come late from the test before
  return CreateMpiCommunicator({.deadline = std::chrono::milliseconds(deadline_ms)}).value();
}

std::vector<RankId> All(const Communicator& comm) {
  std::vector<RankId> all;
  for (int r = 0; r < comm.size(); ++r) all.push_back(RankId(r));
  return all;
}

TEST(MpiWorld, IsLaunched) {
  EXPECT_TRUE(MpiLaunched());
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  EXPECT_EQ(MpiProcessesHere(), size);  // the test runs on one host
}

TEST(MpiWorld, EveryOperationOnEveryGroupMatchesTheModel) {
  const auto comm = NewWorld(30000);
  uint32_t seed = 100;
  for (const auto& axes : Factorisations(comm->size())) {
    for (unsigned chosen = 0; chosen < 8; ++chosen) {
      const Status s = CheckCase(*comm, MakeCase(comm->size(), axes, chosen, ++seed));
      ASSERT_TRUE(s.ok()) << s.ToString();
    }
  }
  for (int i = 0; i < 50; ++i) {
    const Status s = CheckCase(*comm, MakeCase(comm->size(), ++seed));
    ASSERT_TRUE(s.ok()) << s.ToString();
  }
}

TEST(MpiWorld, LargeBuffersAreReducedByPartsInOrder) {
  const auto comm = NewWorld(30000);
  const Case c{.ranks = comm->size(), .axes = {comm->size()}, .chosen = 1};
  constexpr int64_t kFloats = 300'000;
  std::vector<float> expected = DataOf(c, 0, RankId(0), kFloats);
  for (int r = 1; r < comm->size(); ++r) {
    const std::vector<float> more = DataOf(c, 0, RankId(r), kFloats);
    for (int64_t i = 0; i < kFloats; ++i) expected[i] += more[i];
  }
  for (int run = 0; run < 3; ++run) {
    std::vector<float> data = DataOf(c, 0, comm->rank(), kFloats);
    Status s = comm->AllReduceSum(All(*comm), data);
    if (s.ok()) s = ExpectSame(data, expected, c, "all-reduce");
    ASSERT_TRUE(s.ok()) << s.ToString();
  }
}

// Two calls of equal shape and one of another, with a fault on rank 1.
Status Program(Communicator& inner, const Fault& fault) {
  FaultyCommunicator comm(inner, inner.rank().value() == 1 ? fault : Fault{});
  std::vector<float> data(100);
  SB_RETURN_IF_ERROR(comm.AllReduceSum(All(comm), data));
  SB_RETURN_IF_ERROR(comm.AllReduceSum(All(comm), data));
  return comm.Barrier(All(comm));
}

void ExpectFault(const Fault& fault, StatusCode code, std::vector<std::string> says) {
  const bool late = code == StatusCode::kDeadlineExceeded;
  const auto comm = NewWorld(late ? 1000 : 30000);
  const Status s = Program(*comm, fault);
  if (comm->rank().value() == 1 && fault.kind == Fault::kDie) return;
  EXPECT_EQ(s.code(), code) << s.ToString();
  for (const std::string& part : says) EXPECT_THAT(s.message(), HasSubstr(part));
}

TEST(MpiFaults, ADeadRankEndsTheOthers) {
  ExpectFault({.kind = Fault::kDie, .call = 1}, StatusCode::kDeadlineExceeded,
              {"for rank 1", "all-reduce over"});
}

TEST(MpiFaults, ASkippedCallEndsEveryRank) {
  ExpectFault({.kind = Fault::kSkip, .call = 1}, StatusCode::kInternal,
              {"rank 1: barrier over", "all-reduce over"});
}

TEST(MpiFaults, ALateRankEndsEveryRank) {
  ExpectFault({.kind = Fault::kDelay, .call = 1, .delay = std::chrono::milliseconds(2500)},
              StatusCode::kDeadlineExceeded, {"waited 1000 ms for rank 1"});
}

TEST(MpiFaults, AWrongSizeEndsEveryRank) {
  ExpectFault({.kind = Fault::kWrongSize, .call = 0}, StatusCode::kInternal,
              {"do not make the same call", "396", "400"});
}

TEST(MpiFaults, AnAbortReachesEveryRank) {
  const auto comm = NewWorld(30000);
  if (comm->rank().value() == 0) comm->Abort(BadCheckpoint({.what = "tensor missing"}));
  const Status s = comm->Barrier(All(*comm));
  EXPECT_EQ(s.code(), StatusCode::kUnavailable) << s.ToString();
  EXPECT_THAT(s.message(), HasSubstr("rank 0 ended the run: found BAD_CHECKPOINT: tensor missing"));
}

TEST(MpiFaults, AWrongGroupEndsEveryRank) {
  const auto comm = NewWorld(30000);
  if (comm->size() < 3) GTEST_SKIP() << "needs three ranks";
  std::vector<RankId> group = All(*comm);
  if (comm->rank().value() == 1) group.pop_back();
  const Status s = comm->Barrier(group);
  EXPECT_FALSE(s.ok());
  EXPECT_THAT(s.message(), HasSubstr("over ranks {0, 1, 2"));
}

TEST(MpiWorld, WaitingRanksSleep) {
  const auto comm = NewWorld(10000);
  const auto cpu = [] {
    rusage u{};
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
  };
  ASSERT_TRUE(comm->Barrier(All(*comm)).ok());
  const double before = cpu();
  if (comm->rank().value() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ASSERT_TRUE(comm->Barrier(All(*comm)).ok());
  EXPECT_LT(cpu() - before, 0.25);
}

// Prints failures only, for the ranks whose progress nobody needs to see.
class FailurePrinter : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    fmt::print(stderr, "{}:{}: {}\n", result.file_name() ? result.file_name() : "",
               result.line_number(), result.message());
  }
};

// Rank 1 returns an error, which must end the job with its exit code.
int RunFailingRank() {
  (void)RunMpi({}, [](Communicator& comm) -> Status {
    SB_RETURN_IF_ERROR(comm.Barrier(All(comm)));
    if (comm.rank().value() == 1) return BadCheckpoint({.what = "tensor missing"});
    return comm.Barrier(All(comm));
  });
  return 0;
}

}  // namespace
}  // namespace signalbox

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 2 && std::string_view(argv[1]) == "--fail") return signalbox::RunFailingRank();
  int failed = 1;
  const signalbox::Status s = signalbox::RunMpi({}, [&](signalbox::Communicator& comm) {
    if (comm.rank().value() != 0) {
      auto& listeners = testing::UnitTest::GetInstance()->listeners();
      delete listeners.Release(listeners.default_result_printer());
      listeners.Append(new signalbox::FailurePrinter);
    }
    failed = RUN_ALL_TESTS();
    return signalbox::OkStatus();
  });
  return s.ok() ? failed : 1;
}
