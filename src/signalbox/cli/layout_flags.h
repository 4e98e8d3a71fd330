// SPDX-License-Identifier: Apache-2.0
//
// From layout flags to what the planner is asked.
//
//   SB_ASSIGN_OR_RETURN(LayoutOptions layout, LayoutOptionsOf(flags));
#pragma once

#include <array>
#include <optional>

#include "signalbox/base/status.h"
#include "signalbox/cli/flags.h"
#include "signalbox/engine/engine.h"

namespace signalbox {

// The contracts that the flags name, by phase; nothing where none is named.
Result<std::array<std::optional<Contract>, 3>> ContractsOf(const FlagValues& flags);

// kInvalidArgument or kNotFound for values that name nothing, flags that contradict each other.
Result<LayoutOptions> LayoutOptionsOf(const FlagValues& flags);

}  // namespace signalbox
