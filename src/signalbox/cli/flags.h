// SPDX-License-Identifier: Apache-2.0
//
// Flags: one table of every option of every command. The command line, SIGNALBOX_* variables, keys
// of --config FILE.yaml, --help, the page docs/flags.md and shell completions all come from it;
// nothing else in the program names an option twice.
//
// What is given on the command line beats the environment, which beats the file, which beats the
// default. A name may be any alias of its row, with _ for -; `no-` in front of a switch, or taken
// away from one, is its opposite.
//
//   Result<Invocation> i = ParseCommandLine(argc, argv);   // kInvalidArgument names the nearest
//   i->flags.Int("parallel");
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/status.h"

namespace signalbox {

class Communicator;

// kTexts may be given several times, and has no default. kInt takes suffixes: 4k is 4000, 4K 4096.
enum class FlagKind : uint8_t { kInt, kNumber, kText, kTexts, kSwitch };

// What giving a flag comes to where no code reads it. Only values other than the default are
// judged, by the first rule that fits.
struct FlagRule {
  enum class Verdict : uint8_t {
    kTaken,    // it is so anyway
    kNoted,    // it changes nothing; the reason is told, and the default stays
    kRefused,  // kRefused with the reason
  };
  Verdict verdict;
  std::string reason;
  std::vector<std::string> values = {};  // that the rule is for; empty: any
};

struct FlagSpec {
  std::string name;  // without dashes: "max-new-tokens"
  FlagKind kind;
  std::string fallback;  // as text; empty: unset
  std::string help;
  std::vector<std::string> choices = {};  // kText: allowed values; empty: any
  std::string only = {};                  // the one command this row is for, before the general row
  std::vector<std::string> aliases = {};  // other spellings, without dashes
  int least = 0;                          // kInt, kNumber
  std::string group = {};                 // heading in --help
  std::vector<FlagRule> rules = {};       // before choices
};

struct CommandSpec {
  std::string name;  // one word, or two: "bench a2a"
  std::string summary;
  // "MODEL" is required, "[MODEL]" is not; either may also be given as the flag --model, where the
  // command has it. "MODEL...": one or more, last.
  std::vector<std::string> positionals;
  std::vector<std::string> flags;  // names out of the table
};

std::span<const FlagSpec> FlagTable();
std::span<const CommandSpec> CommandTable();
// The rows that a command has, in order of the table. REQUIRES: its flags are in the table.
std::vector<const FlagSpec*> RowsOf(const CommandSpec& command);

// Values of one invocation, already checked against the table.
class FlagValues {
 public:
  // REQUIRES: the command has the flag.
  int64_t Int(std::string_view name) const;
  double Number(std::string_view name) const;
  const std::string& Text(std::string_view name) const;
  bool Switch(std::string_view name) const;
  // In the order given.
  const std::vector<std::string>& Texts(std::string_view name) const;
  // Whether it has any value: given, from the environment, or by default.
  bool Has(std::string_view name) const;
  // Whether the command has the flag.
  bool Knows(std::string_view name) const { return values_.contains(name); }
  // Of all flags that the command has.
  std::vector<std::string> Names() const;

  void Set(const std::string& name, std::string value) { values_[name] = {std::move(value)}; }
  void SetTexts(const std::string& name, std::vector<std::string> texts) {
    values_[name] = std::move(texts);
  }

 private:
  const std::string& Get(std::string_view name) const;
  std::map<std::string, std::vector<std::string>, std::less<>> values_;  // one but of kTexts
};

struct Invocation {
  std::string command;                   // empty: only help was asked for, see `message`
  std::vector<std::string> positionals;  // an empty text for an optional one that is missing
  FlagValues flags;
  std::vector<std::string> notes;     // about flags that change nothing, for the user
  std::string message;                // text to print instead of running (help)
  Communicator* processes = nullptr;  // the other ranks, where they are processes
};

Result<Invocation> ParseCommandLine(int argc, const char* const* argv);

}  // namespace signalbox
