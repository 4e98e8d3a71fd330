// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "signalbox/a2a/contract.h"

namespace signalbox {
namespace {

using testing::HasSubstr;

FlagValues Flags(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), {"signalbox", "bench", "a2a"});
  auto i = ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
  EXPECT_TRUE(i.ok()) << i.status().ToString();
  return i.ok() ? i->flags : FlagValues();
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

TEST(BenchTableTest, TextAlignsAndJsonKeepsNumbers) {
  const BenchTable table{
      .title = "title",
      .columns = {"name", "us", "why"},
      .rows = {{std::string("a"), 1.25, {}}, {std::string("long"), int64_t{7}, std::string("x y")}},
      .notes = {"note"}};
  EXPECT_EQ(BenchToText(table), "title\n\nname   us  why\na     1.2\nlong    7  x y\n\nnote\n");
  const auto json = nlohmann::json::parse(BenchToJson(table));
  EXPECT_EQ(json["rows"][0], (nlohmann::json{{"name", "a"}, {"us", 1.25}}));
  EXPECT_EQ(json["rows"][1]["us"], 7);
}

}  // namespace
}  // namespace signalbox
