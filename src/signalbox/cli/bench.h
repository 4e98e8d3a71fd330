// SPDX-License-Identifier: Apache-2.0
//
// Benchmarks: what `bench KIND` measures, each a function from an invocation to a table that is
// printed as text or JSON. A new one is a row of the table in bench.cc and a command "bench KIND"
// in the flag table.
//
//   SB_ASSIGN_OR_RETURN(BenchTable table, BenchA2a(invocation));
//   fmt::print("{}", BenchToText(table));   // and table.verdict decides the exit code
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/cli/flags.h"

namespace signalbox {

// Nothing where a row has no such value.
using BenchCell = std::variant<std::monostate, int64_t, double, std::string>;

struct BenchTable {
  std::string title;                                     // what was measured, on one line
  std::vector<std::pair<std::string, BenchCell>> facts;  // that hold for all rows
  std::vector<std::string> columns;  // "dispatch us": the unit is part of the name
  std::vector<std::vector<BenchCell>> rows;
  std::vector<std::string> notes;  // what a reader has to know about the columns
  Status verdict;                  // an error when what was measured cannot be right
  bool upright = false;            // as text, columns are lines: for many columns and few rows
};

std::string BenchToText(const BenchTable& table);
// {"title": ..., "seed": ..., "rows": [{"dispatch us": ...}]}; what has no value is left out.
std::string BenchToJson(const BenchTable& table);

// Dispatch and combine of contracts over thread ranks, beside a copy of the same bytes. The verdict
// is Internal when the bytes that crossed between ranks are not those of the dedup formula.
Result<BenchTable> BenchA2a(const Invocation& invocation);

// Steps of a model: time, the bytes that they must read, and how near that comes to what as many
// threads read in the same minutes. With drafts decode runs whole requests and gives the accept
// length instead of bytes.
Result<BenchTable> BenchDecode(const Invocation& invocation);
Result<BenchTable> BenchPrefill(const Invocation& invocation);

// A server at --url under load: what it answers and how soon. The verdict is Unavailable when a
// request failed.
Result<BenchTable> BenchServe(const Invocation& invocation);

// The value of a flag, or of a list of numbers ("1,128,4096"), in [least, most]; else
// kInvalidArgument with its name.
Result<int64_t> NumberOf(const FlagValues& flags, std::string_view flag, int64_t least,
                         int64_t most);
Result<std::vector<int64_t>> NumbersOf(const FlagValues& flags, std::string_view flag,
                                       int64_t least, int64_t most);

}  // namespace signalbox
