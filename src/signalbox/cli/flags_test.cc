// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "signalbox/cli/answer.h"

namespace signalbox {
namespace {

using testing::HasSubstr;

Result<Invocation> Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "signalbox");
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
}

TEST(Flags, ValuesDefaultsAndPositionals) {
  auto i = Parse({"generate", "models/tiny", "--prompt", "Hi", "--temperature=0.5", "--chat"});
  ASSERT_TRUE(i.ok()) << i.status().ToString();
  EXPECT_EQ(i->command, "generate");
  EXPECT_EQ(i->positionals, (std::vector<std::string>{"models/tiny"}));
  EXPECT_EQ(i->flags.Text("prompt"), "Hi");
  EXPECT_EQ(i->flags.Number("temperature"), 0.5);
  EXPECT_TRUE(i->flags.Switch("chat"));
  EXPECT_FALSE(i->flags.Switch("no-thinking"));
  EXPECT_EQ(i->flags.Int("max-new-tokens"), 512);
}

TEST(Flags, ATextMayBeGivenSeveralTimes) {
  auto i = Parse({"generate", "--stop", "[END]", "m", "--stop=a,b c", "--stop", "\n\n"});
  ASSERT_TRUE(i.ok()) << i.status().ToString();
  EXPECT_EQ(i->flags.Texts("stop"), (std::vector<std::string>{"[END]", "a,b c", "\n\n"}));
  EXPECT_EQ(i->positionals, (std::vector<std::string>{"m"}));
  EXPECT_TRUE(Parse({"generate", "m"})->flags.Texts("stop").empty());
  setenv("SIGNALBOX_STOP", "[a, b]", 1);
  EXPECT_EQ(Parse({"generate", "m"})->flags.Texts("stop"), (std::vector<std::string>{"[a, b]"}));
  unsetenv("SIGNALBOX_STOP");
}

TEST(Flags, ACommandMayBeTwoWords) {
  auto i = Parse({"bench", "a2a", "--tokens", "3,5"});
  ASSERT_TRUE(i.ok()) << i.status().ToString();
  EXPECT_EQ(i->command, "bench a2a");
  EXPECT_EQ(i->flags.Text("tokens"), "3,5");
  EXPECT_TRUE(i->positionals.empty());
}

TEST(Flags, CommandLineBeatsEnvironmentBeatsDefault) {
  setenv("SIGNALBOX_MAX_NEW_TOKENS", "7", 1);
  EXPECT_EQ(Parse({"generate", "m"})->flags.Int("max-new-tokens"), 7);
  EXPECT_EQ(Parse({"generate", "m", "--max-new-tokens", "8"})->flags.Int("max-new-tokens"), 8);
  unsetenv("SIGNALBOX_MAX_NEW_TOKENS");
}

TEST(Flags, ErrorsNameTheNearestAndExitWithTwo) {
  for (const auto& [arguments, part] :
       std::vector<std::pair<std::vector<const char*>, const char*>>{
           {{"generate", "m", "--promt", "x"}, "did you mean --prompt?"},
           {{"generate", "m", "--promt=x"}, "did you mean --prompt?"},
           {{"evla", "m"}, "did you mean eval?"},
           {{"bench"}, "there is bench a2a"},
           {{"bench", "--help"}, "there is bench a2a"},
           {{"bench", "a2"}, "did you mean bench a2a?"},
           {{"bench", "a2a", "--token", "1"}, "did you mean --tokens?"},
           {{"generate", "m", "--max-new-tokens", "many"}, "a whole number"},
           {{"generate", "m", "--max-new-tokens", "-1"}, "a whole number"},
           {{"generate", "m", "--temperature", "nan"}, "a number"},
           {{"generate", "m", "--device", "tpu"}, "one of auto, cpu, cuda, reference"},
           {{"generate"}, "generate"},
           {{"generate", "m", "n"}, "unexpected argument"},
           {{"synth", "c", "o", "--format", "text"}, "one of bf16, fp8, mxfp4"}}) {
    auto i = Parse(arguments);
    ASSERT_FALSE(i.ok()) << arguments.back();
    EXPECT_EQ(ExitCode(i.status().code()), 2);
    EXPECT_THAT(i.status().message(), HasSubstr(part));
  }
}

TEST(Flags, HelpListsCommandsAndFlags) {
  EXPECT_THAT(Parse({"--help"})->message, HasSubstr("eval"));
  EXPECT_THAT(Parse({})->message, HasSubstr("eval"));
  EXPECT_THAT(Parse({"eval", "--help"})->message, HasSubstr("--parallel"));
}

TEST(Flags, TableIsConsistent) {
  std::set<std::string> rows;
  for (const FlagSpec& f : FlagTable())
    EXPECT_TRUE(rows.insert(f.only + "/" + f.name).second) << f.name;
  std::set<std::string> used;
  for (const CommandSpec& c : CommandTable()) {
    std::set<std::string> names;
    for (const std::string& f : c.flags) {
      EXPECT_TRUE(names.insert(f).second) << c.name << " " << f;
      EXPECT_TRUE(rows.count("/" + f) || rows.count(c.name + "/" + f)) << c.name << " " << f;
      used.insert(f);
    }
  }
  for (const FlagSpec& f : FlagTable()) EXPECT_TRUE(used.count(f.name)) << f.name;
}

TEST(Answer, LastNumberOfTheText) {
  EXPECT_EQ(LastNumber("12+7=19\nThe answer is 19."), 19);
  EXPECT_EQ(LastNumber("The answer is 1,019."), 1019);
  EXPECT_EQ(LastNumber("it is -3"), -3);
  EXPECT_EQ(LastNumber("between 2-3"), 3);
  EXPECT_EQ(LastNumber("half is 2.5!"), 2.5);
  EXPECT_EQ(LastNumber("#### 72"), 72);
  EXPECT_EQ(LastNumber("no digits"), std::nullopt);
  EXPECT_EQ(LastNumber(""), std::nullopt);
  EXPECT_EQ(LastNumber("7"), 7);
}

}  // namespace
}  // namespace signalbox
