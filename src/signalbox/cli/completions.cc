// SPDX-License-Identifier: Apache-2.0
//
// completions and flags: what the flag table is for shells and readers.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "signalbox/base/text_util.h"
#include "signalbox/cli/commands.h"
#include "signalbox/cli/flag_help.h"

namespace signalbox {
namespace {

std::string Joined(const std::vector<std::string>& words, std::string_view separator) {
  return fmt::format("{}", fmt::join(words, separator));
}

std::vector<std::string> SpellingsOf(const FlagSpec& flag) {
  std::vector<std::string> spellings = {"--" + flag.name};
  for (const std::string& alias : flag.aliases) spellings.push_back("--" + alias);
  return spellings;
}

// Words that may come first, and words that may come behind each of them ("bench").
std::map<std::string, std::set<std::string>> CommandWords() {
  std::map<std::string, std::set<std::string>> words;
  for (const CommandSpec& command : CommandTable()) {
    const size_t space = command.name.find(' ');
    std::set<std::string>& second = words[command.name.substr(0, space)];
    if (space != command.name.npos) second.insert(command.name.substr(space + 1));
  }
  return words;
}

// Patterns of `case "$command $previous"`: rows of one command come before the general ones.
std::string BashValues() {
  std::string special;
  std::string general;
  std::vector<std::string> any;
  for (const FlagSpec& flag : FlagTable()) {
    if (flag.kind == FlagKind::kSwitch) continue;
    std::vector<std::string> patterns;
    for (const std::string& spelling : SpellingsOf(flag)) {
      patterns.push_back(flag.only.empty() ? "*' " + spelling + "'"
                                           : "'" + flag.only + " " + spelling + "'");
    }
    if (flag.choices.empty() && flag.only.empty()) {
      any.insert(any.end(), patterns.begin(), patterns.end());
      continue;
    }
    (flag.only.empty() ? general : special) +=
        fmt::format("    {}) COMPREPLY=($(compgen -W '{}' -- \"$current\")); return ;;\n",
                    Joined(patterns, " | "), Joined(flag.choices, " "));
  }
  return special + general + "    " + Joined(any, " | ") + ") return ;;\n";
}

std::string BashScript() {
  std::string flags;
  for (const CommandSpec& command : CommandTable()) {
    std::vector<std::string> words = {"--help"};
    for (const FlagSpec* flag : RowsOf(command)) {
      for (std::string& spelling : SpellingsOf(*flag)) words.push_back(std::move(spelling));
    }
    if (command.name == "completions") words = {"bash", "zsh", "fish"};
    flags += fmt::format("    '{}') flags='{}' ;;\n", command.name, Joined(words, " "));
  }
  std::vector<std::string> first;
  std::string second;
  for (const auto& [word, more] : CommandWords()) {
    first.push_back(word);
    if (more.empty()) continue;
    second += fmt::format(
        "  if [[ $COMP_CWORD -eq 2 && $command == {0} ]]; then\n"
        "    COMPREPLY=($(compgen -W '{1}' -- \"$current\")); return\n  fi\n"
        "  [[ $command == {0} ]] && command=\"{0} ${{COMP_WORDS[2]}}\"\n",
        word, fmt::join(more, " "));
  }
  return fmt::format(
      "_signalbox() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}\n"
      "  local command=${{COMP_WORDS[1]}} flags=''\n"
      "  COMPREPLY=()\n"
      "  if [[ $COMP_CWORD -eq 1 ]]; then\n"
      "    COMPREPLY=($(compgen -W '{} --help --version' -- \"$current\")); return\n  fi\n{}"
      "  case \"$command $previous\" in\n{}  esac\n"
      "  case \"$command\" in\n{}  esac\n"
      "  if [[ $current == -* || $command == completions ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$flags\" -- \"$current\"))\n  fi\n"
      "}}\n"
      "complete -o default -F _signalbox signalbox\n",
      Joined(first, " "), second, BashValues(), flags);
}

// Text inside single quotes of fish.
std::string FishText(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return "'" + out + "'";
}

std::string FishScript() {
  std::string script =
      "function __signalbox_is\n"
      "  set -l words (commandline -opc)\n"
      "  set -l one \"$words[2]\"\n"
      "  contains -- $one $argv; or contains -- \"$one $words[3]\" $argv\n"
      "end\n"
      "function __signalbox_words\n"
      "  test (count (commandline -opc)) -eq $argv[1]\n"
      "end\n";
  for (const auto& [word, more] : CommandWords()) {
    script += fmt::format("complete -c signalbox -f -n '__signalbox_words 1' -a {}\n", word);
    for (const std::string& second : more) {
      script += fmt::format(
          "complete -c signalbox -f -n '__signalbox_words 2; and __signalbox_is {}' -a {}\n", word,
          second);
    }
  }
  script +=
      "complete -c signalbox -f -n '__signalbox_words 2; and __signalbox_is completions' "
      "-a 'bash zsh fish'\n";
  for (const FlagSpec& flag : FlagTable()) {
    std::vector<std::string> commands;
    for (const CommandSpec& command : CommandTable()) {
      if (std::ranges::count(RowsOf(command), &flag) > 0)
        commands.push_back("\"" + command.name + "\"");
    }
    std::string names;
    for (const std::string& spelling : SpellingsOf(flag)) names += " -l " + spelling.substr(2);
    const std::string value = flag.kind == FlagKind::kSwitch ? ""
                              : flag.choices.empty()
                                  ? " -r"
                                  : fmt::format(" -x -a '{}'", fmt::join(flag.choices, " "));
    script += fmt::format("complete -c signalbox -n '__signalbox_is {}'{}{} -d {}\n",
                          Joined(commands, " "), names, value, FishText(flag.help));
  }
  return script;
}

}  // namespace

Result<std::string> CompletionScript(std::string_view shell) {
  if (shell == "bash") return "# source <(signalbox completions bash)\n" + BashScript();
  if (shell == "zsh") {
    return "# source <(signalbox completions zsh)\n"
           "autoload -U +X compinit bashcompinit && compinit -i && bashcompinit\n" +
           BashScript();
  }
  if (shell == "fish") return "# signalbox completions fish | source\n" + FishScript();
  return InvalidArgument({.what = "no completions for this shell",
                          .found = Quoted(shell),
                          .expected = "bash, zsh or fish"});
}

Status RunCompletions(const Invocation& invocation) {
  SB_ASSIGN_OR_RETURN(const std::string script, CompletionScript(invocation.positionals[0]));
  fmt::print("{}", script);
  return OkStatus();
}

Status RunFlags(const Invocation&) {
  fmt::print("{}", FlagsPage());
  return OkStatus();
}

}  // namespace signalbox
