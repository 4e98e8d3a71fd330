// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>

#include "signalbox/base/check.h"
#include "signalbox/base/text_util.h"
#include "signalbox/cli/flag_help.h"
#include "signalbox/cli/flag_sources.h"
#include "signalbox/cli/flag_value.h"

namespace signalbox {
namespace {

// "MODEL" of "MODEL", "[MODEL]" and "MODEL...".
std::string BareName(std::string name) {
  std::erase_if(name, [](char c) { return c == '[' || c == ']' || c == '.'; });
  return name;
}

std::string LowerCase(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string Remedy(std::string_view given, const std::vector<std::string>& known,
                   std::string otherwise) {
  const std::vector<std::string_view> names(known.begin(), known.end());
  const auto nearest = NearestName(given, names);
  return nearest ? fmt::format("did you mean {}?", *nearest) : std::move(otherwise);
}

// What a name means for one command.
class Spellings {
 public:
  struct Meaning {
    const FlagSpec* flag;
    bool opposite;  // of a switch
  };

  explicit Spellings(const CommandSpec& command) : command_(command.name) {
    for (const FlagSpec* flag : RowsOf(command)) {
      Add(flag->name, *flag);
      for (const std::string& alias : flag->aliases) Add(alias, *flag);
    }
  }

  std::optional<Meaning> Find(std::string_view given) const {
    const std::string name = PlainName(given);
    if (const auto found = flags_.find(name); found != flags_.end())
      return Meaning{found->second, false};
    const auto found = flags_.find(name.starts_with("no-") ? name.substr(3) : "no-" + name);
    if (found == flags_.end() || found->second->kind != FlagKind::kSwitch) return std::nullopt;
    return Meaning{found->second, true};
  }
  // Whether it is the part before the dot of flags: its value is a map of them.
  bool IsMap(std::string_view given) const { return maps_.contains(PlainName(given)); }

  Status Unknown(const std::string& given, std::string_view dashes,
                 const std::string& where) const {
    std::vector<std::string> names = {"--help"};
    if (dashes.empty()) names.clear();
    for (const std::string& name : written_) names.push_back(std::string(dashes) + name);
    return InvalidArgument({.what = "unknown flag",
                            .where = where,
                            .found = Quoted(given),
                            .remedy = Remedy(dashes.empty() ? PlainName(given) : given, names,
                                             "see signalbox " + command_ + " --help")});
  }

 private:
  void Add(const std::string& name, const FlagSpec& flag) {
    flags_[PlainName(name)] = &flag;
    written_.push_back(name);
    if (const size_t dot = name.find('.'); dot != name.npos) maps_.insert(name.substr(0, dot));
  }

  std::string command_;
  std::map<std::string, const FlagSpec*> flags_;
  std::vector<std::string> written_;
  std::set<std::string> maps_;
};

bool AnyCommandKnows(std::string_view name) {
  return std::ranges::any_of(CommandTable(), [&](const CommandSpec& command) {
    const Spellings spellings(command);
    return spellings.Find(name) || spellings.IsMap(name);
  });
}

bool IsNumber(const std::string& word) {
  return !word.empty() && word.find_first_not_of("0123456789.") == word.npos;
}

bool LooksLikeAFlag(const std::string& word) {
  return word.size() > 1 && word[0] == '-' &&
         (word[1] == '-' || std::isalpha(static_cast<unsigned char>(word[1])) != 0);
}

class Parser {
 public:
  explicit Parser(const CommandSpec& command) : command_(command), spellings_(command) {
    result_.command = command.name;
  }

  Result<Invocation> Parse(std::span<const std::string> words) {
    SB_ASSIGN_OR_RETURN(const std::vector<Setting> given, SettingsOfWords(words));
    const std::vector<Setting> environment = KnownOf(SettingsOfEnvironment());
    std::string path;
    for (const auto* source : {&environment, &given}) {
      for (const Setting& s : *source) {
        if (PlainName(s.name) == "config") path = s.values[0];
      }
    }
    if (!path.empty()) {
      SB_ASSIGN_OR_RETURN(const std::vector<Setting> all, SettingsOfFile(path));
      SB_ASSIGN_OR_RETURN(const std::vector<Setting> file, KnownOfFile(all));
      SB_RETURN_IF_ERROR(Merge(file));
    }
    SB_RETURN_IF_ERROR(Merge(environment));
    SB_RETURN_IF_ERROR(Merge(given));
    for (const FlagSpec* flag : RowsOf(command_)) SB_RETURN_IF_ERROR(Judge(*flag));
    if (result_.flags.Knows("print-config") && result_.flags.Switch("print-config")) {
      result_.message = SettingsToText(resolved_);
      return result_;
    }
    SB_RETURN_IF_ERROR(FillPositionals());
    return result_;
  }

 private:
  Result<std::vector<Setting>> SettingsOfWords(std::span<const std::string> words) {
    std::vector<Setting> settings;
    bool flags_end = false;
    for (size_t i = 0; i < words.size(); ++i) {
      const std::string& word = words[i];
      if (flags_end || !LooksLikeAFlag(word)) {
        SB_RETURN_IF_ERROR(TakePositional(word, &settings));
        continue;
      }
      if (word == "--") {
        flags_end = true;
        continue;
      }
      const size_t equals = word.find('=');
      const std::string spelled = word.substr(0, equals);
      const std::string name = spelled.substr(spelled.find_first_not_of('-'));
      const auto meaning = spellings_.Find(name);
      if (!meaning && !spellings_.IsMap(name))
        return spellings_.Unknown(spelled, "--", command_.name);
      Setting setting{.name = name, .values = {"true"}, .where = spelled};
      if (equals != word.npos) {
        setting.values = {word.substr(equals + 1)};
      } else if (!meaning || meaning->flag->kind != FlagKind::kSwitch) {
        if (i + 1 == words.size() || LooksLikeAFlag(words[i + 1])) {
          return InvalidArgument({.what = "a value is missing",
                                  .where = spelled,
                                  .remedy = "write " + spelled + "=VALUE"});
        }
        setting.values = {words[++i]};
        // "--cuda-graph-bs 1 2 4"
        while (meaning && meaning->flag->kind == FlagKind::kTexts && i + 1 < words.size() &&
               IsNumber(words[i]) && IsNumber(words[i + 1]))
          setting.values.push_back(words[++i]);
      }
      settings.push_back(std::move(setting));
    }
    return settings;
  }

  Status TakePositional(const std::string& word, std::vector<Setting>* settings) {
    const std::vector<std::string>& names = command_.positionals;
    const size_t at = positionals_.size();
    if (at < names.size() || (!names.empty() && names.back().ends_with("..."))) {
      positionals_.push_back(word);
      const std::string name = BareName(names[std::min(at, names.size() - 1)]);
      if (spellings_.Find(LowerCase(name)))
        settings->push_back({.name = LowerCase(name), .values = {word}, .where = name});
      return OkStatus();
    }
    return InvalidArgument({.what = "unexpected argument",
                            .where = command_.name,
                            .found = Quoted(word),
                            .remedy = "see signalbox " + command_.name + " --help"});
  }

  // A variable is for every command: one of another command is skipped, a wrong one is noted.
  std::vector<Setting> KnownOf(std::vector<Setting> settings) {
    std::erase_if(settings, [&](const Setting& s) {
      if (spellings_.Find(s.name) || spellings_.IsMap(s.name)) return false;
      if (!AnyCommandKnows(s.name))
        result_.notes.push_back(s.where + " changes nothing: no flag has this variable");
      return true;
    });
    return settings;
  }

  // A file may be for several commands: a key of another one is noted.
  Result<std::vector<Setting>> KnownOfFile(std::vector<Setting> settings) {
    std::vector<Setting> known;
    for (Setting& s : settings) {
      if (spellings_.Find(s.name)) {
        known.push_back(std::move(s));
      } else if (AnyCommandKnows(s.name)) {
        result_.notes.push_back(fmt::format("{} ({}) changes nothing: it is no flag of {}", s.name,
                                            s.where, command_.name));
      } else {
        return spellings_.Unknown(s.name, "", s.where);
      }
    }
    return known;
  }

  // Takes what a source gives, over what earlier ones gave.
  Status Merge(const std::vector<Setting>& source) {
    std::map<std::string, Setting> merged;
    for (const Setting& setting : source) {
      const auto meaning = spellings_.Find(setting.name);
      if (!meaning) {
        SB_ASSIGN_OR_RETURN(const std::vector<Setting> inner,
                            SettingsOfText(setting.values[0], setting.name, setting.where));
        for (const Setting& s : inner) {
          const auto of = spellings_.Find(s.name);
          if (!of) return spellings_.Unknown(s.name, "", setting.where);
          SB_RETURN_IF_ERROR(Add(*of, s, &merged));
        }
        continue;
      }
      SB_RETURN_IF_ERROR(Add(*meaning, setting, &merged));
    }
    for (auto& [name, setting] : merged) given_[name] = std::move(setting);
    return OkStatus();
  }

  static Status Add(const Spellings::Meaning& meaning, Setting setting,
                    std::map<std::string, Setting>* merged) {
    const FlagSpec& flag = *meaning.flag;
    setting.name = flag.name;
    if (flag.kind != FlagKind::kTexts && setting.values.size() != 1) {
      return InvalidArgument({.what = "one value is needed",
                              .where = setting.where,
                              .found = std::to_string(setting.values.size())});
    }
    for (std::string& value : setting.values) {
      SB_ASSIGN_OR_RETURN(value, CanonicalValue(flag, value, setting.where));
      if (meaning.opposite) value = value == "true" ? "false" : "true";
    }
    const auto [at, is_new] = merged->try_emplace(flag.name, setting);
    if (is_new) return OkStatus();
    if (flag.kind == FlagKind::kTexts) {
      at->second.values.insert(at->second.values.end(), setting.values.begin(),
                               setting.values.end());
      return OkStatus();
    }
    if (at->second.values == setting.values) return OkStatus();
    return InvalidArgument({.what = "given twice",
                            .where = at->second.where,
                            .found = fmt::format("{} and {}", Quoted(at->second.values[0]),
                                                 Quoted(setting.values[0]))});
  }

  // What the value that counts comes to, by the rules and choices of its row.
  Status Judge(const FlagSpec& flag) {
    const auto given = given_.find(flag.name);
    Setting setting{.name = flag.name, .values = {}, .where = "default"};
    if (given != given_.end()) setting = given->second;
    const std::string shown =
        flag.kind == FlagKind::kSwitch
            ? "--" + flag.name
            : fmt::format("--{} {}", flag.name, fmt::join(setting.values, " "));
    std::vector<std::string> values;
    std::string note;
    for (const std::string& value : setting.values) {
      if (value == DefaultOf(flag) || value.empty()) {
        values.push_back(value);
        continue;
      }
      const auto rule = std::ranges::find_if(flag.rules, [&](const FlagRule& r) {
        return r.values.empty() || std::ranges::count(r.values, value) > 0;
      });
      if (rule == flag.rules.end()) {
        if (!flag.choices.empty() && std::ranges::count(flag.choices, value) == 0)
          return UnusableValue(flag, value, setting.where);
      } else if (rule->verdict == FlagRule::Verdict::kRefused) {
        return Refused({.what = rule->reason, .where = shown});
      } else if (rule->verdict == FlagRule::Verdict::kNoted) {
        note = shown + " changes nothing: " + rule->reason;
        continue;
      }
      values.push_back(value);
    }
    if (!note.empty()) result_.notes.push_back(note);
    if (flag.kind == FlagKind::kTexts) {
      result_.flags.SetTexts(flag.name, values);
    } else {
      if (values.empty()) values = {DefaultOf(flag)};
      result_.flags.Set(flag.name, values[0]);
    }
    if (setting.values != values) setting = {flag.name, values, "default"};
    const bool untold = flag.group == kCarriedGroup && setting.where == "default";
    if (flag.name != "print-config" && flag.name != "config" && !untold && !values.empty() &&
        !values[0].empty())
      resolved_.push_back(setting);
    return OkStatus();
  }

  Status FillPositionals() {
    for (size_t i = 0; i < command_.positionals.size(); ++i) {
      const std::string& spelled = command_.positionals[i];
      const std::string flag = LowerCase(BareName(spelled));
      if (positionals_.size() == i) positionals_.emplace_back();
      if (positionals_[i].empty() && result_.flags.Knows(flag))
        positionals_[i] = result_.flags.Text(flag);
      if (positionals_[i].empty() && !spelled.starts_with("[")) {
        return InvalidArgument({.what = BareName(spelled) + " is missing",
                                .where = command_.name,
                                .remedy = UsageOf(command_)});
      }
    }
    result_.positionals = std::move(positionals_);
    return OkStatus();
  }

  const CommandSpec& command_;
  const Spellings spellings_;
  std::map<std::string, Setting> given_;  // by the flag's name
  std::vector<Setting> resolved_;
  std::vector<std::string> positionals_;
  Invocation result_;
};

// `first` and `second` are the first two words; a command may be two ("bench a2a").
Status UnknownCommand(const std::string& first, const std::string& second) {
  std::vector<std::string> names;
  std::vector<std::string> family;
  for (const CommandSpec& c : CommandTable()) {
    names.push_back(c.name);
    if (c.name.starts_with(first + " ")) family.push_back(c.name);
  }
  const std::string given = family.empty() || second.empty() ? first : first + " " + second;
  return InvalidArgument(
      {.what = "unknown command",
       .found = Quoted(given),
       .remedy = Remedy(given, names,
                        family.empty() ? "see signalbox --help"
                                       : fmt::format("there is {}", fmt::join(family, ", ")))});
}

// What --help asks about: "" for the plain one; nothing where it is not given.
std::optional<std::string> HelpAsked(std::span<const std::string> words) {
  for (const std::string& word : words) {
    if (word == "--") break;
    if (word == "--help" || word == "-h") return "";
    if (word.starts_with("--help=")) return word.substr(7);
  }
  return std::nullopt;
}

}  // namespace

std::vector<const FlagSpec*> RowsOf(const CommandSpec& command) {
  std::map<std::string_view, const FlagSpec*> rows;
  for (const FlagSpec& flag : FlagTable()) {
    if (flag.only == command.name) rows[flag.name] = &flag;
    if (flag.only.empty()) rows.try_emplace(flag.name, &flag);
  }
  std::vector<const FlagSpec*> own;
  for (const std::string& name : command.flags) {
    SB_CHECK(rows.contains(name)) << command.name
                                  << " names a flag that is not in the table: " << name;
    own.push_back(rows[name]);
  }
  std::ranges::sort(own);  // the table is one array
  return own;
}

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

std::vector<std::string> FlagValues::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, values] : values_) names.push_back(name);
  return names;
}

Result<Invocation> ParseCommandLine(int argc, const char* const* argv) {
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const std::string one = words.empty() ? "--help" : words[0] == "--version" ? "version" : words[0];
  if (one == "help" || one.starts_with("-")) {
    const auto asked = one == "help" ? "" : HelpAsked(words);
    if (asked || words.empty()) return Invocation{.message = OverviewText(asked.value_or(""))};
  }
  const std::string two = words.size() > 1 ? one + " " + words[1] : one;
  for (const CommandSpec& command : CommandTable()) {
    const size_t taken = command.name == one ? 1 : command.name == two ? 2 : 0;
    if (taken == 0) continue;
    const auto rest = std::span(words).subspan(taken);
    if (const auto asked = HelpAsked(rest)) return Invocation{.message = HelpText(command, *asked)};
    return Parser(command).Parse(rest);
  }
  return UnknownCommand(one, words.size() > 1 ? words[1] : "");
}

}  // namespace signalbox
