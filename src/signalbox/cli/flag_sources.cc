// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/flag_sources.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>

#include <yaml-cpp/yaml.h>

#include "signalbox/base/text_util.h"

namespace signalbox {
namespace {

constexpr std::string_view kPrefix = "SIGNALBOX_";
constexpr int kDeepest = 3;       // maps in maps
constexpr size_t kMost = 10'000;  // settings of a file, so that its anchors cannot multiply

Status Unusable(const std::string& where, std::string found) {
  return InvalidArgument({.what = "unusable configuration",
                          .where = where,
                          .found = std::move(found),
                          .expected = "a map from names of flags to texts, numbers, true or false, "
                                      "or lists of them"});
}

// Appends what `node` sets. `where` names its file.
Status Flatten(const YAML::Node& node, const std::string& name, const std::string& file, int depth,
               std::vector<Setting>* settings) {
  const std::string where =
      node.Mark().is_null() ? file : fmt::format("{}, line {}", file, node.Mark().line + 1);
  if (node.IsMap() && depth < kDeepest) {
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) return Unusable(where, "a key that is no text");
      const std::string& key = entry.first.Scalar();
      const std::string inner = name.empty() ? key : name + "." + key;
      SB_RETURN_IF_ERROR(Flatten(entry.second, inner, file, depth + 1, settings));
    }
    return OkStatus();
  }
  if (name.empty()) return Unusable(where, node.IsSequence() ? "a list" : "no map");
  if (settings->size() == kMost) return Unusable(where, "more settings than there are flags");
  Setting setting{.name = name, .values = {}, .where = where};
  if (node.IsScalar()) setting.values.push_back(node.Scalar());
  if (node.IsSequence()) {
    for (const YAML::Node& element : node) {
      if (!element.IsScalar()) return Unusable(where, Quoted(name) + " with a list of no texts");
      setting.values.push_back(element.Scalar());
    }
  }
  if (node.IsMap()) return Unusable(where, Quoted(name) + " with maps too deep");
  // Without a value (null) a key says nothing.
  if (!node.IsNull()) settings->push_back(std::move(setting));
  return OkStatus();
}

}  // namespace

std::string PlainName(std::string_view name) {
  std::string plain(name);
  for (char& c : plain) {
    if (c == '_' || c == '.') c = '-';
  }
  return plain;
}

std::string VariableOf(std::string_view name) {
  std::string variable(kPrefix);
  for (char c : PlainName(name))
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return variable;
}

std::vector<Setting> SettingsOfEnvironment() {
  std::vector<Setting> settings;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    const size_t equals = entry.find('=');
    if (!entry.starts_with(kPrefix) || equals == entry.npos || equals + 1 == entry.size()) continue;
    const std::string_view variable = entry.substr(0, equals);
    Setting setting{.name = std::string(variable.substr(kPrefix.size())),
                    .values = {std::string(entry.substr(equals + 1))},
                    .where = std::string(variable)};
    for (char& c : setting.name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    settings.push_back(std::move(setting));
  }
  // The order of the environment is nobody's.
  std::ranges::sort(settings, {}, &Setting::where);
  return settings;
}

Result<std::vector<Setting>> SettingsOfText(const std::string& text, const std::string& prefix,
                                            const std::string& where) {
  std::vector<Setting> settings;
  try {
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull() && prefix.empty()) return settings;
    if (!prefix.empty() && !root.IsMap()) return Unusable(where, "no map");
    SB_RETURN_IF_ERROR(Flatten(root, prefix, where, prefix.empty() ? 0 : 1, &settings));
  } catch (const YAML::Exception& e) {
    return InvalidArgument({.what = "no YAML",
                            .where = fmt::format("{}, line {}", where, e.mark.line + 1),
                            .found = e.msg});
  }
  return settings;
}

Result<std::vector<Setting>> SettingsOfFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return InvalidArgument({.what = "cannot read the configuration",
                            .where = "--config " + path,
                            .remedy = "give a YAML file that is not empty"});
  }
  return SettingsOfText(text.str(), "", path);
}

std::string SettingsToText(const std::vector<Setting>& settings) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  for (const Setting& setting : settings) {
    out << YAML::Key << setting.name << YAML::Value;
    if (setting.values.size() == 1) {
      out << setting.values[0];
    } else {
      out << YAML::Flow << setting.values;
    }
    out << YAML::Comment(setting.where);
  }
  out << YAML::EndMap << YAML::Newline;
  return out.c_str();
}

}  // namespace signalbox
