// SPDX-License-Identifier: Apache-2.0
//
// bench a2a.
#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "signalbox/a2a/measure.h"
#include "signalbox/cli/bench.h"
#include "signalbox/cli/layout_flags.h"
#include "signalbox/comm/fakes.h"
#include "signalbox/comm/thread_world.h"

namespace signalbox {
namespace {

struct Sizes {
  int ranks = 2;
  int experts = 16;  // over all ranks
  int hidden = 1024;
  int top_k = 4;
  int repeats = 10;
};

constexpr int64_t kMostTokens = int64_t{1} << 20;
constexpr int64_t kMostHidden = int64_t{1} << 20;
constexpr int64_t kMostExperts = int64_t{1} << 16;

Result<int> IntOf(const FlagValues& flags, std::string_view flag, int64_t least, int64_t most) {
  SB_ASSIGN_OR_RETURN(const int64_t value, NumberOf(flags, flag, least, most));
  return static_cast<int>(value);
}

Result<Sizes> SizesOf(const FlagValues& flags) {
  Sizes s;
  SB_ASSIGN_OR_RETURN(s.ranks, IntOf(flags, "ranks", 1, kMaxThreadRanks));
  SB_ASSIGN_OR_RETURN(s.experts, IntOf(flags, "experts", 1, kMostExperts));
  SB_ASSIGN_OR_RETURN(s.hidden, IntOf(flags, "hidden", 1, kMostHidden));
  SB_ASSIGN_OR_RETURN(s.top_k, IntOf(flags, "top-k", 1, s.experts));
  SB_ASSIGN_OR_RETURN(s.repeats, IntOf(flags, "repeats", 1, 100'000));
  if (s.experts % s.ranks == 0) return s;
  return InvalidArgument({.what = "experts do not divide by ranks",
                          .where = "--experts",
                          .found = fmt::format("{} experts, {} ranks", s.experts, s.ranks),
                          .expected = fmt::format("a multiple of {}", s.ranks)});
}

// The contracts that the flags name; with none named, all that exchange anything.
Result<std::vector<Contract>> ContractsToMeasure(const FlagValues& flags) {
  SB_ASSIGN_OR_RETURN(const auto by_phase, ContractsOf(flags));
  std::vector<Contract> contracts;
  for (const auto& contract : by_phase) {
    if (contract && std::ranges::find(contracts, *contract) == contracts.end())
      contracts.push_back(*contract);
  }
  if (contracts.empty()) {
    for (const Contract& c : AllContracts()) {
      if (c.shape != RowShape::kNone && !c.own_router) contracts.push_back(c);
    }
  }
  if (contracts.front().shape != RowShape::kNone) return contracts;
  return InvalidArgument({.what = "there is nothing to measure",
                          .where = "--moe-a2a-backend " + contracts.front().name,
                          .expected = "a contract that exchanges rows"});
}

// All ranks together, or the slowest of them where it is a time.
struct Measured {
  double dispatch_us = 0;
  double combine_us = 0;
  double copy_us = 0;
  int64_t moved = 0;    // bytes of one exchange between ranks, as the communicator counted them
  int64_t formula = 0;  // the same as the routing asks for
};

Result<Measured> Measure(const Contract& contract, const Sizes& sizes, int64_t tokens) {
  const int64_t multiple = std::max(contract.limits.rows_multiple, 1);
  const int64_t capacity = (tokens + multiple - 1) / multiple * multiple;
  SB_RETURN_IF_ERROR(Eligible(contract, {.top_k = sizes.top_k,
                                         .hidden = sizes.hidden,
                                         .slots = sizes.experts,
                                         .ranks = sizes.ranks,
                                         .rows = {.flag = "--tokens", .value = tokens},
                                         .capacity = capacity,
                                         .equal_tokens = true,
                                         .emulated = true}));
  const ExchangeShape shape{.ranks = sizes.ranks,
                            .slots = sizes.experts / sizes.ranks,
                            .hidden = sizes.hidden,
                            .top_k = sizes.top_k,
                            .capacity = capacity};
  std::vector<RankId> group;
  for (int r = 0; r < sizes.ranks; ++r) group.emplace_back(r);
  std::mutex mutex;
  Measured all;
  int64_t counted = 0, calls = 1;
  SB_RETURN_IF_ERROR(RunRanks(sizes.ranks, {}, [&](Communicator& comm) -> Status {
    CountingCommunicator counting(comm);
    SB_ASSIGN_OR_RETURN(const auto transport, Transport::Create(contract, counting, group, shape));
    SB_ASSIGN_OR_RETURN(const ExchangeTiming mine,
                        MeasureExchange(*transport, {.tokens = tokens, .repeats = sizes.repeats}));
    const std::lock_guard lock(mutex);
    all.dispatch_us = std::max(all.dispatch_us, mine.dispatch_us);
    all.combine_us = std::max(all.combine_us, mine.combine_us);
    all.copy_us = std::max(all.copy_us, mine.copy_us);
    all.formula += mine.BytesByFormula();
    counted += counting.count(OpKind::kAllToAll).sent;
    calls = mine.calls;
    return OkStatus();
  }));
  all.moved = counted / calls;
  if (counted == all.formula * calls) return all;
  all.moved = counted % calls == 0 ? all.moved : all.moved + 1;  // never equal by rounding
  return all;
}

}  // namespace

Result<BenchTable> BenchA2a(const Invocation& invocation) {
  const FlagValues& flags = invocation.flags;
  SB_ASSIGN_OR_RETURN(const Sizes sizes, SizesOf(flags));
  SB_ASSIGN_OR_RETURN(const std::vector<int64_t> tokens,
                      NumbersOf(flags, "tokens", 1, kMostTokens));
  SB_ASSIGN_OR_RETURN(const std::vector<Contract> contracts, ContractsToMeasure(flags));
  BenchTable table;
  table.title =
      fmt::format("dispatch + combine over {} thread ranks: {} experts, {} per token, hidden {}",
                  sizes.ranks, sizes.experts, sizes.top_k, sizes.hidden);
  table.columns = {"contract", "tokens",        "dispatch us", "combine us", "copy us",
                   "ratio",    "bytes between", "by formula",  "refused"};
  table.notes = {
      "Tokens are those of each rank; times are medians of the slowest rank. copy: memcpy of the "
      "values of all rows\nthat travel, those to the own rank included. bytes between: values, ids "
      "and weights that crossed from rank to\nrank, counted where they are sent; by formula: what "
      "the routing asks for, one row per (token, rank) or (token,\nexpert) as the contract says."};
  for (const Contract& contract : contracts) {
    for (const int64_t t : tokens) {
      const Result<Measured> m = Measure(contract, sizes, t);
      const std::string id = ContractId(contract);
      if (!m.ok() && m.status().code() == StatusCode::kRefused) {
        table.rows.push_back({id, t, {}, {}, {}, {}, {}, {}, m.status().detail().what});
        continue;
      }
      if (!m.ok()) return m.status().At(fmt::format("{}, {} tokens", id, t));
      const double ratio = (m->dispatch_us + m->combine_us) / std::max(m->copy_us, 1e-3);
      table.rows.push_back(
          {id, t, m->dispatch_us, m->combine_us, m->copy_us, ratio, m->moved, m->formula, {}});
      if (m->moved == m->formula || !table.verdict.ok()) continue;
      table.verdict = Internal({.what = "an exchange moved other bytes than its routing asks for",
                                .where = fmt::format("{}, {} tokens", id, t),
                                .found = fmt::format("{} bytes", m->moved),
                                .expected = fmt::format("{} bytes", m->formula)});
    }
  }
  return table;
}

}  // namespace signalbox
