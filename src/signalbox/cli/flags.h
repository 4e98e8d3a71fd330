// SPDX-License-Identifier: Apache-2.0
//
// Flags: one table of every option of every command. It makes the parser, the SIGNALBOX_* variables
// and
// --help; nothing else in the program names an option twice.
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

// kTexts may be given several times, and has no default.
enum class FlagKind : uint8_t { kInt, kNumber, kText, kTexts, kSwitch };

struct FlagSpec {
  std::string name;  // without dashes: "max-new-tokens"
  FlagKind kind;
  std::string fallback;  // as text; empty: unset
  std::string help;
  std::vector<std::string> choices = {};  // kText: allowed values; empty: any
  std::string only = {};                  // the one command this row is for, before the general row
  std::vector<std::string> aliases = {};  // other spellings, without dashes
  int least = 0;                          // kInt, kNumber
};

struct CommandSpec {
  std::string name;  // one word, or two: "bench a2a"
  std::string summary;
  std::vector<std::string> positionals;  // "MODEL"; all required. "MODEL...": one or more, last
  std::vector<std::string> flags;        // names out of the table
};

std::span<const FlagSpec> FlagTable();
std::span<const CommandSpec> CommandTable();

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

  void Set(const std::string& name, std::string value) { values_[name] = {std::move(value)}; }
  void SetTexts(const std::string& name, std::vector<std::string> texts) {
    values_[name] = std::move(texts);
  }

 private:
  const std::string& Get(std::string_view name) const;
  std::map<std::string, std::vector<std::string>, std::less<>> values_;  // one but of kTexts
};

struct Invocation {
  std::string command;  // empty: only help or version was asked for, see `message`
  std::vector<std::string> positionals;
  FlagValues flags;
  std::string message;                // text to print instead of running (help)
  Communicator* processes = nullptr;  // the other ranks, where they are processes
};

Result<Invocation> ParseCommandLine(int argc, const char* const* argv);

}  // namespace signalbox
