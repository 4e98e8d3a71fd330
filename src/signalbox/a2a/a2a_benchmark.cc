// SPDX-License-Identifier: Apache-2.0
//
// Dispatch + combine of every executable contract over two thread ranks.
#include <benchmark/benchmark.h>

#include <algorithm>

#include "signalbox/a2a/measure.h"
#include "signalbox/comm/thread_world.h"

namespace signalbox {
namespace {

void BM_Exchange(benchmark::State& state, const Contract& contract) {
  const int64_t tokens = state.range(0);
  const ExchangeShape shape{.ranks = 2, .slots = 4, .hidden = 1024, .top_k = 4, .capacity = tokens};
  ExchangeTiming timing;
  for (auto _ : state) {
    const Status status = RunRanks(2, {}, [&](Communicator& comm) -> Status {
      SB_ASSIGN_OR_RETURN(auto transport,
                          Transport::Create(contract, comm, {RankId(0), RankId(1)}, shape));
      SB_ASSIGN_OR_RETURN(const ExchangeTiming mine,
                          MeasureExchange(*transport, {.tokens = tokens, .repeats = 5}));
      if (transport->position() == 0) timing = mine;
      return OkStatus();
    });
    if (!status.ok()) {
      state.SkipWithError(status.message().c_str());
      return;
    }
    state.SetIterationTime((timing.dispatch_us + timing.combine_us) * 1e-6);
  }
  state.counters["dispatch_us"] = timing.dispatch_us;
  state.counters["combine_us"] = timing.combine_us;
  state.counters["copy_us"] = timing.copy_us;
  state.counters["rows"] = static_cast<double>(timing.dispatched.rows);
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const Contract& c : AllContracts()) {
    if (c.shape == RowShape::kNone || c.shape == RowShape::kFused) continue;
    benchmark::RegisterBenchmark(("exchange/" + ContractId(c)).c_str(),
                                 [&c](benchmark::State& state) { BM_Exchange(state, c); })
        ->Arg(1)
        ->Arg(128)
        ->Arg(4096)
        ->UseManualTime()
        ->Iterations(1);
  }
  return true;
}();

}  // namespace
}  // namespace signalbox
