// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include <nlohmann/json.hpp>

#include "signalbox/base/check.h"
#include "signalbox/base/text_util.h"
#include "signalbox/cli/commands.h"

namespace signalbox {
namespace {

struct Benchmark {
  std::string_view command;
  Result<BenchTable> (*run)(const Invocation& invocation);
};
constexpr Benchmark kBenchmarks[] = {
    {"bench a2a", BenchA2a},
    {"bench decode", BenchDecode},
    {"bench prefill", BenchPrefill},
    {"bench serve", BenchServe},
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

std::vector<std::vector<std::string>> Transposed(
    const std::vector<std::vector<std::string>>& lines) {
  std::vector<std::vector<std::string>> columns(lines[0].size());
  for (const auto& line : lines) {
    for (size_t c = 0; c < line.size(); ++c) columns[c].push_back(line[c]);
  }
  return columns;
}

}  // namespace

std::string BenchToText(const BenchTable& table) {
  // Lines of cells, the names of the columns among them.
  std::vector<std::vector<std::string>> lines = {table.columns};
  for (const auto& row : table.rows) {
    std::vector<std::string>& line = lines.emplace_back();
    for (const BenchCell& cell : row) line.push_back(CellText(cell));
  }
  const auto numeric = [&](size_t c) {
    return std::ranges::any_of(table.rows, [c](const auto& row) { return IsNumber(row[c]); });
  };
  std::vector<bool> right;  // where columns of numbers are
  for (size_t c = 0; c < table.columns.size(); ++c) right.push_back(numeric(c));
  if (table.upright) {
    lines = Transposed(lines);
    right.assign(lines[0].size(), true);
    right[0] = false;
  }
  std::vector<size_t> widths(right.size());
  for (size_t l = 0; l < lines.size(); ++l) {
    for (size_t c = 0; c < widths.size(); ++c) {
      // The last column may hold a sentence: it sets no width.
      const bool counts = l == 0 || c + 1 < widths.size() || right[c];
      if (counts) widths[c] = std::max(widths[c], lines[l][c].size());
    }
  }
  std::string facts;
  for (const auto& [name, value] : table.facts)
    facts += fmt::format("{}{} {}", facts.empty() ? "" : ", ", name, CellText(value));
  std::string text = table.title + "\n" + (facts.empty() ? "" : facts + "\n") + "\n";
  for (const auto& line : lines) {
    std::string row;
    for (size_t c = 0; c < line.size(); ++c) {
      row += (c == 0 ? "" : "  ") + (right[c] ? fmt::format("{:>{}}", line[c], widths[c])
                                              : fmt::format("{:<{}}", line[c], widths[c]));
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  for (const std::string& note : table.notes) text += "\n" + note + "\n";
  return text;
}

std::string BenchToJson(const BenchTable& table) {
  using Json = nlohmann::ordered_json;
  const auto set = [](Json& object, const std::string& key, const BenchCell& cell) {
    if (const auto* n = std::get_if<int64_t>(&cell)) object[key] = *n;
    if (const auto* d = std::get_if<double>(&cell)) object[key] = *d;
    if (const auto* s = std::get_if<std::string>(&cell)) object[key] = *s;
  };
  Json rows = Json::array();
  for (const auto& cells : table.rows) {
    Json row = Json::object();
    for (size_t c = 0; c < cells.size(); ++c) set(row, table.columns[c], cells[c]);
    rows.push_back(std::move(row));
  }
  Json json{{"title", table.title}};
  for (const auto& [name, value] : table.facts) set(json, name, value);
  json["rows"] = std::move(rows);
  return json.dump(1) + "\n";
}

Result<int64_t> NumberOf(const FlagValues& flags, std::string_view flag, int64_t least,
                         int64_t most) {
  const int64_t value = flags.Int(flag);
  if (value >= least && value <= most) return value;
  return InvalidArgument({.what = "unusable value",
                          .where = fmt::format("--{}", flag),
                          .found = std::to_string(value),
                          .expected = fmt::format("{} to {}", least, most)});
}

Result<std::vector<int64_t>> NumbersOf(const FlagValues& flags, std::string_view flag,
                                       int64_t least, int64_t most) {
  const std::string& text = flags.Text(flag);
  std::vector<int64_t> list;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    int64_t n = 0;
    const auto read = std::from_chars(at, end, n);
    const bool more = read.ptr != end && *read.ptr == ',';
    if (read.ec != std::errc() || n < least || n > most || !(more || read.ptr == end)) {
      return InvalidArgument(
          {.what = "unusable value",
           .where = fmt::format("--{}", flag),
           .found = Quoted(text),
           .expected = fmt::format("numbers of {} to {}, separated by commas", least, most)});
    }
    list.push_back(n);
    if (!more) return list;
    at = read.ptr + 1;
  }
}

Status RunBench(const Invocation& invocation) {
  const auto* const found = std::ranges::find(kBenchmarks, invocation.command, &Benchmark::command);
  SB_CHECK(found != std::end(kBenchmarks)) << invocation.command;
  SB_ASSIGN_OR_RETURN(const BenchTable table, found->run(invocation));
  const bool json = invocation.flags.Text("format") == "json";
  fmt::print("{}", json ? BenchToJson(table) : BenchToText(table));
  return table.verdict;
}

}  // namespace signalbox
