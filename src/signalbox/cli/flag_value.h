// SPDX-License-Identifier: Apache-2.0
//
// One value of one flag: whether it is of the flag's kind, and how it is written. Internal to the
// flags.
//
//   SB_ASSIGN_OR_RETURN(std::string n, CanonicalValue(flag, "25.6k", "--max-total-tokens"));
//   // "25600"
#pragma once

#include <string>

#include "signalbox/base/status.h"
#include "signalbox/cli/flags.h"

namespace signalbox {

// The value as FlagValues reads it. kInvalidArgument for one that is not of the kind, or too small;
// choices are not looked at. `where` is who gave it.
Result<std::string> CanonicalValue(const FlagSpec& flag, const std::string& value,
                                   const std::string& where);
// What counts where nobody gives a value; empty: nothing.
std::string DefaultOf(const FlagSpec& flag);
// The error for a value that is none of the flag.
Status UnusableValue(const FlagSpec& flag, const std::string& value, const std::string& where);

}  // namespace signalbox
