// SPDX-License-Identifier: Apache-2.0
//
// Where the values of flags come from, before anybody asks what they mean: words of the command
// line, variables of the environment, and a YAML file. Internal to the flags.
//
//   SB_ASSIGN_OR_RETURN(std::vector<Setting> file, SettingsOfFile("serve.yaml"));
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/cli/flags.h"

namespace signalbox {

struct Setting {
  std::string name;                 // as given, without dashes: "tensor_parallel_size"
  std::vector<std::string> values;  // several of a list
  std::string where;                // "--tp", "SIGNALBOX_TP", "serve.yaml, line 3"
};

// Spellings that mean the same are the same: '_' and '.' become '-'.
std::string PlainName(std::string_view name);
// "SIGNALBOX_MAX_NEW_TOKENS"
std::string VariableOf(std::string_view name);

// Every SIGNALBOX_* variable that is not empty.
std::vector<Setting> SettingsOfEnvironment();

// YAML: a map from names to texts, or lists of texts; a map inside is names with a dot between.
// kInvalidArgument with file and line.
Result<std::vector<Setting>> SettingsOfFile(const std::string& path);
// The same from text, such as the JSON of --speculative-config; `prefix` goes before every name.
Result<std::vector<Setting>> SettingsOfText(const std::string& text, const std::string& prefix,
                                            const std::string& where);

// A file that SettingsOfFile reads back: every setting with its `where` as a comment.
std::string SettingsToText(const std::vector<Setting>& settings);

}  // namespace signalbox
