// SPDX-License-Identifier: Apache-2.0
//
// testdata/launch_flags.case says what flags of other engines come to.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "signalbox/cli/flag_help.h"
#include "signalbox/cli/flag_sources.h"
#include "signalbox/cli/flags.h"

namespace signalbox::carried_flags_test {
namespace {

using testing::HasSubstr;

Result<Invocation> Parse(const std::string& line, std::set<std::string>* seen) {
  std::vector<std::string> words = {"signalbox"};
  std::istringstream stream(line);
  for (std::string word; stream >> word;) {
    if (word.starts_with("--")) seen->insert(PlainName(word.substr(2, word.find('=') - 2)));
    words.push_back(word);
  }
  words.emplace_back("--model=m");
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
}

TEST(CarriedFlags, Cases) {
  std::ifstream file(SIGNALBOX_TESTDATA "/launch_flags.case");
  std::set<std::string> seen;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    SCOPED_TRACE(line);
    const size_t bar = line.find(" | ");
    ASSERT_NE(bar, line.npos);
    const std::string outcome = line.substr(bar + 3);
    const std::string kind = outcome.substr(0, outcome.find(' '));
    const std::string text = kind == outcome ? "" : outcome.substr(kind.size() + 1);
    const auto invocation = Parse(line.substr(0, bar), &seen);
    if (kind == "ok" || kind == "note") {
      ASSERT_TRUE(invocation.ok()) << invocation.status().ToString();
      EXPECT_EQ(invocation->notes.size(), kind == "note" ? 1u : 0u);
      for (const std::string& note : invocation->notes) EXPECT_THAT(note, HasSubstr(text));
      continue;
    }
    ASSERT_FALSE(invocation.ok());
    EXPECT_EQ(std::to_string(ExitCode(invocation.status().code())), kind);
    EXPECT_THAT(invocation.status().message(), HasSubstr(text));
  }
  for (const FlagSpec& flag : FlagTable()) {
    if (flag.rules.empty()) continue;
    EXPECT_TRUE(seen.contains(PlainName(flag.name)) || flag.name == "speculative-algorithm")
        << "no case for --" << flag.name;
  }
}

// Each such flag is judged by its rules alone, so it must have some, with a reason.
TEST(CarriedFlags, SayWhy) {
  for (const FlagSpec& flag : FlagTable()) {
    EXPECT_TRUE(flag.group != kCarriedGroup || !flag.rules.empty()) << flag.name;
    for (const FlagRule& rule : flag.rules) {
      EXPECT_TRUE(!rule.reason.empty() || rule.verdict == FlagRule::Verdict::kTaken) << flag.name;
    }
  }
}

}  // namespace
}  // namespace signalbox::carried_flags_test
