// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/flag_help.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <vector>

#include "signalbox/base/text_util.h"
#include "signalbox/cli/flag_sources.h"
#include "signalbox/cli/flag_value.h"

namespace signalbox {
namespace {

constexpr size_t kWidth = 100;
constexpr size_t kLeft = 30;  // columns of names

constexpr std::string_view kOpening = R"(# Flags

`signalbox flags` writes this page from the table that the program itself reads.

A flag `--max-new-tokens` is also the variable `SIGNALBOX_MAX_NEW_TOKENS` and the key
`max-new-tokens` of `--config FILE.yaml`; the command line beats the environment, which beats the
file, which beats the default. Names may be written with `_` for `-`, in any of the spellings listed
here. `--no-X` switches off what `--X` switches on, and the other way round. Whole numbers take
suffixes: `4k` is 4000, `4K` is 4096. `--print-config` prints what all of that comes to, as a file
that `--config` reads; `--help=WORD` searches.

```yaml
# serve.yaml: signalbox serve --config serve.yaml --port 8200
model: models/tiny-qwen3.5-moe-mxfp4
tp: 2
expert-parallel-size: 2        # any spelling
max_running_requests: 64
speculative-config: {method: mtp, num_speculative_tokens: 3}
served-model-name: [tiny, default]
```

A wrong name or value ends the program with exit code 2 and the nearest name. A variable or key of
another command is passed over, keys with a note.
)";

std::string_view ValueWord(const FlagSpec& flag) {
  switch (flag.kind) {
    case FlagKind::kInt:
    case FlagKind::kNumber:
      return " N";
    case FlagKind::kText:
    case FlagKind::kTexts:
      return " TEXT";
    case FlagKind::kSwitch:
      break;
  }
  return "";
}

std::string Capital(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

std::string_view VerdictText(FlagRule::Verdict verdict) {
  switch (verdict) {
    case FlagRule::Verdict::kTaken:
      return "is so anyway";
    case FlagRule::Verdict::kNoted:
      return "changes nothing";
    case FlagRule::Verdict::kRefused:
      break;
  }
  return "is refused";
}

// "triton, cutlass: changes nothing (kernels of GPUs)"
std::string RuleText(const FlagRule& rule) {
  return fmt::format("{}{}{}{}", fmt::join(rule.values, ", "), rule.values.empty() ? "" : ": ",
                     VerdictText(rule.verdict),
                     rule.reason.empty() ? "" : fmt::format(" ({})", rule.reason));
}

// Words in lines of `width`.
std::vector<std::string> Wrapped(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    size_t cut = text.size() <= width ? text.size() : text.rfind(' ', width);
    if (cut == text.npos || cut == 0) cut = std::min(text.find(' '), text.size());
    lines.emplace_back(text.substr(0, cut));
    text.remove_prefix(std::min(text.size(), cut + 1));
  }
  return lines;
}

// A row of --help: what it means, then what it may be and how else it is written.
std::string RowText(const FlagSpec& flag) {
  std::vector<std::string> facts;
  if (!flag.choices.empty())
    facts.push_back(fmt::format("one of {}", fmt::join(flag.choices, ", ")));
  if (flag.kind != FlagKind::kSwitch && !flag.fallback.empty())
    facts.push_back("default " + flag.fallback);
  if (flag.kind == FlagKind::kTexts) facts.emplace_back("may be given several times");
  for (const std::string& alias : flag.aliases) facts.push_back("--" + alias);
  facts.push_back(VariableOf(flag.name));
  std::vector<std::string> lines = Wrapped(flag.help, kWidth - kLeft);
  for (const FlagRule& rule : flag.rules) {
    for (std::string& line : Wrapped(RuleText(rule), kWidth - kLeft))
      lines.push_back(std::move(line));
  }
  for (const std::string& line :
       Wrapped(fmt::format("[{}]", fmt::join(facts, "; ")), kWidth - kLeft))
    lines.push_back(line);
  std::string text = fmt::format("  --{}{}", flag.name, ValueWord(flag));
  if (text.size() + 1 > kLeft) text += "\n" + std::string(kLeft, ' ');
  text.resize(std::max(text.size(), kLeft), ' ');
  for (size_t i = 0; i < lines.size(); ++i)
    text += (i == 0 ? "" : std::string(kLeft, ' ')) + lines[i] + "\n";
  return text;
}

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

bool Holds(const FlagSpec& flag, std::string_view word) {
  const std::string wanted = PlainName(LowerCase(word));
  const auto holds = [&](const std::string& text) {
    return PlainName(LowerCase(text)).find(wanted) != text.npos;
  };
  return holds(flag.name) || holds(flag.help) || holds(flag.group) ||
         std::ranges::any_of(flag.aliases, holds);
}

// Rows under the headings of their groups, in order of the table.
std::string GroupedText(const std::vector<const FlagSpec*>& flags) {
  std::vector<std::pair<std::string, std::string>> groups;
  for (const FlagSpec* flag : flags) {
    auto at = std::ranges::find(groups, flag->group, &std::pair<std::string, std::string>::first);
    if (at == groups.end()) at = groups.insert(at, {flag->group, ""});
    at->second += RowText(*flag);
  }
  std::string text;
  for (const auto& [name, rows] : groups) text += "\n" + name + "\n" + rows;
  return text;
}

std::string NoFlag(std::string_view word) {
  return fmt::format("No flag has {} in its name or description.\n", Quoted(word));
}

using Commands = std::vector<std::string>;

// The commands that read this very row.
Commands CommandsOf(const FlagSpec& flag) {
  Commands commands;
  for (const CommandSpec& command : CommandTable()) {
    if (std::ranges::count(RowsOf(command), &flag) > 0)
      commands.push_back("`" + command.name + "`");
  }
  return commands;
}

// Text in a cell of a table.
std::string Cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != text.npos; at += 2) text.insert(at, "\\");
  return text;
}

