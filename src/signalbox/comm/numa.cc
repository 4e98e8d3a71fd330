// SPDX-License-Identifier: Apache-2.0
#include "signalbox/comm/numa.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <system_error>

#if defined(__linux__)
#include <sched.h>
#endif

namespace signalbox {
namespace {

constexpr int kMaxCpu = 65535;

std::optional<int> ParseNumber(std::string_view s) {
  int v = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), v);
  if (error != std::errc() || end != s.data() + s.size() || v < 0 || v > kMaxCpu) return {};
  return v;
}

}  // namespace

Result<CpuSet> ParseCpuList(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  CpuSet cpus;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view item = rest.substr(0, comma);
    const size_t dash = std::min(item.find('-'), item.size());
    const std::optional<int> first = ParseNumber(item.substr(0, dash));
    const std::optional<int> last =
        dash == item.size() ? first : ParseNumber(item.substr(dash + 1));
    const bool ends_in_comma = comma + 1 == rest.size();
    if (!first || !last || *last < *first || (!cpus.empty() && *first <= cpus.back()) ||
        ends_in_comma) {
      return InvalidArgument({.what = "not a list of CPUs",
                              .found = "\"" + std::string(text) + "\"",
                              .expected = "ascending numbers and ranges like 0-3,8"});
    }
    for (int c = *first; c <= *last; ++c) cpus.push_back(c);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return cpus;
}

std::vector<CpuSet> NumaNodes(const std::string& root) {
  namespace fs = std::filesystem;
  std::map<int, CpuSet> nodes;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with("node")) continue;
    const std::optional<int> number = ParseNumber(std::string_view(name).substr(4));
    std::string line;
    std::ifstream file(it->path() / "cpulist");
    if (!number || !std::getline(file, line)) continue;
    const Result<CpuSet> cpus = ParseCpuList(line);
    if (cpus.ok() && !cpus.value().empty()) nodes[*number] = cpus.value();
  }
  std::vector<CpuSet> sets;
  for (auto& [number, cpus] : nodes) sets.push_back(std::move(cpus));
  return sets;
}

bool BindThisThread([[maybe_unused]] const CpuSet& cpus) {
#if defined(__linux__)
  cpu_set_t allowed, wanted;
  CPU_ZERO(&allowed);
  CPU_ZERO(&wanted);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return false;
  for (int c : cpus) {
    if (c < CPU_SETSIZE && CPU_ISSET(c, &allowed)) CPU_SET(c, &wanted);
  }
  return CPU_COUNT(&wanted) > 0 && sched_setaffinity(0, sizeof(wanted), &wanted) == 0;
#else
  return false;
#endif
}

}  // namespace signalbox
