// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/flag_help.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>

namespace signalbox::flag_help_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string Help(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "signalbox");
  const auto i = ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
  EXPECT_TRUE(i.ok()) << i.status().ToString();
  return i.ok() ? i->message : "";
}

TEST(FlagHelp, ListsCommandsAndFlagsInGroups) {
  EXPECT_THAT(Help({"--help"}), HasSubstr("eval"));
  EXPECT_THAT(Help({"help"}), HasSubstr("eval"));
  EXPECT_THAT(Help({}), HasSubstr("eval"));
  const std::string help = Help({"generate", "m", "--help"});
  EXPECT_THAT(help, HasSubstr("Usage: signalbox generate MODEL [--FLAG ...]"));
  EXPECT_THAT(help, HasSubstr("\nLayout\n"));
  EXPECT_THAT(help, HasSubstr("\nRequests\n"));
  EXPECT_THAT(help, HasSubstr("[default 1; --tp-size; --tensor-parallel-size; SIGNALBOX_TP]"));
  EXPECT_THAT(help, HasSubstr("[one of auto, fused, replicated, sharded; default auto;"));
  EXPECT_THAT(help, HasSubstr("may be given several times"));
  EXPECT_THAT(help, Not(HasSubstr("--trust-remote-code")));
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(FlagHelp, IsSearched) {
  EXPECT_THAT(Help({"generate", "--help=prefix"}),
              AllOf(HasSubstr("--disable-radix-cache"), HasSubstr("--max-prefix-states"),
                    Not(HasSubstr("--tp "))));
  EXPECT_THAT(Help({"plan", "--help=remote_code"}), HasSubstr("changes nothing (no code"));
  EXPECT_THAT(Help({"plan", "--help=all"}), HasSubstr("--trust-remote-code"));
  EXPECT_THAT(Help({"--help=SYSTEM"}), HasSubstr("--system TEXT"));
  EXPECT_THAT(Help({"--help=all"}), AllOf(HasSubstr("--tp N"), HasSubstr("--trust-remote-code")));
  EXPECT_THAT(Help({"plan", "--help=xyzzy"}), HasSubstr("No flag has 'xyzzy'"));
  EXPECT_THAT(Help({"--help=xyzzy"}), HasSubstr("No flag has 'xyzzy'"));
}

TEST(FlagHelp, ThePageInDocsIsTheTable) {
  std::ifstream file(SIGNALBOX_SOURCE_DIR "/docs/flags.md");
  std::ostringstream page;
  page << file.rdbuf();
  EXPECT_EQ(page.str(), FlagsPage()) << "write it anew: signalbox flags > docs/flags.md";
}

// What `script` prints under a shell; with its exit code on the last line.
std::string Shell(const std::string& shell, const std::string& script) {
  const std::string path = testing::TempDir() + "/signalbox-completion." + shell;
  std::ofstream(path) << script;
  FILE* const pipe = popen((shell + " " + path + " 2>&1; echo $?").c_str(), "r");
  std::string text;
  for (int c; pipe != nullptr && (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  if (pipe != nullptr) pclose(pipe);
  return text;
}

TEST(Completions, OfBashCompleteCommandsFlagsAndValues) {
  const auto script = CompletionScript("bash");
  ASSERT_TRUE(script.ok());
  const auto complete = [&](const std::string& words) {
    return Shell("bash", *script + fmt::format("COMP_WORDS=({}); "
                                               "COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
                                               "_signalbox; echo \"${{COMPREPLY[*]}}\"\n",
                                               words));
  };
  EXPECT_EQ(complete("signalbox gen"), "generate\n0\n");
  EXPECT_EQ(complete("signalbox bench pre"), "prefill\n0\n");
  EXPECT_EQ(complete("signalbox completions f"), "fish\n0\n");
  EXPECT_EQ(complete("signalbox plan m --moe-a2a-b"), "--moe-a2a-backend\n0\n");
  EXPECT_EQ(complete("signalbox bench prefill --prompt-t"), "--prompt-tokens\n0\n");
  EXPECT_EQ(complete("signalbox plan --launcher ''"), "threads mpi\n0\n");
  EXPECT_EQ(complete("signalbox plan --format s"), "svg\n0\n");
  EXPECT_EQ(complete("signalbox synth --format m"), "mxfp4\n0\n");
  EXPECT_EQ(complete("signalbox eval --format ''"), "text json\n0\n");
  EXPECT_EQ(complete("signalbox eval --data --"), "\n0\n");
}

TEST(Completions, OfOtherShellsAreTheSameTable) {
  const auto zsh = CompletionScript("zsh");
  ASSERT_TRUE(zsh.ok());
  EXPECT_THAT(*zsh, AllOf(HasSubstr("bashcompinit"), HasSubstr("--moe-a2a-backend")));
  const auto fish = CompletionScript("fish");
  ASSERT_TRUE(fish.ok());
  EXPECT_THAT(*fish, HasSubstr("-l launcher -x -a 'threads mpi' -d 'what ranks are: threads of "
                               "this process, or mpirun\\'s processes'"));
  for (const FlagSpec& flag : FlagTable()) EXPECT_THAT(*fish, HasSubstr(" -l " + flag.name));
  EXPECT_EQ(CompletionScript("csh").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace signalbox::flag_help_test
