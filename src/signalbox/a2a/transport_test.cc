// SPDX-License-Identifier: Apache-2.0
//
// Every contract on thread ranks against the oracle, and the oracle against one rank.
#include "signalbox/a2a/transport.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "signalbox/a2a/exchange_testing.h"
#include "signalbox/comm/thread_world.h"

namespace signalbox {
namespace {

std::vector<int64_t> UnevenTokens(const Contract& c, int ranks) {
  if (c.limits.equal_tokens) return std::vector<int64_t>(ranks, 5);
  const std::vector<int64_t> tokens = {5, 0, 1, 7};
  return {tokens.begin(), tokens.begin() + ranks};
}

TEST(TransportMatrix, EveryContractEqualsTheOracle) {
  int runs = 0;
  for (const Contract& c : Executables()) {
    SCOPED_TRACE(ContractId(c));
    const bool may_mask = c.negative_ids == NegativeIds::kSkip;
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (int top_k : {1, 2, 8}) {
        for (Skew skew : {Skew::kRandom, Skew::kOneExpert, Skew::kOneRank}) {
          Scenario s{.shape = {.ranks = ranks,
                               .slots = top_k == 8 ? 8 : 3,
                               .hidden = 5,
                               .top_k = top_k,
                               .capacity = 7},
                     .tokens = UnevenTokens(c, ranks),
                     .skew = skew,
                     .masked = may_mask && skew == Skew::kRandom,
                     .seed = static_cast<uint64_t>(ranks * 100 + top_k)};
          EXPECT_EQ(CompareWithOracle(c, s), "");
          ++runs;
        }
      }
    }
  }
  EXPECT_EQ(runs, static_cast<int>(Executables().size()) * 4 * 3 * 3);
}

// Batch == capacity and all tokens to one expert: the fullest that buffers can get.
TEST(TransportMatrix, BatchAtCapacityToOneExpert) {
  for (const Contract& c : Executables()) {
    SCOPED_TRACE(ContractId(c));
    for (bool worst_case : {false, true}) {
      Scenario s = SmallScenario(3);
      s.shape.worst_case = worst_case;
      s.tokens.assign(3, s.shape.capacity);
      s.skew = Skew::kOneExpert;
      EXPECT_EQ(CompareWithOracle(c, s, 4), "");
    }
  }
}

TEST(TransportMatrix, RoundingsEqualTheOracle) {
  for (const Contract& c : Executables()) {
    SCOPED_TRACE(ContractId(c));
    Scenario s = SmallScenario(3);
    s.shape.round_bf16 = true;
    s.shape.top_k = 6;
    EXPECT_EQ(CompareWithOracle(c, s), "");
  }
}

TEST(TransportMatrix, NoTokensAnywhere) {
  for (const Contract& c : Executables()) {
    SCOPED_TRACE(ContractId(c));
    Scenario s = SmallScenario(2);
    s.tokens.assign(2, 0);
    EXPECT_EQ(CompareWithOracle(c, s), "");
  }
}

// A random known contract with up to three fields replaced by those of others: contracts that
// nobody has written a line of code for.
Contract AnyContract() {
  const auto known = Executables();
  Contract c = known[*rc::gen::inRange<size_t>(0, known.size())];
  const int changes = *rc::gen::inRange(0, 4);
  for (int i = 0; i < changes; ++i) {
    const Contract& other = known[*rc::gen::inRange<size_t>(0, known.size())];
    const int field = *rc::gen::inRange(0, 40);
    int index = 0;
    std::vector<std::string> values;
    Contract changed = c;
    // Both visits see the same fields in the same order, so field `field` is of one type.
    VisitFields(other, [&](std::string_view, const auto& from, Need) {
      if (index++ != field) return;
      int at = 0;
      VisitFields(changed, [&](std::string_view, auto& to, Need) {
        if constexpr (std::is_same_v<std::decay_t<decltype(to)>, std::decay_t<decltype(from)>>) {
          if (at == field) to = from;
        }
        ++at;
      });
    });
    if (Validate(changed).ok() && Executable(changed)) c = changed;
  }
  return c;
}

RC_GTEST_PROP(TransportProperty, AnyContractAnyScenario, ()) {
  const Contract c = AnyContract();
  Scenario s;
  s.shape = {.ranks = *rc::gen::inRange(1, 5),
             .slots = *rc::gen::inRange(1, 6),
             .hidden = *rc::gen::inRange(1, 9),
             .capacity = 8,
             .worst_case = *rc::gen::arbitrary<bool>(),
             .round_bf16 = *rc::gen::arbitrary<bool>()};
  s.shape.top_k = *rc::gen::inRange(1, std::min(s.shape.total_slots(), 9) + 1);
  if (c.rows_bound == RowsBound::kCallerBudget) s.shape.row_budget = *rc::gen::inRange(0, 40);
  // Sometimes more tokens than fit, sometimes masked where that is forbidden.
  for (int r = 0; r < s.shape.ranks; ++r) {
    s.tokens.push_back(
        *rc::gen::weightedElement<int64_t>({{4, 0}, {4, 1}, {4, 3}, {8, 6}, {8, 8}, {1, 9}}));
  }
  s.skew = *rc::gen::element(Skew::kRandom, Skew::kOneExpert, Skew::kOneRank);
  s.masked = *rc::gen::weightedElement<bool>({{3, false}, {1, true}});
  s.seed = *rc::gen::inRange<uint64_t>(1, 1000);
  const std::string difference = CompareWithOracle(c, s);
  if (!difference.empty()) RC_FAIL(difference + "\n" + ContractToText(c));
}

// The sum over distinct experts of identity rows is the weighted sum of the row itself.
TEST(Transport, IdentityExperts) {
  const ExpertFn identity = [](std::span<const float> x, std::span<const int64_t>,
                               std::span<float> y) {
    std::ranges::copy(x, y.begin());
    return OkStatus();
  };
  for (const Contract& c : Executables()) {
    if (c.shape == RowShape::kFused || c.masked == MaskSpelling::kCallerId) continue;
    SCOPED_TRACE(ContractId(c));
    const Scenario s = SmallScenario(2);
    const auto inputs = DrawInputs(s);
    const Status status = RunRanks(2, {}, [&](Communicator& comm) -> Status {
      SB_ASSIGN_OR_RETURN(auto transport,
                          Transport::Create(c, comm, {RankId(0), RankId(1)}, s.shape));
      const RankInput& in = inputs[comm.rank().value()];
      SB_ASSIGN_OR_RETURN(const Dispatched got, transport->Dispatch(in.x, in.routing()));
      std::vector<float> y(got.rows().rows.size(), kPoison), out(in.x.size());
      SB_RETURN_IF_ERROR(RunExperts(c, s.shape, transport->position(), got.rows(), identity, y));
      SB_RETURN_IF_ERROR(transport->Combine(y, got, in.routing(), out).status());
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t token = i / s.shape.hidden;
        const float weight = in.weights[token * 2] + in.weights[token * 2 + 1];
        EXPECT_NEAR(out[i], weight * in.x[i], 1e-5 * weight * in.x[i]);
      }
      return OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

}  // namespace
}  // namespace signalbox