// What a row says behind its names.
std::string Meaning(const FlagSpec& flag, const Commands& usual) {
  std::vector<std::string> parts;
  if (!flag.help.empty()) parts.push_back(flag.help);
  if (!flag.choices.empty())
    parts.push_back(fmt::format("one of `{}`", fmt::join(flag.choices, "`, `")));
  if (flag.kind == FlagKind::kTexts) parts.emplace_back("may be given several times");
  for (const FlagRule& rule : flag.rules) parts.push_back(RuleText(rule));
  if (const Commands own = CommandsOf(flag); own != usual)
    parts.push_back(fmt::format("*of {}*", fmt::join(own, ", ")));
  return fmt::format("{} | {}", flag.fallback.empty() ? "" : "`" + flag.fallback + "`",
                     Cell(fmt::format("{}", fmt::join(parts, "; "))));
}

std::string Names(const FlagSpec& flag) {
  std::string text = fmt::format("`--{}{}`", flag.name, ValueWord(flag));
  for (const std::string& alias : flag.aliases) text += " `--" + alias + "`";
  return text;
}

// Neighbours of which the same is true share a row.
std::string TableOf(const std::vector<const FlagSpec*>& flags, const Commands& usual) {
  std::string text = "| flag | default | meaning |\n|---|---|---|\n";
  for (size_t i = 0; i < flags.size();) {
    const std::string meaning = Meaning(*flags[i], usual);
    std::string names;
    for (; i < flags.size() && Meaning(*flags[i], usual) == meaning; ++i)
      names += (names.empty() ? "" : ", ") + Names(*flags[i]);
    text += "| " + names + " | " + meaning + " |\n";
  }
  return text;
}

}  // namespace

std::string UsageOf(const CommandSpec& command) {
  return fmt::format("signalbox {}{}{}{}", command.name, command.positionals.empty() ? "" : " ",
                     fmt::join(command.positionals, " "),
                     command.flags.empty() ? "" : " [--FLAG ...]");
}

std::string OverviewText(std::string_view word) {
  if (word.empty()) {
    std::string text = "Usage: signalbox COMMAND [ARGUMENT ...] [--FLAG ...]\n\nCommands:\n";
    for (const CommandSpec& c : CommandTable()) {
      std::string left = fmt::format("  {} {}", c.name, fmt::join(c.positionals, " "));
      left.resize(std::max<size_t>(left.size() + 1, 26), ' ');
      text += left + c.summary + "\n";
    }
    return text +
           "\nsignalbox COMMAND --help lists the flags of a command, --help=WORD those about a "
           "word.\n";
  }
  std::vector<const FlagSpec*> flags;
  for (const FlagSpec& flag : FlagTable()) {
    if (word == "all" || Holds(flag, word)) flags.push_back(&flag);
  }
  return flags.empty() ? NoFlag(word) : GroupedText(flags).substr(1);
}

std::string HelpText(const CommandSpec& command, std::string_view word) {
  std::vector<const FlagSpec*> flags;
  size_t carried = 0;
  for (const FlagSpec* flag : RowsOf(command)) {
    const bool hidden = word.empty() && flag->group == kCarriedGroup;
    carried += hidden;
    if (!hidden && (word.empty() || word == "all" || Holds(*flag, word))) flags.push_back(flag);
  }
  if (!word.empty() && word != "all")
    return flags.empty() ? NoFlag(word) : GroupedText(flags).substr(1);
  std::string text = fmt::format("Usage: {}\n\n{}\n{}", UsageOf(command), Capital(command.summary),
                                 GroupedText(flags));
  if (carried > 0) {
    text += fmt::format(
        "\n--help=all lists {} more, which are taken from launch lines of other engines and change "
        "nothing.\n",
        carried);
  }
  return text;
}

std::string FlagsPage() {
  std::vector<std::string> groups;
  std::map<std::string, std::vector<const FlagSpec*>> rows;
  for (const FlagSpec& flag : FlagTable()) {
    if (!rows.contains(flag.group)) groups.push_back(flag.group);
    rows[flag.group].push_back(&flag);
  }
  std::string page(kOpening);
  for (const std::string& group : groups) {
    // What most rows of a group belong to is said once.
    std::map<Commands, int> counts;
    for (const FlagSpec* flag : rows[group]) ++counts[CommandsOf(*flag)];
    const Commands usual =
        std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; })->first;
    page += fmt::format("\n## {}\n\nOf {}.\n\n{}", group, fmt::join(usual, ", "),
                        TableOf(rows[group], usual));
  }
  return page;
}

}  // namespace signalbox
