// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include <nlohmann/json.hpp>

#include "signalbox/a2a/contract.h"

namespace signalbox::bench_test {
namespace {

using testing::HasSubstr;

Invocation Of(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), {"signalbox", "bench"});
  auto i = ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
  EXPECT_TRUE(i.ok()) << i.status().ToString();
  return i.ok() ? *i : Invocation();
}

Invocation Flags(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "a2a");
  return Of(std::move(arguments));
}

size_t Column(const BenchTable& table, std::string_view name) {
  return std::ranges::find(table.columns, name) - table.columns.begin();
}

TEST(BenchA2aTest, EveryContractMovesTheBytesOfItsRouting) {
  const auto table = BenchA2a(Flags({"--ranks", "3", "--experts", "6", "--hidden", "16", "--tokens",
                                     "1,5", "--top-k", "4", "--repeats", "2"}));
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_TRUE(table->verdict.ok()) << table->verdict.ToString();
  std::set<std::string> measured;
  for (const auto& row : table->rows) {
    SCOPED_TRACE(std::get<std::string>(row[0]));
    const size_t moved = Column(*table, "bytes between");
    ASSERT_TRUE(std::holds_alternative<int64_t>(row[moved])) << BenchToText(*table);
    EXPECT_GT(std::get<int64_t>(row[moved]), 0);
    EXPECT_EQ(row[moved], row[Column(*table, "by formula")]);
    EXPECT_GE(std::get<double>(row[Column(*table, "dispatch us")]), 0);
    measured.insert(std::get<std::string>(row[0]));
  }
  for (const Contract& c : AllContracts()) {
    EXPECT_EQ(measured.contains(ContractId(c)), c.shape != RowShape::kNone && !c.own_router);
  }
}

// Two ranks of one expert each and both experts for every token: each token crosses once each way.
// A dispatched row has 8 values and 2 + 2 * 2 words of where it belongs.
TEST(BenchA2aTest, CountsWhatCrosses) {
  const auto table = BenchA2a(
      Flags({"--moe-a2a-contract", SIGNALBOX_SOURCE_DIR "/src/signalbox/a2a/testdata/acme.contract",
             "--ranks", "2", "--experts", "2", "--top-k", "2", "--hidden", "8", "--tokens", "10"}));
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  ASSERT_EQ(table->rows.size(), 1u);
  EXPECT_EQ(std::get<int64_t>(table->rows[0][Column(*table, "bytes between")]),
            2 * 10 * (8 + 6 + 8) * 4);
}

TEST(BenchA2aTest, RowsThatAContractRefusesSayWhy) {
  for (const Contract& c : AllContracts()) {
    if (c.limits.top_k_max != 9 || c.mode.empty()) continue;
    const auto table =
        BenchA2a(Flags({"--moe-a2a-backend", c.name.c_str(), "--moe-a2a-mode", c.mode.c_str(),
                        "--top-k", "10", "--tokens", "2", "--hidden", "8"}));
    ASSERT_TRUE(table.ok()) << table.status().ToString();
    EXPECT_THAT(BenchToText(*table), HasSubstr("10 experts per token exceed the limit of 9"));
  }
}

TEST(BenchA2aTest, BadSizesNameTheirFlag) {
  for (const auto& [arguments, part] :
       std::vector<std::pair<std::vector<const char*>, const char*>>{
           {{"--tokens", "1,,2"}, "--tokens"},
           {{"--tokens", "1,"}, "--tokens"},
           {{"--tokens", "0"}, "--tokens"},
           {{"--tokens", "1;2"}, "--tokens"},
           {{"--tokens", "99999999999999999999"}, "--tokens"},
           {{"--ranks", "0"}, "--ranks"},
           {{"--ranks", "3"}, "a multiple of 3"},
           {{"--top-k", "17"}, "1 to 16"},
           {{"--hidden", "0"}, "--hidden"},
           {{"--moe-a2a-backend", "none"}, "nothing to measure"}}) {
    const auto table = BenchA2a(Flags(arguments));
    ASSERT_FALSE(table.ok()) << part;
    EXPECT_EQ(ExitCode(table.status().code()), 2);
    EXPECT_THAT(table.status().message(), HasSubstr(part));
  }
}

constexpr const char* kTiny = SIGNALBOX_SOURCE_DIR "/models/tiny-qwen3.5-moe-mxfp4";
constexpr const char* kRandom = SIGNALBOX_SOURCE_DIR "/models/random/qwen3.5-moe";

double Number(const BenchTable& table, const std::vector<BenchCell>& row, std::string_view column) {
  const BenchCell& cell = row[Column(table, column)];
  if (const auto* n = std::get_if<int64_t>(&cell)) return static_cast<double>(*n);
  EXPECT_TRUE(std::holds_alternative<double>(cell)) << column;
  return std::holds_alternative<double>(cell) ? std::get<double>(cell) : 0;
}

// Every number is a positive one; state and keys may be of no bytes.
void ExpectMeasured(const BenchTable& table) {
  for (const auto& row : table.rows) {
    ASSERT_EQ(row.size(), table.columns.size());
    for (const std::string& column : table.columns) {
      const double value = Number(table, row, column);
      EXPECT_TRUE(std::isfinite(value)) << column;
      if (column == "depth") continue;
      EXPECT_GT(value, 0) << column;
    }
    EXPECT_LE(Number(table, row, "least ms"), Number(table, row, "most ms"));
  }
}

