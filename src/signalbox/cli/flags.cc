// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/flags.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include <CLI/CLI.hpp>

#include "signalbox/base/check.h"
#include "signalbox/base/text_util.h"

namespace signalbox {
namespace {

const FlagSpec& FindFlag(const CommandSpec& command, std::string_view name) {
  const FlagSpec* general = nullptr;
  for (const FlagSpec& f : FlagTable()) {
    if (f.name != name) continue;
    if (f.only == command.name) return f;
    if (f.only.empty()) general = &f;
  }
  SB_CHECK(general != nullptr) << "command " << command.name
                               << " names a flag that is not in the table: " << name;
  return *general;
}

std::string Variable(const std::string& name) {
  std::string v = "SIGNALBOX_" + name;
  for (char& c : v)
    c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return v;
}

std::string Expected(const FlagSpec& flag) {
  switch (flag.kind) {
    case FlagKind::kInt:
      return "a whole number of at least " + std::to_string(flag.least);
    case FlagKind::kNumber:
      return "a number of at least " + std::to_string(flag.least);
    case FlagKind::kSwitch:
      return "true or false";
    case FlagKind::kText:
    case FlagKind::kTexts:
      break;
  }
  std::string list;
  for (const std::string& c : flag.choices) list += (list.empty() ? "" : ", ") + c;
  return "one of " + list;
}

bool Valid(const FlagSpec& flag, const std::string& value) {
  const char* end = value.data() + value.size();
  switch (flag.kind) {
    case FlagKind::kInt: {
      int64_t n = 0;
      const auto r = std::from_chars(value.data(), end, n);
      return r.ec == std::errc() && r.ptr == end && n >= flag.least;
    }
    case FlagKind::kNumber: {
      double d = 0;
      const auto r = std::from_chars(value.data(), end, d);
      return r.ec == std::errc() && r.ptr == end && std::isfinite(d) && d >= flag.least;
    }
    case FlagKind::kSwitch:
      return value == "true" || value == "false";
    case FlagKind::kText:
    case FlagKind::kTexts:
      break;
  }
  return flag.choices.empty() ||
         std::find(flag.choices.begin(), flag.choices.end(), value) != flag.choices.end();
}

Status CheckValue(const FlagSpec& flag, const std::string& value) {
  if (Valid(flag, value)) return OkStatus();
  return InvalidArgument({.what = "unusable value",
                          .where = "--" + flag.name,
                          .found = Quoted(value),
                          .expected = Expected(flag)});
}

// The first argument that looks like a flag but is none of this command, with the nearest that is.
Status UnknownFlag(const CommandSpec& command, const std::string& given) {
  const std::string name = given.substr(0, given.find('='));
  std::vector<std::string> dashed = {"--help"};
  for (const std::string& f : command.flags) {
    dashed.push_back("--" + f);
    for (const std::string& alias : FindFlag(command, f).aliases) dashed.push_back("--" + alias);
  }
  std::vector<std::string_view> names(dashed.begin(), dashed.end());
  const auto nearest = NearestName(name, names);
  return InvalidArgument({.what = name.starts_with("-") ? "unknown flag" : "unexpected argument",
                          .where = command.name,
                          .found = Quoted(name),
                          .remedy = nearest ? "did you mean " + std::string(*nearest) + "?"
                                            : "see signalbox " + command.name + " --help"});
}

std::string CommandList() {
  std::string text = "Usage: signalbox COMMAND [ARGUMENT ...] [--FLAG ...]\n\nCommands:\n";
  for (const CommandSpec& c : CommandTable()) {
    std::string left = "  " + c.name;
    for (const std::string& p : c.positionals) left += " " + p;
    left.resize(std::max<size_t>(left.size() + 1, 26), ' ');
    text += left + c.summary + "\n";
  }
  return text + "\nsignalbox COMMAND --help lists the flags of a command.\n";
}

// `first` and `second` are the first two words; a command may be two ("bench a2a").
Status UnknownCommand(const std::string& first, const std::string& second) {
  std::vector<std::string_view> names;
  std::string family;
  for (const CommandSpec& c : CommandTable()) {
    names.push_back(c.name);
    if (c.name.starts_with(first + " ")) family += (family.empty() ? "" : ", ") + c.name;
  }
  const std::string given = family.empty() || second.empty() ? first : first + " " + second;
  const auto nearest = NearestName(given, names);
  std::string remedy = nearest           ? "did you mean " + std::string(*nearest) + "?"
                       : !family.empty() ? "there is " + family
                                         : "see signalbox --help";
  return InvalidArgument(
      {.what = "unknown command", .found = Quoted(given), .remedy = std::move(remedy)});
}

// One command through CLI11. Every option is read as text and checked against the table afterwards.
Result<Invocation> ParseCommand(const CommandSpec& command, std::vector<std::string> arguments) {
  CLI::App app(command.summary, "signalbox " + command.name);
  Invocation result{.command = command.name};
  std::map<std::string, std::string> texts;
  std::map<std::string, bool> switches;
  std::map<std::string, std::vector<std::string>> lists;
  std::vector<std::string> positionals(command.positionals.size());
  std::vector<std::string> more;  // of a last one that may be repeated
  for (size_t i = 0; i < positionals.size(); ++i) {
    const std::string& name = command.positionals[i];
    if (name.ends_with("...")) {
      app.add_option(name, more)->required();
      positionals.pop_back();
    } else {
      app.add_option(name, positionals[i])->required();
    }
  }
  for (const std::string& name : command.flags) {
    const FlagSpec* flag = &FindFlag(command, name);
    CLI::Option* option = nullptr;
    std::string names = "--" + name;
    for (const std::string& alias : flag->aliases) names += ",--" + alias;
    if (flag->kind == FlagKind::kSwitch) {
      option = app.add_flag(names, switches[name], flag->help);
    } else if (flag->kind == FlagKind::kTexts) {
      // One value each time: "[a,b]" is a text as well, and what follows is none of it.
      option = app.add_option(names, lists[name], flag->help + " (may be given several times)")
                   ->allow_extra_args(false)
                   ->type_name("TEXT");
    } else {
      option =
          app.add_option(names, texts[name],
                         flag->help + (flag->fallback.empty() ? "" : " [" + flag->fallback + "]"));
      option->type_name(flag->kind == FlagKind::kText ? "TEXT" : "N");
    }
    option->envname(Variable(name));
  }
  app.allow_extras();
  try {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes the last first
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    result.command.clear();
    result.message = app.help();
    return result;
  } catch (const CLI::ParseError& e) {
    // An unknown flag explains a missing argument better than the missing argument does.
    for (const std::string& extra : app.remaining()) {
      if (extra.starts_with("-")) return UnknownFlag(command, extra);
    }
    return InvalidArgument({.what = e.what(),
                            .where = command.name,
                            .remedy = "see signalbox " + command.name + " --help"});
  }
  if (!app.remaining().empty()) return UnknownFlag(command, app.remaining().front());
  positionals.insert(positionals.end(), more.begin(), more.end());
  result.positionals = positionals;
  for (const std::string& name : command.flags) {
    const FlagSpec& flag = FindFlag(command, name);
    if (flag.kind == FlagKind::kTexts) {
      result.flags.SetTexts(name, lists[name]);
      continue;
    }
    std::string value = flag.fallback;
    if (flag.kind == FlagKind::kSwitch) {
      value = switches[name] ? "true" : "false";
    } else if (app.count("--" + name) > 0 || !texts[name].empty()) {
      value = texts[name];
    }
    if (flag.kind != FlagKind::kText || !value.empty()) SB_RETURN_IF_ERROR(CheckValue(flag, value));
    result.flags.Set(name, value);
  }
  return result;
}

}  // namespace

const std::string& FlagValues::Get(std::string_view name) const {
  const auto it = values_.find(name);
  SB_CHECK(it != values_.end()) << "flag " << name << " does not belong to this command";
  SB_CHECK(it->second.size() == 1) << "flag " << name << " may have several values";
  return it->second.front();
}

const std::vector<std::string>& FlagValues::Texts(std::string_view name) const {
  const auto it = values_.find(name);
  SB_CHECK(it != values_.end()) << "flag " << name << " does not belong to this command";
  return it->second;
}

int64_t FlagValues::Int(std::string_view name) const {
  const std::string& text = Get(name);
  int64_t n = 0;
  std::from_chars(text.data(), text.data() + text.size(), n);
  return n;
}

double FlagValues::Number(std::string_view name) const {
  const std::string& text = Get(name);
  double d = 0;
  std::from_chars(text.data(), text.data() + text.size(), d);
  return d;
}

const std::string& FlagValues::Text(std::string_view name) const {
  return Get(name);
}
bool FlagValues::Switch(std::string_view name) const {
  return Get(name) == "true";
}
bool FlagValues::Has(std::string_view name) const {
  return !Get(name).empty();
}

Result<Invocation> ParseCommandLine(int argc, const char* const* argv) {
  const std::string name = argc > 1 ? argv[1] : "--help";
  if (name == "--help" || name == "-h" || name == "help")
    return Invocation{.message = CommandList()};
  const std::string one = name == "--version" ? "version" : name;
  const std::string two = argc > 2 ? one + " " + argv[2] : one;
  for (const CommandSpec& command : CommandTable()) {
    const int words = command.name == one ? 1 : command.name == two ? 2 : 0;
    if (words > 0)
      return ParseCommand(command, std::vector<std::string>(argv + 1 + words, argv + argc));
  }
  return UnknownCommand(one, argc > 2 ? argv[2] : "");
}

}  // namespace signalbox
