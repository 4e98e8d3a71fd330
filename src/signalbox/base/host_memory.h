// SPDX-License-Identifier: Apache-2.0
//
// How much memory this process may have: the machine's, or less where a control group limits it.
//
//   SB_ASSIGN_OR_RETURN(HostMemory memory, ReadHostMemory());
//   fmt::print("{} of {}\n", memory.available, memory.total);
#pragma once

#include <cstdint>
#include <string>

#include "signalbox/base/status.h"

namespace signalbox {

struct HostMemory {
  int64_t total = 0;  // bytes of the machine, or the smallest limit of a control group
  int64_t available =
      0;               // of them, without pushing anybody out; caches of files count as available
  std::string source;  // "the machine", "control group /user.slice"
};

// Reads proc/meminfo, proc/self/cgroup and the groups' own files under `root`: versions 1 and 2,
// the process's group and all groups around it. Unavailable: there is no such table.
Result<HostMemory> ReadHostMemory(const std::string& root = "/");

}  // namespace signalbox
