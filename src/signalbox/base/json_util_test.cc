// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/json_util.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

namespace signalbox {
namespace {

using nlohmann::json;

TEST(ParseJson, AgreesWithTheLibraryOnSoundText) {
  for (const std::string text :
       {R"({"a": [1, -2, 3.5, true, null, "x\u00fc"], "b": {"c": {}, "d": []}})", "[]", "7",
        R"([[[1], 2], {"k": [{"k": 1}]}])"}) {
    Result<json> parsed = ParseJson(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(*parsed, json::parse(text));
  }
}

TEST(ParseJson, RefusesWhatReadersDisagreeAbout) {
  EXPECT_EQ(ParseJson(R"({"a": 1, "b": {"a": 2, "a": 3}})").status().message(),
            "duplicate key in JSON object: found 'a'");
  EXPECT_EQ(ParseJson(std::string_view("{}\0garbage", 10)).status().message(),
            "not valid JSON: found a NUL character (byte 2)");
  for (const std::string_view text :
       {"", "{", "{}{}", "{'a': 1}", "[1,]", "\"\xff\"", "1e999", "nul"}) {
    EXPECT_FALSE(ParseJson(text).ok()) << text;
  }
}

TEST(ParseJson, NestingIsBounded) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(ParseJson(nested(kMaxJsonDepth)).ok());
  EXPECT_EQ(ParseJson(nested(kMaxJsonDepth + 1)).status().message(),
            "JSON is nested too deeply: expected at most 64 levels");
  EXPECT_FALSE(ParseJson(std::string(10'000'000, '[')).ok());
}

TEST(ParseJson, ErrorsAreShortAndHaveTheCodeAskedFor) {
  const Status status =
      ParseJson("{\"a\": " + std::string(100'000, 'x'), StatusCode::kBadCheckpoint).status();
  EXPECT_EQ(status.code(), StatusCode::kBadCheckpoint);
  EXPECT_EQ(status.message(),
            "not valid JSON: found parse error at line 1, column 7: syntax error while parsing "
            "value - invalid literal (byte 7)");
}

TEST(ReadJsonFile, NamesTheFile) {
  const auto path = std::filesystem::path(testing::TempDir()) / "json_util_test.json";
  EXPECT_EQ(ReadJsonFile(path).status().code(), StatusCode::kBadCheckpoint);
  std::ofstream(path) << R"({"a": 1})";
  EXPECT_EQ((*ReadJsonFile(path))["a"], 1);
  std::ofstream(path) << R"({"a": 1, "a": 2})";
  EXPECT_EQ(ReadJsonFile(path).status().message(),
            "duplicate key in JSON object (" + path.string() + "): found 'a'");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace signalbox
