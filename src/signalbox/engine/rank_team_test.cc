// SPDX-License-Identifier: Apache-2.0
//
// Teams whose ranks are made up: whatever one of them does, the leader gets an answer in time.
#include "signalbox/engine/rank_team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

namespace signalbox::rank_team_test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr milliseconds kShort(200), kStuck(1500), kLong(30'000);

class MadeUpRank final : public Rank {
 public:
  using Work = std::function<Result<StepOutput>(Communicator& comm, const StepCommand& command)>;
  MadeUpRank(Communicator& comm, Work work) : comm_(comm), work_(std::move(work)) {}
  Result<StepOutput> Execute(const StepCommand& command) override { return work_(comm_, command); }

 private:
  Communicator& comm_;
  const Work work_;
};

std::unique_ptr<RankTeam> Start(int ranks, milliseconds deadline, const MadeUpRank::Work& work) {
  auto team = RankTeam::StartThreads(ranks, {.deadline = deadline}, [&](Communicator& comm) {
    return Result<std::unique_ptr<Rank>>(std::make_unique<MadeUpRank>(comm, work));
  });
  EXPECT_TRUE(team.ok()) << team.status().ToString();
  return team.ok() ? std::move(team).value() : nullptr;
}

Status Meet(Communicator& comm) {
  std::vector<RankId> all;
  for (int r = 0; r < comm.size(); ++r) all.emplace_back(r);
  return comm.Barrier(all);
}

// The error of a step, which must come before the stuck rank is done, and of every later one.
Status EndOf(RankTeam& team) {
  const auto start = std::chrono::steady_clock::now();
  const Status first = team.Execute({}).status();
  const Status second = team.Execute({}).status();
  EXPECT_LT(std::chrono::steady_clock::now() - start, kStuck);
  EXPECT_EQ(first.ToString(), second.ToString());
  return first;
}

TEST(RankTeam, AnAnswerIsThatOfTheLeadingRank) {
  const auto team =
      Start(3, kLong, [](Communicator& comm, const StepCommand& command) -> Result<StepOutput> {
        SB_RETURN_IF_ERROR(Meet(comm));
        const auto rank = static_cast<float>(comm.rank().value());
        return StepOutput{.logits = {rank, static_cast<float>(command.layers)}};
      });
  for (int64_t i = 0; i < 3; ++i) {
    const auto out = team->Execute({.layers = i});
    ASSERT_TRUE(out.ok()) << out.status().ToString();
    EXPECT_EQ(out->logits, (std::vector<float>{0.f, static_cast<float>(i)}));
  }
}

TEST(RankTeam, ARankThatComputesForEverIsNamed) {
  const auto team =
      Start(3, kShort, [](Communicator& comm, const StepCommand&) -> Result<StepOutput> {
        if (comm.rank() == RankId(1)) std::this_thread::sleep_for(kStuck);
        return StepOutput();
      });
  const Status s = EndOf(*team);
  EXPECT_EQ(s.code(), StatusCode::kDeadlineExceeded) << s.ToString();
  EXPECT_THAT(s.message(), AllOf(HasSubstr("(rank 1)"), HasSubstr("200 ms"),
                                 HasSubstr("--rank-timeout"), Not(HasSubstr("rank 0"))));
}

TEST(RankTeam, ASlowStepIsNotAStuckOne) {
  const auto team =
      Start(2, kShort, [](Communicator& comm, const StepCommand&) -> Result<StepOutput> {
        for (int layer = 0; layer < 6; ++layer) {
          std::this_thread::sleep_for(kShort / 2);
          SB_RETURN_IF_ERROR(Meet(comm));
        }
        return StepOutput();
      });
  const auto out = team->Execute({});
  EXPECT_TRUE(out.ok()) << out.status().ToString();
}

// Those that wait for it say so first, and what it misses.
TEST(RankTeam, ARankThatIsWaitedForIsNamed) {
  const auto team =
      Start(3, kShort, [](Communicator& comm, const StepCommand&) -> Result<StepOutput> {
        if (comm.rank() == RankId(2)) std::this_thread::sleep_for(kStuck);
        SB_RETURN_IF_ERROR(Meet(comm));
        return StepOutput();
      });
  const Status s = EndOf(*team);
  EXPECT_EQ(s.code(), StatusCode::kDeadlineExceeded) << s.ToString();
  EXPECT_THAT(s.message(), AllOf(HasSubstr("for rank 2"), HasSubstr("barrier over")));
}

TEST(RankTeam, ARankThatNeverReachesTheCollectiveIsNamed) {
  const auto team =
      Start(2, kShort, [](Communicator& comm, const StepCommand&) -> Result<StepOutput> {
        if (comm.rank() == RankId(1)) return StepOutput();
        SB_RETURN_IF_ERROR(Meet(comm));
        return StepOutput();
      });
  const Status s = EndOf(*team);
  EXPECT_EQ(s.code(), StatusCode::kDeadlineExceeded) << s.ToString();
  EXPECT_THAT(s.message(), HasSubstr("for rank 1"));
}

TEST(RankTeam, ARankThatFailsEndsTheOthersAtOnce) {
  const auto team =
      Start(3, kLong, [](Communicator& comm, const StepCommand&) -> Result<StepOutput> {
        if (comm.rank() == RankId(2)) return Unavailable({.what = "the device is gone"});
        SB_RETURN_IF_ERROR(Meet(comm));
        return StepOutput();
      });
  const Status s = EndOf(*team);
  EXPECT_EQ(s.code(), StatusCode::kUnavailable) << s.ToString();
  EXPECT_THAT(s.message(), AllOf(HasSubstr("rank 2"), HasSubstr("the device is gone")));
}

// The failure is the reason, not the rank that is stuck because of it or beside it.
TEST(RankTeam, AFailureBesideAStuckRankIsTold) {
  const auto team =
      Start(2, kShort, [](Communicator& comm, const StepCommand&) -> Result<StepOutput> {
        if (comm.rank() == RankId(1)) return Internal({.what = "out of range"});
        std::this_thread::sleep_for(kStuck);
        return StepOutput();
      });
  EXPECT_THAT(EndOf(*team).message(), HasSubstr("out of range"));
}

TEST(RankTeam, ARefusalLeavesTheTeamAsItWas) {
  const auto team =
      Start(2, kLong, [](Communicator&, const StepCommand& command) -> Result<StepOutput> {
        if (command.layers == 1) return InvalidArgument({.what = "a wrong id"});
        return StepOutput();
      });
  EXPECT_EQ(team->Execute({.layers = 1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(team->Execute({}).ok());
}

TEST(RankTeam, ARankThatCannotBeMadeIsNamed) {
  const auto team =
      RankTeam::StartThreads(2, {}, [](Communicator& comm) -> Result<std::unique_ptr<Rank>> {
        if (comm.rank() == RankId(1)) return BadCheckpoint({.what = "tensor missing"});
        SB_RETURN_IF_ERROR(Meet(comm));
        return Internal({.what = "met a rank that does not exist"});
      });
  EXPECT_EQ(team.status().code(), StatusCode::kBadCheckpoint);
  EXPECT_THAT(team.status().message(), AllOf(HasSubstr("rank 1"), HasSubstr("tensor missing")));
}

}  // namespace
}  // namespace signalbox::rank_team_test
