// SPDX-License-Identifier: Apache-2.0
//
// Which CPUs belong to which NUMA node, read from the kernel's own table, and binding of a thread
// to them.
//
//   std::vector<CpuSet> nodes = NumaNodes("/sys/devices/system/node");   // {{0,1},{2,3}}
//   if (nodes.size() > 1) BindThisThread(nodes[rank * nodes.size() / ranks]);
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/status.h"

namespace signalbox {

using CpuSet = std::vector<int>;  // ascending

// "0-3,8,10-11" as the kernel writes it. InvalidArgument: anything else, or a CPU above 65535.
Result<CpuSet> ParseCpuList(std::string_view text);

// The CPUs of every node under `root` that has any, by ascending node number; empty where the table
// is absent or unreadable.
std::vector<CpuSet> NumaNodes(const std::string& root);

// Restricts the calling thread, and those it starts later, to those of `cpus` that the process may
// use. False, and no change, where there are none or the system has no such call.
bool BindThisThread(const CpuSet& cpus);

}  // namespace signalbox
