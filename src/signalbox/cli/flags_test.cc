// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "signalbox/cli/answer.h"
#include "signalbox/cli/flag_sources.h"

namespace signalbox::flags_test {
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

// A file that lives as long as the test.
class File {
 public:
  explicit File(std::string_view text) {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("signalbox-flags-" + std::to_string(getpid()) + "-" + std::to_string(count++));
    std::ofstream(path_) << text;
  }
  ~File() { std::filesystem::remove(path_); }
  const char* path() const { return path_.c_str(); }

 private:
  std::filesystem::path path_;
};

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(Flags, CommandLineBeatsEnvironmentBeatsFileBeatsDefault) {
  const File file("max_new_tokens: 6\n");
  EXPECT_EQ(Parse({"generate", "m"})->flags.Int("max-new-tokens"), 512);
  EXPECT_EQ(Parse({"generate", "m", "--config", file.path()})->flags.Int("max-new-tokens"), 6);
  const Variable variable("SIGNALBOX_MAX_NEW_TOKENS", "7");
  EXPECT_EQ(Parse({"generate", "m", "--config", file.path()})->flags.Int("max-new-tokens"), 7);
  const auto all = Parse({"generate", "m", "--config", file.path(), "--max-new-tokens", "8"});
  EXPECT_EQ(all->flags.Int("max-new-tokens"), 8);
}

TEST(Flags, AFileHasEveryFlagInAnySpelling) {
  const File file(R"(
# what serves
model-path: models/tiny
tensor_parallel_size: 2
enable-dp-attention: yes
enable-prefix-caching: false   # the opposite of a switch
kv-cache-dtype: "fp8"
stop: [a, "b: c"]
speculative-config: {method: mtp, num_speculative_tokens: 2}
eplb_config:
  num_redundant_experts: 3
max-total-tokens: 25.6k
)");
  const auto i = Parse({"generate", "--config", file.path()});
  ASSERT_TRUE(i.ok()) << i.status().ToString();
  EXPECT_TRUE(i->notes.empty());
  EXPECT_EQ(i->positionals, (std::vector<std::string>{"models/tiny"}));
  EXPECT_EQ(i->flags.Int("tp"), 2);
  EXPECT_TRUE(i->flags.Switch("enable-dp-attention"));
  EXPECT_TRUE(i->flags.Switch("disable-radix-cache"));
  EXPECT_EQ(i->flags.Text("kv-cache-dtype"), "fp8");
  EXPECT_EQ(i->flags.Texts("stop"), (std::vector<std::string>{"a", "b: c"}));
  EXPECT_EQ(i->flags.Text("speculative-algorithm"), "mtp");
  EXPECT_EQ(i->flags.Int("speculative-num-steps"), 2);
  EXPECT_EQ(i->flags.Int("ep-num-redundant-experts"), 3);
  EXPECT_EQ(i->flags.Int("max-total-tokens"), 25600);
}

TEST(Flags, AFileThatIsWrongSaysWhere) {
  for (const auto& [text, part] : std::vector<std::pair<const char*, const char*>>{
           {"tp: 2\ntensor-paralel-size: 2\n",
            "line 2): found 'tensor-paralel-size'; did you mean "
            "tensor-parallel-size?"},
           {"tp: two\n", "line 1): found 'two', expected a whole number"},
           {"tp: 2\ntp-size: 4\n", "given twice"},
           {"tp: [1, 2]\n", "one value is needed"},
           {"stop: [[a]]\n", "a list of no texts"},
           {"stop: {a: {b: {c: {d: e}}}}\n", "maps too deep"},
           {"speculative-config: {mehtod: mtp}\n", "did you mean speculative-config.method?"},
           {"- tp\n", "found a list"},
           {"tp\n", "found no map"},
           {"a: [\n", "no YAML"},
           {"x: &x {y: *x}\n", "unusable configuration"},
           {"", "cannot read"}}) {
    SCOPED_TRACE(text);
    const File file(text);
    const auto i = Parse({"generate", "m", "--config", file.path()});
    ASSERT_FALSE(i.ok());
    EXPECT_EQ(ExitCode(i.status().code()), 2);
    EXPECT_THAT(i.status().message(), HasSubstr(part));
  }
  EXPECT_THAT(Parse({"plan", "m", "--config", "/nonexistent"}).status().message(),
              HasSubstr("cannot read"));
  EXPECT_THAT(Parse({"plan", "m", "--config", "/"}).status().message(), HasSubstr("cannot read"));
}

TEST(Flags, WhatIsForAnotherCommandIsPassedOver) {
  const File file("parallel: 3\ntp: 2\n");
  const Variable other("SIGNALBOX_PARALLEL", "3");
  const auto plan = Parse({"plan", "m", "--config", file.path()});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->flags.Int("tp"), 2);
  ASSERT_EQ(plan->notes.size(), 1u);
  EXPECT_THAT(plan->notes[0], HasSubstr("parallel"));
  EXPECT_THAT(plan->notes[0], HasSubstr("it is no flag of plan"));
  const Variable wrong("SIGNALBOX_TENSOR_PARALEL_SIZE", "3");
  EXPECT_THAT(Parse({"plan", "m"})->notes,
              testing::ElementsAre(HasSubstr("SIGNALBOX_TENSOR_PARALEL_SIZE changes nothing")));
}

