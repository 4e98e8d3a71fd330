// SPDX-License-Identifier: Apache-2.0
//
// What the flag table looks like to a reader: --help, the reference page docs/flags.md, and shell
// completions. Pure text.
//
//   fmt::print("{}", HelpText(command, "cache"));   // what --help=cache prints
#pragma once

#include <string>
#include <string_view>

#include "signalbox/base/status.h"
#include "signalbox/cli/flags.h"

namespace signalbox {

// The group of flags that are taken from launch lines of other engines and that no code reads.
inline constexpr std::string_view kCarriedGroup = "Flags of other engines";

// "signalbox eval [MODEL] [--FLAG ...]"
std::string UsageOf(const CommandSpec& command);
// What --help=WORD prints for the program: the commands where the word is empty, else all flags
// with the word in name, alias, help or group. "all": every flag.
std::string OverviewText(std::string_view word);
// The same of one command; where the word is empty, all but kCarriedGroup.
std::string HelpText(const CommandSpec& command, std::string_view word);

// docs/flags.md
std::string FlagsPage();

// A script for `shell`: bash, zsh or fish. kInvalidArgument for another one.
Result<std::string> CompletionScript(std::string_view shell);

}  // namespace signalbox
