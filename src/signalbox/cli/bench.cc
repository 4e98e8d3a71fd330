// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/bench.h"

#include <fmt/format.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "signalbox/base/check.h"
#include "signalbox/cli/commands.h"

namespace signalbox {
namespace {

struct Benchmark {
  std::string_view command;
  Result<BenchTable> (*run)(const FlagValues& flags);
};
constexpr Benchmark kBenchmarks[] = {
    {"bench a2a", BenchA2a},
};

std::string CellText(const BenchCell& cell) {
  if (const auto* n = std::get_if<int64_t>(&cell)) return fmt::format("{}", *n);
  if (const auto* d = std::get_if<double>(&cell)) return fmt::format("{:.1f}", *d);
  if (const auto* s = std::get_if<std::string>(&cell)) return *s;
  return "";
}

bool IsNumber(const BenchCell& cell) {
  return std::holds_alternative<int64_t>(cell) || std::holds_alternative<double>(cell);
}

}  // namespace

std::string BenchToText(const BenchTable& table) {
  std::vector<size_t> widths;
  for (size_t c = 0; c < table.columns.size(); ++c) {
    size_t width = table.columns[c].size();
    // The last column may hold a sentence: it sets no width.
    for (const auto& row : table.rows) {
      if (c + 1 < table.columns.size()) width = std::max(width, CellText(row[c]).size());
    }
    widths.push_back(width);
  }
  const auto pad = [&](const std::string& text, size_t column, bool right) {
    if (column + 1 == table.columns.size() && !right) return text;
    return right ? fmt::format("{:>{}}", text, widths[column])
                 : fmt::format("{:<{}}", text, widths[column]);
  };
  std::string text = table.title + "\n\n";
  const auto line = [&](const std::vector<std::string>& cells, const auto& right) {
    std::string row;
    for (size_t c = 0; c < cells.size(); ++c) {
      row += (c == 0 ? "" : "  ") + pad(cells[c], c, right(c));
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  };
  const auto numeric = [&](size_t c) {
    return std::ranges::any_of(table.rows, [c](const auto& row) { return IsNumber(row[c]); });
  };
  line(table.columns, numeric);
  for (const auto& row : table.rows) {
    std::vector<std::string> cells;
    for (const BenchCell& cell : row) cells.push_back(CellText(cell));
    line(cells, numeric);
  }
  for (const std::string& note : table.notes) text += "\n" + note + "\n";
  return text;
}

std::string BenchToJson(const BenchTable& table) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& cells : table.rows) {
    nlohmann::ordered_json row = nlohmann::ordered_json::object();
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string& key = table.columns[c];
      if (const auto* n = std::get_if<int64_t>(&cells[c])) row[key] = *n;
      if (const auto* d = std::get_if<double>(&cells[c])) row[key] = *d;
      if (const auto* s = std::get_if<std::string>(&cells[c])) row[key] = *s;
    }
    rows.push_back(std::move(row));
  }
  return nlohmann::ordered_json{{"title", table.title}, {"rows", std::move(rows)}}.dump(1) + "\n";
}

Status RunBench(const Invocation& invocation) {
  const auto* const found = std::ranges::find(kBenchmarks, invocation.command, &Benchmark::command);
  SB_CHECK(found != std::end(kBenchmarks)) << invocation.command;
  SB_ASSIGN_OR_RETURN(const BenchTable table, found->run(invocation.flags));
  const bool json = invocation.flags.Text("format") == "json";
  fmt::print("{}", json ? BenchToJson(table) : BenchToText(table));
  return table.verdict;
}

}  // namespace signalbox
