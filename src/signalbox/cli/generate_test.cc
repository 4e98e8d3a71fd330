// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "signalbox/cli/commands.h"

namespace signalbox::generate_test {
namespace {

using testing::HasSubstr;

Status Generate(const std::vector<std::string>& flags) {
  std::vector<const char*> arguments = {"signalbox", "generate", "/nonexistent", "--prompt", "x"};
  for (const std::string& f : flags) arguments.push_back(f.c_str());
  auto i = ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
  if (!i.ok()) return i.status();
  return RunGenerate(*i);
}

// Before the model is loaded: it does not exist, which would be a bad checkpoint.
TEST(Generate, SamplingFlagsOutOfRangeAreRefusedByName) {
  for (const auto& [flag, value, expected] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"--top-p", "0", "above 0 and at most 1"},
           {"--top-p", "1.5", "above 0 and at most 1"},
           {"--top-p", "-1", "a number of at least 0"},
           {"--top-k", "-2", "a whole number of at least -1"},
           {"--min-p", "1.01", "from 0 to 1"},
           {"--repetition-penalty", "0", "above 0"},
           {"--presence-penalty", "2.5", "from -2 to 2"},
           {"--presence-penalty", "-3", "a number of at least -2"},
           {"--frequency-penalty", "3", "from -2 to 2"},
           {"--min-new-tokens", "513", "at most --max-new-tokens, which is 512"}}) {
    const Status s = Generate({flag, value});
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << flag << " " << value;
    EXPECT_THAT(s.message(), HasSubstr(flag));
    EXPECT_THAT(s.message(), HasSubstr(expected));
  }
}

TEST(Generate, StopsOutOfTheirLimitsAreRefusedByName) {
  for (const auto& [flags, expected] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--stop", "a", "--stop", ""}, "empty"},
           {{"--stop", std::string(1025, 'x')}, "at most 1024"},
           {{"--stop=\xFF"}, "UTF-8"}}) {
    const Status s = Generate(flags);
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << s.ToString();
    EXPECT_THAT(s.message(), HasSubstr("--stop"));
    EXPECT_THAT(s.message(), HasSubstr(expected));
  }
}

TEST(Generate, AGrammarIsCheckedBeforeTheModelIsLoaded) {
  const std::string file = testing::TempDir() + "/schema.json";
  std::ofstream(file) << R"({"not": {}})";
  for (const auto& [flags, expected] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--json-schema", "{\"type\": "}, "--json-schema"},
           {{"--json-schema", "@" + file}, "schema keyword not supported (--json-schema, not)"},
           {{"--json-schema", "@/nonexistent.json"}, "file cannot be read (--json-schema)"},
           {{"--regex", "a{100000}"}, "repeated too often (--regex)"},
           {{"--ebnf", std::string(20000, ' ')}, "too many bytes (--ebnf)"},
           {{"--json-object", "--regex", "a"}, "--json-object and --regex"},
           {{"--regex", "a", "--ebnf", "root ::= \"a\""}, "--regex and --ebnf"}}) {
    const Status s = Generate(flags);
    EXPECT_EQ(ExitCode(s.code()), 2) << s.ToString();
    EXPECT_THAT(s.message(), HasSubstr(expected));
  }
  std::ofstream(file) << R"({"type": "object"})";
  for (const auto& flags : std::vector<std::vector<std::string>>{
           {"--json-schema", "@" + file}, {"--json-object"}, {"--ebnf", "root ::= \"a\""}}) {
    EXPECT_EQ(Generate(flags).code(), StatusCode::kBadCheckpoint);
  }
}

TEST(Generate, SamplingFlagsInRangeGetAsFarAsTheModel) {
  const Status s = Generate({"--top-p",
                             "0.9",
                             "--top-k",
                             "-1",
                             "--min-p",
                             "1",
                             "--presence-penalty",
                             "-2",
                             "--frequency-penalty=-0.5",
                             "--repetition-penalty",
                             "1.1",
                             "--min-new-tokens",
                             "512",
                             "--ignore-eos",
                             "--temperature",
                             "0.7",
                             "--stop",
                             "a",
                             "--stop=b",
                             "--include-stop"});
  EXPECT_EQ(s.code(), StatusCode::kBadCheckpoint) << s.ToString();
}

}  // namespace
}  // namespace signalbox::generate_test