TEST(BenchStepsTest, DecodeHasARowForEachBatchAtEachDepth) {
  const auto table = BenchDecode(Of({"decode", kRandom, "--batch", "3,1", "--depth", "20,0",
                                     "--repeats", "3", "--threads", "1", "--seed", "7"}));
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  std::set<std::pair<double, double>> rows;
  for (const auto& row : table->rows) {
    rows.emplace(Number(*table, row, "batch"), Number(*table, row, "depth"));
    const double rate = Number(*table, row, "GB/s") / Number(*table, row, "read GB/s");
    EXPECT_NEAR(Number(*table, row, "% of read"), 100 * rate, 1e-6 * rate);
    // One layer of attention with two heads of 32 numbers for keys and for values.
    const double kv = Number(*table, row, "batch") * (Number(*table, row, "depth") + 1) * 512;
    EXPECT_DOUBLE_EQ(Number(*table, row, "KV MB") * 1e6, kv);
  }
  const std::set<std::pair<double, double>> all = {{3, 0}, {1, 0}, {3, 20}, {1, 20}};
  EXPECT_EQ(rows, all);
  ExpectMeasured(*table);
  const auto json = nlohmann::json::parse(BenchToJson(*table));
  EXPECT_EQ(json["seed"], 7);
  EXPECT_EQ(json["temperature"], 0);
  EXPECT_EQ(json["threads"], 1);
  EXPECT_THAT(BenchToText(*table), HasSubstr("temperature 0.0, seed 7"));
}

// Steps of five tokens; the third sequence is cut by a step.
TEST(BenchStepsTest, PrefillHasARowForEachBatchOfEachPrompt) {
  const auto table =
      BenchPrefill(Of({"prefill", kRandom, "--batch", "1,3", "--prompt-tokens", "7", "--repeats",
                       "2", "--threads", "1", "--chunked-prefill-size", "5"}));
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_EQ(table->rows.size(), 2u);
  ExpectMeasured(*table);
  // 5 tokens, then 2 behind them.
  EXPECT_DOUBLE_EQ(Number(*table, table->rows[0], "KV MB") * 1e6, (5 + 7) * 512.);
}

TEST(BenchStepsTest, LayoutsAreMeasuredToo) {
  const auto table =
      BenchDecode(Of({"decode", kRandom, "--tp", "2", "--dp", "2", "--enable-dp-attention", "--ep",
                      "2", "--batch", "3", "--depth", "3", "--repeats", "2", "--threads", "2"}));
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_EQ(table->rows.size(), 1u);
  ExpectMeasured(*table);
}

TEST(BenchStepsTest, DraftsGiveAnAcceptLength) {
  const auto table = BenchDecode(
      Of({"decode", kTiny, "--speculative-algorithm", "mtp", "--speculative-num-steps", "2",
          "--batch", "1,2", "--depth", "0,9", "--new-tokens", "8", "--threads", "1"}));
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_EQ(table->rows.size(), 4u);
  ExpectMeasured(*table);
  for (const auto& row : table->rows) {
    EXPECT_GE(Number(*table, row, "accept length"), 1);
    EXPECT_LE(Number(*table, row, "accept length"), 3);
  }
}

TEST(BenchStepsTest, WhatCannotBeMeasuredNamesItsFlag) {
  for (const auto& [arguments, part] :
       std::vector<std::pair<std::vector<const char*>, const char*>>{
           {{"--batch", "0"}, "--batch"},
           {{"--depth", "-1"}, "--depth"},
           {{"--depth", "512"}, "at most 512"},
           {{"--repeats", "0"}, "--repeats"},
           {{"--new-tokens", "0"}, "--new-tokens"},
           {{"--batch", "4", "--max-running-requests", "2"}, "--max-running-requests"},
           {{"--batch", "4", "--depth", "16", "--max-total-tokens", "16"}, "for each of 4"}}) {
    std::vector<const char*> all = {"decode", kRandom};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const auto table = BenchDecode(Of(all));
    ASSERT_FALSE(table.ok()) << part;
    EXPECT_THAT(table.status().message(), HasSubstr(part));
  }
  EXPECT_EQ(BenchDecode(Of({"decode", "/nonexistent"})).status().code(),
            StatusCode::kBadCheckpoint);
}

TEST(BenchTableTest, TextAlignsAndJsonKeepsNumbers) {
  const BenchTable table{
      .title = "title",
      .facts = {{"seed", int64_t{3}}, {"model", std::string("m")}},
      .columns = {"name", "us", "why"},
      .rows = {{std::string("a"), 1.25, {}}, {std::string("long"), int64_t{7}, std::string("x y")}},
      .notes = {"note"}};
  EXPECT_EQ(BenchToText(table),
            "title\nseed 3, model m\n\nname   us  why\na     1.2\nlong    7  x y\n\nnote\n");
  const auto json = nlohmann::json::parse(BenchToJson(table));
  EXPECT_EQ(json["rows"][0], (nlohmann::json{{"name", "a"}, {"us", 1.25}}));
  EXPECT_EQ(json["rows"][1]["us"], 7);
  EXPECT_EQ(json["seed"], 3);
}

}  // namespace
}  // namespace signalbox::bench_test
