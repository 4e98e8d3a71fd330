// SPDX-License-Identifier: Apache-2.0
//
// Latency and bandwidth of the collectives of two thread ranks. `bytes_per_second` counts the
// payload of one rank once.
#include <benchmark/benchmark.h>

#include "signalbox/comm/thread_world.h"

namespace signalbox {
namespace {

constexpr int kRanks = 2;

// Runs `call` as often on every rank as the benchmark asks of the first.
template <typename Call>
void RunBenchmark(benchmark::State& state, Call call) {
  const auto times = state.max_iterations;
  const std::vector<RankId> all{RankId(0), RankId(1)};
  const Status s = RunRanks(kRanks, {}, [&](Communicator& comm) -> Status {
    std::vector<float> data(state.range(0) / sizeof(float), 0.0f);
    SB_RETURN_IF_ERROR(comm.Barrier(all));
    if (comm.rank().value() != 0) {
      for (benchmark::IterationCount i = 0; i < times; ++i) {
        SB_RETURN_IF_ERROR(call(comm, all, data));
      }
      return OkStatus();
    }
    for (auto _ : state) SB_RETURN_IF_ERROR(call(comm, all, data));
    return OkStatus();
  });
  if (!s.ok()) state.SkipWithError(s.ToString().c_str());
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void BM_AllReduce(benchmark::State& state) {
  RunBenchmark(state, [](Communicator& comm, auto& all, std::vector<float>& data) {
    return comm.AllReduceSum(all, data);
  });
}

void BM_AllGather(benchmark::State& state) {
  const int64_t half = state.range(0) / kRanks;
  RunBenchmark(state, [half](Communicator& comm, auto& all, std::vector<float>& data) {
    const std::vector<int64_t> bytes{half, half};
    const std::span<std::byte> recv = WritableBytesOf(data);
    return comm.AllGather(all, recv.subspan(comm.rank().value() * half, half), bytes, recv);
  });
}

BENCHMARK(BM_AllReduce)->RangeMultiplier(8)->Range(64, 16 << 20)->UseRealTime();
BENCHMARK(BM_AllGather)->RangeMultiplier(8)->Range(64, 16 << 20)->UseRealTime();

}  // namespace
}  // namespace signalbox
