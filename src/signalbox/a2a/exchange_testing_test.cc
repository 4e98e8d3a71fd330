// SPDX-License-Identifier: Apache-2.0
//
// The functions of exchange_testing.h (a test source, so that the library does not hold them).
#include "signalbox/a2a/exchange_testing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "signalbox/a2a/transport.h"
#include "signalbox/comm/thread_world.h"

namespace signalbox {
namespace {

constexpr CommOptions kComm{.deadline = std::chrono::milliseconds(20'000)};

std::vector<RankId> World(int ranks) {
  std::vector<RankId> group;
  for (int r = 0; r < ranks; ++r) group.push_back(RankId(r));
  return group;
}

float ExpertScale(int slot) {
  return 0.5f + 0.125f * static_cast<float>(slot);
}
float ExpertShift(int slot) {
  return 0.25f * static_cast<float>(slot % 5) - 0.5f;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// NaNs of one pattern on both sides, so bits can be compared.
std::string Differs(const Delivered& found, const Delivered& expected) {
  if (found.shape != expected.shape) return "shape";
  if (found.capacity != expected.capacity) {
    return fmt::format("capacity {} for {}", found.capacity, expected.capacity);
  }
  if (found.weight_cols != expected.weight_cols) return "weight_cols";
  if (found.origins != expected.origins) return "origins";
  if (!SameBits(found.rows, expected.rows)) return "rows";
  if (found.ids != expected.ids) return "ids";
  if (!SameBits(found.weights, expected.weights)) return "weights";
  if (found.expert_rows != expected.expert_rows) return "expert_rows";
  if (found.source_rows != expected.source_rows) return "source_rows";
  if (found.total_rows != expected.total_rows) return "total_rows";
  if (found.zone_begin != expected.zone_begin) return "zone_begin";
  if (found.zone_end != expected.zone_end) return "zone_end";
  if (found.overflow != expected.overflow) return "overflow";
  return "";
}

// What the oracle says about one round.
struct Expected {
  bool dropped = false;  // rows were lost; which ones is open where the order is
  std::vector<RankInput> inputs;
  Status status;
  std::vector<Delivered> delivered;
  std::vector<Combined> combined;
};

Contract Executed(const Contract& contract) {
  return contract.shape == RowShape::kFused ? FusedAsExchange(contract) : contract;
}

// The expert side over the oracle's rows; empty ids are spelt E, as a caller of Sanitise does.
Result<std::vector<float>> ExpertSide(const Contract& contract, const ExchangeShape& shape,
                                      int rank, Delivered rows) {
  if (contract.masked == MaskSpelling::kCallerId) {
    for (size_t i = 0; i < rows.ids.size(); ++i) {
      if (rows.origins[i / shape.top_k].source < 0) rows.ids[i] = shape.total_slots();
    }
    rows.sanitised = shape.total_slots();
  }
  std::vector<float> out(rows.rows.size(), kPoison);
  SB_RETURN_IF_ERROR(RunExperts(contract, shape, rank, rows, TestExperts(shape, rank), out));
  return out;
}

Result<Expected> Expect(const Contract& contract, const Scenario& scenario, int round) {
  const Contract executed = Executed(contract);
  Scenario drawn = scenario;
  drawn.seed += static_cast<uint64_t>(round);
  if (round % 2 == 1) {
    std::rotate(drawn.tokens.begin(), drawn.tokens.begin() + 1, drawn.tokens.end());
  }
  Expected e;
  e.inputs = DrawInputs(drawn);
  Result<std::vector<Delivered>> delivered = OracleDispatch(executed, scenario.shape, e.inputs);
  e.status = delivered.status();
  if (!delivered.ok()) return e;
  e.delivered = *delivered;
  e.dropped = std::ranges::any_of(e.delivered, &Delivered::overflow);
  std::vector<std::vector<float>> outputs;
  std::vector<RankInput> routings = e.inputs;
  for (int r = 0; r < scenario.shape.ranks; ++r) {
    SB_ASSIGN_OR_RETURN(std::vector<float> out,
                        ExpertSide(executed, scenario.shape, r, e.delivered[r]));
    if (contract.shape == RowShape::kFused) {  // weighted inside, summed as it is
      const Delivered& d = e.delivered[r];
      for (size_t i = 0; i < out.size(); ++i) out[i] *= d.weights[i / scenario.shape.hidden];
      std::ranges::fill(routings[r].weights, 1.f);
    }
    outputs.push_back(std::move(out));
  }
  e.combined = OracleCombine(executed, scenario.shape, routings, e.delivered, outputs);
  return e;
}

Status Mismatch(int rank, int round, const std::string& what) {
  return OutOfTolerance({.what = fmt::format("rank {}, round {}: {}", rank, round, what)});
}

Status CheckTraffic(const Contract& contract, const ExchangeShape& shape, const RankInput& in,
                    const Traffic& traffic, int rank, int round) {
  const int64_t rows = RowsByFormula(contract, shape, in);
  if (traffic.rows != rows || traffic.PayloadBytes() != rows * shape.hidden * 4) {
    return Mismatch(rank, round, fmt::format("{} rows sent, formula {}", traffic.rows, rows));
  }
  return OkStatus();
}

Status CheckOutput(const Contract& contract, const ExchangeShape& shape, const Expected& e,
                   const std::vector<float>& out, int rank, int round) {
  if (e.dropped && !Reproducible(contract.order)) return OkStatus();
  if (!SameBits(out, e.combined[rank].out)) return Mismatch(rank, round, "combined values");
  if (e.dropped || shape.round_bf16) return OkStatus();
  const std::vector<float> dense = DenseReference(shape, e.inputs[rank]);
  for (size_t i = 0; i < out.size(); ++i) {
    // NaN fails this comparison too.
    if (!(std::abs(out[i] - dense[i]) <= 1e-5f * (1.f + std::abs(dense[i])))) {
      return Mismatch(rank, round,
                      fmt::format("{}: value {} is {}, one rank gives {}", ContractId(contract), i,
                                  out[i], dense[i]));
    }
  }
  return OkStatus();
}

Status RunRound(Transport& transport, const Contract& contract, const Expected& e, int round) {
  const ExchangeShape& shape = transport.shape();
  const int me = transport.position();
  const RankInput& in = e.inputs[me];
  std::vector<float> out(in.x.size(), kPoison);
  if (contract.shape == RowShape::kFused) {
    const auto traffic = transport.FusedLayer(in.x, in.routing(), TestExperts(shape, me), out);
    if (traffic.ok() != e.status.ok()) return Mismatch(me, round, traffic.status().ToString());
    if (!traffic.ok()) return OkStatus();
    SB_RETURN_IF_ERROR(CheckTraffic(contract, shape, in, *traffic, me, round));
    return CheckOutput(contract, shape, e, out, me, round);
  }
  const auto dispatched = transport.Dispatch(in.x, in.routing());
  if (dispatched.ok() != e.status.ok()) {
    return Mismatch(me, round, "dispatch: " + dispatched.status().ToString());
  }
  if (!dispatched.ok()) return OkStatus();
  SB_ASSIGN_OR_RETURN(Delivered sorted, CanonicalOrder(contract, shape, dispatched->rows()));
  if (Reproducible(contract.order) && sorted.origins != dispatched->rows().origins) {
    return Mismatch(me, round, "a reproducible order that is not canonical");
  }
  const std::string what = Differs(sorted, e.delivered[me]);
  if (e.dropped && !Reproducible(contract.order)) {
    if (sorted.overflow != e.delivered[me].overflow) return Mismatch(me, round, "overflow");
  } else if (!what.empty()) {
    return Mismatch(me, round, what);
  }
  SB_RETURN_IF_ERROR(CheckTraffic(contract, shape, in, dispatched->traffic(), me, round));
  if (contract.masked == MaskSpelling::kCallerId) {
    SB_RETURN_IF_ERROR(transport.Sanitise(*dispatched, shape.total_slots()));
  }
  const Delivered& rows = dispatched->rows();
  std::vector<float> expert_out(rows.rows.size(), kPoison);
  SB_RETURN_IF_ERROR(RunExperts(contract, shape, me, rows, TestExperts(shape, me), expert_out));
  SB_ASSIGN_OR_RETURN(const CombineReport report,
                      transport.Combine(expert_out, *dispatched, in.routing(), out));
  if (report.weights_back != e.combined[me].weights_back) {
    return Mismatch(me, round, "weights back");
  }
  return CheckOutput(contract, shape, e, out, me, round);
}

}  // namespace

std::string Scenario::ToString() const {
  return fmt::format(
      "ranks {}, slots {}, hidden {}, top-k {}, capacity {}, budget {}, worst case {}, bf16 {}, "
      "tokens {}, skew {}, masked {}, seed {}",
      shape.ranks, shape.slots, shape.hidden, shape.top_k, shape.capacity, shape.row_budget,
      shape.worst_case, shape.round_bf16, tokens, static_cast<int>(skew), masked, seed);
}

bool Executable(const Contract& c) {
  return c.shape != RowShape::kNone && !c.own_router && c.overflow != OverflowPolicy::kDropByPolicy;
}

std::vector<Contract> Executables() {
  std::vector<Contract> contracts;
  std::ranges::copy_if(AllContracts(), std::back_inserter(contracts), Executable);
  return contracts;
}

Scenario SmallScenario(int ranks) {
  Scenario s{.shape = {.ranks = ranks, .slots = 4, .hidden = 6, .top_k = 2, .capacity = 4}};
  s.tokens.assign(ranks, 3);
  return s;
}

std::vector<RankInput> DrawInputs(const Scenario& s) {
  std::vector<RankInput> inputs;
  for (int r = 0; r < s.shape.ranks; ++r) {
    std::mt19937 random(static_cast<uint32_t>(s.seed * 7919 + r));
    RankInput in;
    for (int64_t t = 0; t < s.tokens[r]; ++t) {
      for (int h = 0; h < s.shape.hidden; ++h) {
        in.x.push_back(static_cast<float>(r + 1) + static_cast<float>(t) / 128.f +
                       static_cast<float>(h) / 4096.f);
      }
      std::vector<int32_t> slots(s.shape.total_slots());
      for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i);
      std::ranges::shuffle(slots, random);
      const int32_t last = s.shape.total_slots() - 1;
      if (s.skew == Skew::kOneExpert) {  // in every token, in one of its lanes
        std::iter_swap(std::ranges::find(slots, last), slots.begin() + random() % s.shape.top_k);
      } else if (s.skew == Skew::kOneRank) {
        std::stable_partition(slots.begin(), slots.end(),
                              [&](int32_t id) { return id < s.shape.slots; });
      }
      const bool all_masked = s.masked && random() % 8 == 0;
      for (int k = 0; k < s.shape.top_k; ++k) {
        const bool masked = all_masked || (s.masked && random() % 4 == 0);
        in.ids.push_back(masked ? -1 : slots[k]);
        in.weights.push_back(static_cast<float>(1 + random() % 1000) / 1024.f);
      }
    }
    inputs.push_back(std::move(in));
  }
  return inputs;
}

ExpertFn TestExperts(const ExchangeShape& shape, int rank) {
  return [shape, rank](std::span<const float> x, std::span<const int64_t> offsets,
                       std::span<float> y) {
    for (int e = 0; e < shape.slots; ++e) {
      const int slot = rank * shape.slots + e;
      for (int64_t i = offsets[e] * shape.hidden; i < offsets[e + 1] * shape.hidden; ++i) {
        y[i] = ExpertScale(slot) * x[i] + ExpertShift(slot);
      }
    }
    return OkStatus();
  };
}

std::vector<float> DenseReference(const ExchangeShape& shape, const RankInput& in) {
  std::vector<float> out;
  for (size_t i = 0; i < in.x.size(); ++i) {
    const size_t token = i / shape.hidden;
    double sum = 0;
    for (int k = 0; k < shape.top_k; ++k) {
      const int32_t slot = in.ids[token * shape.top_k + k];
      if (slot < 0) continue;
      sum += double{in.weights[token * shape.top_k + k]} *
             (double{ExpertScale(slot)} * double{in.x[i]} + double{ExpertShift(slot)});
    }
    out.push_back(static_cast<float>(sum));
  }
  return out;
}

int64_t RowsByFormula(const Contract& contract, const ExchangeShape& shape, const RankInput& in) {
  std::set<std::pair<size_t, int32_t>> rows;
  for (size_t i = 0; i < in.ids.size(); ++i) {
    if (in.ids[i] < 0) continue;
    rows.insert({i / shape.top_k, contract.dedup_wire ? in.ids[i] / shape.slots : in.ids[i]});
  }
  return static_cast<int64_t>(rows.size());
}

std::string CompareWithOracle(const Contract& contract, const Scenario& asked, int rounds) {
  Scenario scenario = asked;
  scenario.shape.worst_case &= contract.sync != HostSync::kAlways;
  std::vector<Expected> expected;
  for (int round = 0; round < rounds; ++round) {
    Result<Expected> e = Expect(contract, scenario, round);
    if (!e.ok()) return "oracle: " + e.status().ToString();
    expected.push_back(std::move(*e));
  }
  const Status status = RunRanks(scenario.shape.ranks, kComm, [&](Communicator& comm) -> Status {
    SB_ASSIGN_OR_RETURN(auto transport,
                        Transport::Create(contract, comm, World(scenario.shape.ranks),
                                          scenario.shape, scenario.seed));
    for (int round = 0; round < rounds; ++round) {
      SB_RETURN_IF_ERROR(RunRound(*transport, contract, expected[round], round));
    }
    return OkStatus();
  });
  return status.ok() ? "" : status.ToString() + "\n  " + scenario.ToString();
}

}  // namespace signalbox
