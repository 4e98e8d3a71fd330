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
  std::string facts;
  for (const auto& [name, value] : table.facts)
    facts += fmt::format("{}{} {}", facts.empty() ? "" : ", ", name, CellText(value));
  std::string text = table.title + "\n" + (facts.empty() ? "" : facts + "\n") + "\n";
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
