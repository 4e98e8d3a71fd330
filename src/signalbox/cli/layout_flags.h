// SPDX-License-Identifier: Apache-2.0
//
// From layout flags to what the planner is asked. A flag that was given is honoured, refused with
// the reason, or named in a note that says why it changes nothing here; never silently dropped.
//
//   std::vector<std::string> notes;
//   SB_ASSIGN_OR_RETURN(LayoutOptions layout, LayoutOptionsOf(flags, &notes));
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/cli/flags.h"
#include "signalbox/engine/engine.h"

namespace signalbox {

// The contracts that the flags name, by phase; nothing where none is named.
Result<std::array<std::optional<Contract>, 3>> ContractsOf(const FlagValues& flags);

// kInvalidArgument or kNotFound for values that name nothing and for flags that contradict each
// other, kRefused for what this program cannot do. Appends notes.
Result<LayoutOptions> LayoutOptionsOf(const FlagValues& flags, std::vector<std::string>* notes);

// What the flags say about the cache: EngineOptions' fields of the same names. The memory is this
// process's share of the host's, which it reads.
struct CacheOptions {
  CacheBudget budget;
  DType kv_dtype = DType::kF32;
  int64_t memory = 0;
  bool prefix_cache = true;
};
Result<CacheOptions> CacheOptionsOf(const FlagValues& flags, int64_t sequences,
                                    std::vector<std::string>* notes);

// How the memory of the ranks of this process is divided, as it is printed: a line, and another one
// where fewer tokens fit than were asked for.
std::string MemoryText(const FlagValues& flags, const RankMemory& rank, int64_t ranks,
                       int64_t tokens);

// What the flags say about the engine: the layout and the device that runs it.
Result<EngineOptions> EngineOptionsOf(const FlagValues& flags, int64_t parallel,
                                      std::vector<std::string>* notes);

// --rank-timeout; more than 30 years are 30 years.
std::chrono::milliseconds RankTimeoutOf(const FlagValues& flags);

// Whether ranks can be what --launcher says. `started_by_mpi`: this process is one of mpirun's.
Status CheckLauncher(const FlagValues& flags, bool started_by_mpi);

// Values of --moe-runner-backend: "auto" and one word per runner.
std::vector<std::string> RunnerChoices();

}  // namespace signalbox
