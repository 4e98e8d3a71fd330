// SPDX-License-Identifier: Apache-2.0
//
// From layout flags to what the planner is asked. A flag that was given is honoured, refused with
// the reason, or named in a note that says why it changes nothing here; never silently dropped.
//
//   std::vector<std::string> notes;
//   SB_ASSIGN_OR_RETURN(LayoutOptions layout, LayoutOptionsOf(flags, &notes));
#pragma once

#include <array>
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

// What the flags say about the engine: the layout and the device that runs it.
Result<EngineOptions> EngineOptionsOf(const FlagValues& flags, int64_t parallel,
                                      std::vector<std::string>* notes);

// Whether ranks can be what --launcher says. `started_by_mpi`: this process is one of mpirun's.
Status CheckLauncher(const FlagValues& flags, bool started_by_mpi);

// Values of --moe-runner-backend: "auto" and one word per runner.
std::vector<std::string> RunnerChoices();

}  // namespace signalbox
