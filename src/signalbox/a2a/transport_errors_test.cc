// SPDX-License-Identifier: Apache-2.0
//
// What a transport refuses, how capacity and budgets run out, and faults of peers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "signalbox/a2a/exchange_testing.h"
#include "signalbox/a2a/transport.h"
#include "signalbox/comm/fakes.h"
#include "signalbox/comm/thread_world.h"

namespace signalbox {
namespace {

using ::testing::HasSubstr;

// The first known contract with a property; tests ask for properties, not for names.
template <typename Predicate>
Contract FirstWith(Predicate predicate) {
  const auto contracts = Executables();
  const auto it = std::ranges::find_if(contracts, predicate);
  EXPECT_NE(it, contracts.end());
  return *it;
}

// A program of two ranks on one transport.
Status OnTwoRanks(const Contract& c, const Scenario& s,
                  const std::function<Status(Transport&, const RankInput&)>& program,
                  uint64_t seed = 1) {
  const auto inputs = DrawInputs(s);
  return RunRanks(
      s.shape.ranks, {.deadline = std::chrono::seconds(60)}, [&](Communicator& comm) -> Status {
        std::vector<RankId> group;
        for (int r = 0; r < s.shape.ranks; ++r) group.push_back(RankId(r));
        SB_ASSIGN_OR_RETURN(auto transport, Transport::Create(c, comm, group, s.shape, seed));
        return program(*transport, inputs[comm.rank().value()]);
      });
}

std::vector<float> Zeros(const Dispatched& d) {
  return std::vector<float>(d.rows().rows.size());
}

TEST(Overflow, MoreTokensThanCapacityIsRefusedOnAllRanksAndTheTransportLives) {
  for (const Contract& c : Executables()) {
    if (c.overflow == OverflowPolicy::kImpossible || c.shape == RowShape::kFused) continue;
    SCOPED_TRACE(ContractId(c));
    Scenario s = SmallScenario(2);
    s.tokens = c.limits.equal_tokens ? std::vector<int64_t>{5, 5} : std::vector<int64_t>{5, 2};
    const Status status = OnTwoRanks(c, s, [&](Transport& t, const RankInput& in) -> Status {
      const auto refused = t.Dispatch(in.x, in.routing());
      EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
      EXPECT_THAT(refused.status().message(),
                  HasSubstr(in.ids.size() == 10 ? "5 tokens exceed the capacity of 4 per rank"
                                                : "rank 0 could not dispatch"));
      // The same tokens in two calls.
      for (size_t first : {0, 2}) {
        const size_t end = first == 0 ? std::min<size_t>(2, in.ids.size() / 2) : in.ids.size() / 2;
        const std::span x(in.x);
        const Routing part{.ids = std::span(in.ids).subspan(first * 2, (end - first) * 2),
                           .weights = std::span(in.weights).subspan(first * 2, (end - first) * 2)};
        SB_ASSIGN_OR_RETURN(const Dispatched got,
                            t.Dispatch(x.subspan(first * 6, (end - first) * 6), part));
        std::vector<float> out((end - first) * 6);
        SB_RETURN_IF_ERROR(t.Combine(Zeros(got), got, part, out).status());
      }
      return OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

TEST(Overflow, ImpossibleMeansAnyBatch) {
  const Contract c =
      FirstWith([](const Contract& k) { return k.overflow == OverflowPolicy::kImpossible; });
  Scenario s = SmallScenario(2);
  s.shape.capacity = 0;
  s.tokens = {60, 1};
  EXPECT_EQ(CompareWithOracle(c, s), "");
  s.shape.worst_case = true;
  s.shape.capacity = 59;
  const Status status = OnTwoRanks(c, s, [&](Transport& t, const RankInput& in) -> Status {
    EXPECT_EQ(t.Dispatch(in.x, in.routing()).status().code(), StatusCode::kResourceExhausted);
    return OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST(Overflow, BudgetDropsWithAFlagOrStopsEveryRank) {
  int dropping = 0, stopping = 0;
  for (const Contract& c : Executables()) {
    if (c.rows_bound != RowsBound::kCallerBudget) continue;
    SCOPED_TRACE(ContractId(c));
    Scenario s = SmallScenario(2);
    s.skew = Skew::kOneRank;
    s.shape.row_budget = 4;  // six rows or more go to rank 0
    EXPECT_EQ(CompareWithOracle(c, s), "");
    const bool drops = c.overflow == OverflowPolicy::kDropWithFlag;
    ++(drops ? dropping : stopping);
    const Status status = OnTwoRanks(c, s, [&](Transport& t, const RankInput& in) -> Status {
      const auto got = t.Dispatch(in.x, in.routing());
      EXPECT_EQ(got.ok(), drops);
      if (drops) {
        EXPECT_EQ(got->rows().overflow, t.position() == 0);
      } else {
        EXPECT_EQ(got.status().code(), StatusCode::kResourceExhausted);
      }
      return OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  EXPECT_GT(dropping, 0);
  EXPECT_GT(stopping, 0);
}

TEST(Combine, ReceivedIdsInPlaceOfOwnRoutingAreRefused) {
  int checked = 0;
  for (const Contract& c : Executables()) {
    if (!c.own_routing || c.shape == RowShape::kFused) continue;
    SCOPED_TRACE(ContractId(c));
    ++checked;
    const Status status =
        OnTwoRanks(c, SmallScenario(2), [&](Transport& t, const RankInput& in) -> Status {
          SB_ASSIGN_OR_RETURN(const Dispatched got, t.Dispatch(in.x, in.routing()));
          std::vector<float> out(in.x.size());
          if (!got.rows().ids.empty()) {
            const auto received = t.Combine(
                Zeros(got), got, {.ids = got.rows().ids, .weights = got.rows().weights}, out);
            EXPECT_THAT(received.status().message(), HasSubstr("ids that arrived with the rows"));
          }
          std::vector<int32_t> other = in.ids;
          std::swap(other.front(), other.back());
          other.front() ^= other.front() == other.back() ? 1 : 0;
          const auto wrong = t.Combine(Zeros(got), got, {.ids = other, .weights = in.weights}, out);
          EXPECT_THAT(wrong.status().message(), HasSubstr("another routing than dispatch"));
          return t.Combine(Zeros(got), got, in.routing(), out).status();
        });
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  EXPECT_GT(checked, 3);
}

TEST(Combine, OverwrittenAndRepeatedResultsAreRefused) {
  for (const Contract& c : Executables()) {
    if (c.shape == RowShape::kFused || c.alternate) continue;
    SCOPED_TRACE(ContractId(c));
    const Status status =
        OnTwoRanks(c, SmallScenario(2), [&](Transport& t, const RankInput& in) -> Status {
          std::vector<Dispatched> results;
          for (int i = 0; i <= c.max_outstanding; ++i) {
            SB_ASSIGN_OR_RETURN(Dispatched got, t.Dispatch(in.x, in.routing()));
            results.push_back(got);
          }
          std::vector<float> out(in.x.size());
          if (c.max_outstanding > 0) {
            const auto stale = t.Combine(Zeros(results[0]), results[0], in.routing(), out);
            EXPECT_THAT(stale.status().message(), HasSubstr("was overwritten by dispatch"));
          }
          const Dispatched& last = results.back();
          SB_RETURN_IF_ERROR(t.Combine(Zeros(last), last, in.routing(), out).status());
          const auto twice = t.Combine(Zeros(last), last, in.routing(), out);
          EXPECT_THAT(twice.status().message(), HasSubstr("combined twice"));
          return OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

TEST(Combine, WrongSizesAndMissingWeightsAreRefused) {
  const Contract c = FirstWith([](const Contract& k) {
    return k.weighting == Weighting::kLibraryAtSource && !k.own_routing;
  });
  const Status status =
      OnTwoRanks(c, SmallScenario(2), [&](Transport& t, const RankInput& in) -> Status {
        SB_ASSIGN_OR_RETURN(const Dispatched got, t.Dispatch(in.x, in.routing()));
        std::vector<float> out(in.x.size()), y = Zeros(got);
        EXPECT_THAT(t.Combine(y, got, {}, out).status().message(), HasSubstr("needs the weights"));
        y.push_back(0);
        EXPECT_THAT(t.Combine(y, got, in.routing(), out).status().message(),
                    HasSubstr("wrong size"));
        return OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST(Dispatch, AlternationIsHeld) {
  const Contract c = FirstWith([](const Contract& k) { return k.alternate; });
  const Status status =
      OnTwoRanks(c, SmallScenario(2), [&](Transport& t, const RankInput& in) -> Status {
        SB_RETURN_IF_ERROR(t.Dispatch(in.x, in.routing()).status());
        EXPECT_THAT(t.Dispatch(in.x, in.routing()).status().message(),
                    HasSubstr("before the combine of the last one"));
        return OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST(Dispatch, BadIdsAreRefusedOnAllRanks) {
  for (const Contract& c : Executables()) {
    if (c.shape == RowShape::kFused) continue;
    SCOPED_TRACE(ContractId(c));
    for (int32_t bad : {-1, -2, 8, 1 << 30, -(1 << 30)}) {
      if (bad == -1 && c.negative_ids == NegativeIds::kSkip) continue;
      const Status status =
          OnTwoRanks(c, SmallScenario(2), [&](Transport& t, const RankInput& in) -> Status {
            std::vector<int32_t> ids = in.ids;
            if (t.position() == 1) ids[3] = bad;
            const auto got = t.Dispatch(in.x, {.ids = ids, .weights = in.weights});
            EXPECT_EQ(got.status().code(), StatusCode::kInvalidArgument);
            EXPECT_THAT(got.status().message(),
                        HasSubstr(t.position() == 1 ? "token 1, lane 1" : "rank 1 could not"));
            return OkStatus();
          });
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
  }
}

TEST(Dispatch, OneExpertTwiceIsRefusedWhereItNeedsASecondRow) {
  for (const Contract& c : Executables()) {
    if (c.shape == RowShape::kFused) continue;
    SCOPED_TRACE(ContractId(c));
    const Status status =
        OnTwoRanks(c, SmallScenario(2), [&](Transport& t, const RankInput& in) -> Status {
          std::vector<int32_t> ids = in.ids;
          ids[1] = ids[0];
          EXPECT_EQ(t.Dispatch(in.x, {.ids = ids, .weights = in.weights}).ok(), DedupRows(c.shape));
          return OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

TEST(Dispatch, UnequalTokensWhereTheContractForbidsThem) {
  const Contract c = FirstWith([](const Contract& k) { return k.limits.equal_tokens; });
  Scenario s = SmallScenario(2);
  s.tokens = {3, 2};
  const Status status = OnTwoRanks(c, s, [&](Transport& t, const RankInput& in) -> Status {
    EXPECT_THAT(t.Dispatch(in.x, in.routing()).status().message(),
                HasSubstr("different numbers of tokens"));
    return OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST(Dispatch, SameSeedSameOrderOtherCallOtherOrder) {
  const Contract c = FirstWith([](const Contract& k) { return k.order == RowOrder::kArrival; });
  Scenario s = SmallScenario(2);
  s.shape.capacity = 64;
  s.tokens = {64, 64};
  std::vector<std::vector<Origin>> orders(4);
  const auto record = [&](int first) {
    return [&orders, first](Transport& t, const RankInput& in) -> Status {
      for (int call = 0; call < 2; ++call) {
        SB_ASSIGN_OR_RETURN(const Dispatched got, t.Dispatch(in.x, in.routing()));
        if (t.position() == 0) orders[first + call] = got.rows().origins;
      }
      return OkStatus();
    };
  };
  ASSERT_TRUE(OnTwoRanks(c, s, record(0), 7).ok());
  ASSERT_TRUE(OnTwoRanks(c, s, record(2), 7).ok());
  EXPECT_EQ(orders[0], orders[2]);
  EXPECT_EQ(orders[1], orders[3]);
  EXPECT_NE(orders[0], orders[1]);
  std::vector<Origin> sorted = orders[0];
  std::ranges::sort(sorted, {}, [](const Origin& o) { return std::tuple(o.source, o.token); });
  EXPECT_NE(orders[0], sorted);
}

TEST(Create, RanksMustAgree) {
  const Contract c = FirstWith([](const Contract& k) { return k.uniform_capacity; });
  const auto create = [&](auto change, std::string_view expected) {
    const Status status = RunRanks(2, {}, [&](Communicator& comm) -> Status {
      ExchangeShape shape{.ranks = 2, .slots = 2, .hidden = 4, .top_k = 1, .capacity = 8};
      Contract mine = c;
      if (comm.rank() == RankId(1)) change(mine, shape);
      const auto made = Transport::Create(mine, comm, {RankId(0), RankId(1)}, shape);
      EXPECT_THAT(made.status().ToString(), HasSubstr(expected));
      return OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status.ToString();
  };
  create([](Contract&, ExchangeShape& s) { s.capacity = 16; }, "differ in their tokens per rank");
  create([](Contract&, ExchangeShape& s) { s.hidden = 8; }, "differ in their hidden size");
  create([](Contract&, ExchangeShape& s) { s.top_k = 2; }, "differ in their top-k");
  create([](Contract& k, ExchangeShape&) { ++k.rounding_stages; }, "differ in their contracts");
  create([](Contract& k, ExchangeShape&) { k.name = "other"; }, "OK");
}

TEST(Create, WhatCannotBeExecuted) {
  int refused = 0;
  for (const Contract& c : AllContracts()) {
    if (Executable(c)) continue;
    ++refused;
    const Status status = RunRanks(1, {}, [&](Communicator& comm) -> Status {
      return Transport::Create(c, comm, {RankId(0)}, {.capacity = 8}).status();
    });
    EXPECT_FALSE(status.ok());
  }
  EXPECT_EQ(refused, 2);
}

TEST(Fused, OnlyTheWholeLayer) {
  const Contract fused = FirstWith([](const Contract& k) { return k.shape == RowShape::kFused; });
  const Contract split = FirstWith([](const Contract& k) { return k.shape == RowShape::kFlat; });
  const auto program = [&](Transport& t, const RankInput& in) -> Status {
    const bool whole = t.contract().weights == ReceivedWeights::kPerRow;
    std::vector<float> out(in.x.size());
    if (whole) {
      EXPECT_THAT(t.Dispatch(in.x, in.routing()).status().message(), HasSubstr("FusedLayer"));
    } else {
      const auto made = t.FusedLayer(in.x, in.routing(), TestExperts(t.shape(), t.position()), out);
      EXPECT_THAT(made.status().message(), HasSubstr("Dispatch and Combine"));
    }
    return OkStatus();
  };
  EXPECT_TRUE(OnTwoRanks(fused, SmallScenario(2), program).ok());
  EXPECT_TRUE(OnTwoRanks(split, SmallScenario(2), program).ok());
}

// A bit that flips on the wire must never become a crash or a hang.
TEST(Faults, FlippedBitsAndSkippedCallsEndInAnErrorOrAWrongValue) {
  for (const Contract& c : Executables()) {
    if (c.shape == RowShape::kFused) continue;
    SCOPED_TRACE(ContractId(c));
    const Scenario s = SmallScenario(2);
    const auto inputs = DrawInputs(s);
    for (Fault::Kind kind : {Fault::kFlip, Fault::kDie, Fault::kWrongSize}) {
      for (int64_t call = 2; call < 5; ++call) {
        const Status status =
            RunRanks(2, {.deadline = std::chrono::seconds(20)}, [&](Communicator& real) -> Status {
              FaultyCommunicator comm(
                  real, {.kind = real.rank() == RankId(0) ? kind : Fault::kNone, .call = call});
              SB_ASSIGN_OR_RETURN(auto transport,
                                  Transport::Create(c, comm, {RankId(0), RankId(1)}, s.shape));
              const RankInput& in = inputs[comm.rank().value()];
              SB_ASSIGN_OR_RETURN(const Dispatched got, transport->Dispatch(in.x, in.routing()));
              std::vector<float> out(in.x.size());
              return transport->Combine(Zeros(got), got, in.routing(), out).status();
            });
        EXPECT_TRUE(kind == Fault::kFlip || !status.ok()) << kind << " in call " << call;
      }
    }
  }
}

}  // namespace
}  // namespace signalbox