TEST(Flags, TheModelIsAPositionalAndAFlag) {
  const std::vector<std::string> m = {"m"};
  const std::vector<std::string> several = {"m", "n"};
  EXPECT_EQ(Parse({"matrix", "m", "n"})->positionals, several);
  EXPECT_EQ(Parse({"plan", "m"})->positionals, m);
  EXPECT_EQ(Parse({"plan", "--model", "m"})->positionals, m);
  EXPECT_EQ(Parse({"plan", "--model-path=m", "--tp", "2"})->positionals, m);
  EXPECT_EQ(Parse({"plan", "m", "--model", "m"})->positionals, m);
  EXPECT_THAT(Parse({"plan", "m", "--model", "n"}).status().message(), HasSubstr("given twice"));
  const Variable variable("SIGNALBOX_MODEL", "m");
  EXPECT_EQ(Parse({"plan"})->positionals, m);
  EXPECT_EQ(Parse({"plan", "n"})->positionals, (std::vector<std::string>{"n"}));
}

TEST(Flags, WholeNumbersTakeSuffixes) {
  for (const auto& [text, value] :
       std::vector<std::pair<const char*, int64_t>>{{"1k", 1000},
                                                    {"1K", 1024},
                                                    {"25.6k", 25600},
                                                    {"1.5K", 1536},
                                                    {"2m", 2'000'000},
                                                    {"2M", 2 << 20},
                                                    {"3g", 3'000'000'000},
                                                    {"1T", int64_t{1} << 40},
                                                    {"007", 7},
                                                    {"0.5k", 500}}) {
    const auto i = Parse({"plan", "m", "--max-total-tokens", text});
    ASSERT_TRUE(i.ok()) << i.status().ToString();
    EXPECT_EQ(i->flags.Int("max-total-tokens"), value) << text;
  }
  for (const char* text : {"", "k", ".5k", "1.k", "1.0001k", "1.5", "1kk", "9999999T", "1 k", "-1k",
                           "0x10", "1e3", "99999999999999999999", "1.00000000000000000000k"}) {
    const auto i = Parse({"plan", "m", "--max-total-tokens", text});
    ASSERT_FALSE(i.ok()) << text;
    EXPECT_THAT(i.status().message(), HasSubstr("a whole number of at least 0"));
  }
}

TEST(Flags, SwitchesHaveOpposites) {
  const auto off = [](const char* flag) {
    const auto i = Parse({"plan", "m", flag});
    EXPECT_TRUE(i.ok()) << i.status().ToString();
    return i.ok() && i->flags.Switch("disable-radix-cache");
  };
  EXPECT_TRUE(off("--disable-radix-cache"));
  EXPECT_TRUE(off("--no-enable-prefix-caching"));
  EXPECT_TRUE(off("--enable-prefix-caching=off"));
  EXPECT_FALSE(off("--enable-prefix-caching"));
  EXPECT_FALSE(off("--no-disable-radix-cache"));
  EXPECT_FALSE(off("--disable-radix-cache=false"));
  EXPECT_FALSE(Parse({"plan", "m", "--no-tp", "2"}).ok());
  EXPECT_FALSE(Parse({"plan", "m", "--disable-radix-cache=perhaps"}).ok());
}

TEST(Flags, PrintConfigIsAFileThatGivesTheSame) {
  const Variable variable("SIGNALBOX_TP", "2");
  const auto first = Parse(
      {"generate", "m", "--stop", "a: b", "--stop", "#", "--prompt", "x\n\"y\"", "--print-config"});
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_THAT(first->message, HasSubstr("tp: 2  # SIGNALBOX_TP\n"));
  EXPECT_THAT(first->message, HasSubstr("ep: 1  # default\n"));
  EXPECT_THAT(first->message, HasSubstr("model: m  # MODEL\n"));
  const File file(first->message);
  const auto second = Parse({"generate", "--config", file.path()});
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  EXPECT_EQ(second->positionals, (std::vector<std::string>{"m"}));
  EXPECT_EQ(second->flags.Text("prompt"), "x\n\"y\"");
  EXPECT_EQ(second->flags.Texts("stop"), (std::vector<std::string>{"a: b", "#"}));
  EXPECT_EQ(second->flags.Int("tp"), 2);
}

RC_GTEST_PROP(FlagSources, WhatIsWrittenIsReadBack, ()) {
  const auto text = *rc::gen::container<std::string>(
      rc::gen::oneOf(rc::gen::inRange<char>(' ', '~'), rc::gen::element('\n', '\t', ':', '#')));
  const auto more = *rc::gen::container<std::vector<std::string>>(
      rc::gen::container<std::string>(rc::gen::inRange<char>(' ', '~')));
  const auto read = SettingsOfText(
      SettingsToText({{"prompt", {text}, "here"}, {"stop", more, "there"}}), "", "text");
  RC_ASSERT(read.ok());
  RC_ASSERT(read->size() == 2u);
  RC_ASSERT((*read)[0].values == std::vector<std::string>{text});
  RC_ASSERT((*read)[1].values == more);
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
           {{"generate"}, "MODEL is missing"},
           {{"generate", "m", "--prompt"}, "a value is missing"},
           {{"generate", "m", "--prompt", "--chat"}, "write --prompt=VALUE"},
           {{"plan", "m", "--config.tp", "2"}, "unknown flag"},
           {{"plan", "m", "--speculative-config", "mtp"}, "found no map"},
           {{"plan", "m", "--speculative-config", "{\"method\""}, "no YAML"},
           {{"matrix"}, "MODEL is missing"},
           {{"version", "1"}, "unexpected argument"},
           {{"--tp", "2"}, "unknown command"},
           {{"generate", "m", "n"}, "unexpected argument"},
           {{"synth", "c", "o", "--format", "text"}, "one of bf16, fp8, mxfp4"}}) {
    auto i = Parse(arguments);
    ASSERT_FALSE(i.ok()) << arguments.back();
    EXPECT_EQ(ExitCode(i.status().code()), 2);
    EXPECT_THAT(i.status().message(), HasSubstr(part));
  }
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
}  // namespace signalbox::flags_test
