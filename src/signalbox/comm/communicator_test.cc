// SPDX-License-Identifier: Apache-2.0
#include "signalbox/comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "signalbox/comm/blocks.h"
#include "signalbox/comm/mpi_world.h"

namespace signalbox {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Rank 1 of 4; remembers whether a call got through the checks.
class Recorder final : public Communicator {
 public:
  RankId rank() const override { return RankId(1); }
  int size() const override { return 4; }
  void Abort(const Status&) override {}
  Status Run(const Collective& op) override {
    ++calls;
    position = op.position;
    return OkStatus();
  }
  int calls = 0;
  int position = -1;
};

std::vector<RankId> Ranks(std::initializer_list<int> values) {
  std::vector<RankId> ranks;
  for (int v : values) ranks.push_back(RankId(v));
  return ranks;
}

TEST(Communicator, RefusesWrongGroups) {
  Recorder comm;
  for (const auto& group :
       {Ranks({}), Ranks({0, 2}), Ranks({2, 1}), Ranks({1, 1}), Ranks({1, 4}), Ranks({-1, 1})}) {
    const Status s = comm.Barrier(group);
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << s.ToString();
    EXPECT_THAT(s.message(), HasSubstr("rank 1 was given a wrong group (barrier)"));
  }
  EXPECT_EQ(comm.calls, 0);
  EXPECT_TRUE(comm.Barrier(Ranks({0, 1, 3})).ok());
  EXPECT_EQ(comm.position, 1);
}

TEST(Communicator, RefusesWrongCounts) {
  Recorder comm;
  const auto group = Ranks({0, 1});
  std::vector<float> three(3), two(2), one(1);
  using Counts = std::vector<int64_t>;
  for (const Counts& counts :
       {Counts{3}, Counts{2, 2}, Counts{4, -1}, Counts{1, 1}, Counts{2, 1}}) {
    const Status s = comm.ReduceScatterSum(group, three, counts, two);
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << s.ToString();
  }
  EXPECT_TRUE(comm.ReduceScatterSum(group, three, Counts{1, 2}, two).ok());

  const auto gather = [&](const Counts& bytes) {
    return comm.AllGather(group, BytesOf(one), bytes, WritableBytesOf(three));
  };
  EXPECT_EQ(gather({4, 8}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(gather({INT64_MAX, INT64_MAX}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(gather({8, 4}).ok());

  const auto exchange = [&](const Counts& send, const Counts& recv) {
    return comm.AllToAll(group, BytesOf(two), send, WritableBytesOf(three), recv);
  };
  EXPECT_THAT(exchange({4, 8}, {4, 8}).message(), HasSubstr("send_bytes must add up"));
  EXPECT_THAT(exchange({4, 4}, {4, 4}).message(), HasSubstr("recv_bytes must add up"));
  EXPECT_TRUE(exchange({4, 4}, {12, 0}).ok());

  // Before the others learn counts that this rank cannot keep.
  std::vector<std::byte> learned;
  Counts learned_bytes;
  EXPECT_THAT(
      comm.AllToAllLearn(group, BytesOf(two), Counts{4, 8}, learned, learned_bytes).message(),
      HasSubstr("send_bytes must add up"));

  EXPECT_THAT(comm.Broadcast(group, RankId(2), WritableBytesOf(two)).message(),
              HasSubstr("found rank 2, expected one of {0, 1}"));
  EXPECT_EQ(comm.calls, 3);
}

TEST(OpTag, SaysWhatTheRankDoes) {
  const auto group = Ranks({0, 2});
  const std::vector<int64_t> give{8, 8}, take{8, 16};
  OpTag tag{.kind = OpKind::kAllGather, .step = 3, .group = group, .give = give, .take = take};
  EXPECT_EQ(tag.ToString(),
            "all-gather over ranks {0, 2}, gives {8, 8} bytes, takes {8, 16} bytes, at step 3");
  tag = {.kind = OpKind::kBarrier, .group = group};
  EXPECT_EQ(tag.ToString(), "barrier over ranks {0, 2}");
  tag = {.kind = OpKind::kBroadcast, .arg = 1, .group = group};
  EXPECT_THAT(tag.ToString(), HasSubstr("broadcast from rank 2 over"));
  tag = {.kind = OpKind::kAgree, .arg = 1, .group = group};
  EXPECT_THAT(tag.ToString(), HasSubstr("agree on the maximum over"));
}

TEST(OpTag, ComparisonFindsEveryDifference) {
  const auto group = Ranks({0, 2}), other_group = Ranks({0, 2, 3});
  const std::vector<int64_t> a{8, 16}, b{8, 12}, three(3);
  const OpTag mine{.kind = OpKind::kAllToAll, .group = group, .give = a, .take = a};
  const std::vector<int64_t> theirs_give{16, 4}, theirs_take{16, 4};
  const OpTag same{
      .kind = OpKind::kAllToAll, .group = group, .give = theirs_give, .take = theirs_take};
  EXPECT_TRUE(CompareTags(mine, 0, same, 1).ok());

  std::vector<OpTag> different(6, same);
  different[0].kind = OpKind::kAllGather;
  different[1].arg = 1;
  different[2].step = 5;
  different[3] = {.kind = OpKind::kAllToAll, .group = other_group, .give = three, .take = three};
  different[4].give = b;
  different[5].take = b;
  for (const OpTag& theirs : different) {
    const Status s = CompareTags(mine, 0, theirs, 1);
    EXPECT_EQ(s.code(), StatusCode::kInternal);
    EXPECT_THAT(s.message(), AllOf(HasSubstr("rank 0: " + mine.ToString()),
                                   HasSubstr("rank 2: " + theirs.ToString())));
  }
}

TEST(Blocks, PartsCoverTheBufferOnce) {
  for (int64_t n : {0, 1, 15, 16, 17, 100, 4097}) {
    for (int members = 1; members <= 9; ++members) {
      EXPECT_EQ(PartBegin(n, members, 0), 0);
      EXPECT_EQ(PartBegin(n, members, members), n);
      for (int m = 0; m < members; ++m) {
        EXPECT_LE(PartBegin(n, members, m), PartBegin(n, members, m + 1));
      }
    }
  }
}

TEST(Blocks, SumsInOrderAlsoInPlace) {
  for (int64_t n : {0, 1, 63, 64, 65, 200}) {
    std::vector<float> a(n, 1e8f), b(n, 1.0f), c(n, -1e8f);
    const std::vector<const float*> terms{a.data(), b.data(), c.data()};
    SumAscending(terms, n, b.data());
    EXPECT_EQ(b, std::vector<float>(n, 0.0f));  // (1e8 + 1) - 1e8; any other order gives 1
  }
}

TEST(Mpi, IsDetectedByTheEnvironment) {
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MV2_COMM_WORLD_SIZE"}) {
    ASSERT_EQ(std::getenv(name), nullptr) << "this program is not for mpirun";
  }
  EXPECT_FALSE(MpiLaunched());
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  EXPECT_TRUE(MpiLaunched());
  unsetenv("OMPI_COMM_WORLD_SIZE");
}

}  // namespace
}  // namespace signalbox
