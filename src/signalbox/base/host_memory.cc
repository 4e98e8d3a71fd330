// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/host_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>

namespace signalbox {
namespace {

// The number behind `key` in a table of lines "key  number ..."; an empty key is the whole file.
std::optional<int64_t> NumberIn(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::string_view rest = line;
    if (!rest.starts_with(key)) continue;
    rest.remove_prefix(key.size());
    if (!key.empty() && !rest.empty() && rest.front() != ' ' && rest.front() != ':') continue;
    rest.remove_prefix(std::min(rest.find_first_not_of(" :"), rest.size()));
    int64_t value = 0;
    const auto read = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    // "max", or more than anybody has: no limit.
    if (read.ec != std::errc() || value < 0) return std::nullopt;
    return value;
  }
  return std::nullopt;
}

// Where the two versions of control groups keep the same facts.
struct Version {
  std::string_view mount;
  std::string_view limit;
  std::string_view usage;
  std::string_view files[2];  // in memory.stat: caches of files, which give way
};
constexpr Version kVersion2 = {
    "sys/fs/cgroup", "memory.max", "memory.current", {"active_file", "inactive_file"}};
constexpr Version kVersion1 = {"sys/fs/cgroup/memory",
                               "memory.limit_in_bytes",
                               "memory.usage_in_bytes",
                               {"total_active_file", "total_inactive_file"}};

// `group` and all groups around it; a process in a container may see its own as the root.
void Limit(const std::string& root, const Version& version, std::string group, HostMemory* memory) {
  for (;;) {
    if (group == "/") group.clear();
    const std::string directory = root + std::string(version.mount) + group + "/";
    const auto limit = NumberIn(directory + std::string(version.limit), "");
    if (limit) {
      int64_t used = NumberIn(directory + std::string(version.usage), "").value_or(0);
      for (const std::string_view files : version.files)
        used -= NumberIn(directory + "memory.stat", files).value_or(0);
      if (*limit < memory->total) {
        memory->total = *limit;
        memory->source = "control group " + (group.empty() ? "/" : group);
      }
      memory->available = std::min(memory->available, std::max<int64_t>(*limit - used, 0));
    }
    if (group.empty()) return;
    group.erase(group.rfind('/'));
  }
}

}  // namespace

Result<HostMemory> ReadHostMemory(const std::string& root) {
  const std::string base = root.ends_with('/') ? root : root + "/";
  constexpr int64_t kKibi = 1024;
  const auto total = NumberIn(base + "proc/meminfo", "MemTotal");
  const auto available = NumberIn(base + "proc/meminfo", "MemAvailable");
  if (!total || !available) {
    return Unavailable({.what = "cannot tell how much memory there is",
                        .where = base + "proc/meminfo",
                        .expected = "MemTotal and MemAvailable"});
  }
  HostMemory memory{
      .total = *total * kKibi, .available = *available * kKibi, .source = "the machine"};
  // "4:memory,hugetlb:/group" of version 1, "0::/group" of version 2.
  std::ifstream groups(base + "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos || second + 1 >= line.size() || line[second + 1] != '/') continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") Limit(base, kVersion2, group, &memory);
    if (controllers.find(",memory,") != controllers.npos) Limit(base, kVersion1, group, &memory);
  }
  return memory;
}

}  // namespace signalbox
