// SPDX-License-Identifier: Apache-2.0
//
// How rows of the flag table are written, and the parts that it is put together from. Internal to
// the table.
//
//   Also(From(1, {"port", FlagKind::kInt, "30000", "port to listen on"}), {"http-port"})
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "signalbox/cli/flags.h"

namespace signalbox {

inline FlagSpec Also(FlagSpec flag, std::vector<std::string> aliases) {
  flag.aliases = std::move(aliases);
  return flag;
}

inline FlagSpec From(int least, FlagSpec flag) {
  flag.least = least;
  return flag;
}

inline FlagSpec Ruled(FlagSpec flag, std::vector<FlagRule> rules) {
  flag.rules = std::move(rules);
  return flag;
}

inline std::vector<FlagSpec> Grouped(const std::string& group, std::vector<FlagSpec> flags) {
  for (FlagSpec& flag : flags) flag.group = group;
  return flags;
}

// Flags in launch lines of other engines that no code here reads: of every command that loads or
// plans a model, and of `serve` alone.
std::vector<FlagSpec> CarriedFlags();
std::vector<FlagSpec> CarriedServeFlags();

}  // namespace signalbox
