// SPDX-License-Identifier: Apache-2.0
//
// Text and JSON forms of a contract, all made from VisitFields().
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <fstream>
#include <map>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "signalbox/a2a/contract.h"
#include "signalbox/base/text_util.h"

namespace signalbox {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kEmptyList = "none";

template <ContractEnum E>
std::vector<std::string_view> Names(EnumSet<E> set) {
  std::vector<std::string_view> names;
  for (size_t i = 0; i < std::size(EnumText<E>::kNames); ++i) {
    if (set.Has(static_cast<E>(i))) names.push_back(EnumText<E>::kNames[i]);
  }
  return names;
}

std::string Format(const std::string& value) {
  return value;
}
std::string Format(bool value) {
  return value ? "yes" : "no";
}
std::string Format(int value) {
  return std::to_string(value);
}
std::string Format(const std::vector<int>& value) {
  return value.empty() ? std::string(kEmptyList) : fmt::format("{}", fmt::join(value, ", "));
}
template <ContractEnum E>
std::string Format(E value) {
  return std::string(ToString(value));
}
template <ContractEnum E>
std::string Format(EnumSet<E> value) {
  return value.empty() ? std::string(kEmptyList) : fmt::format("{}", fmt::join(Names(value), ", "));
}

template <typename T>
Json ToJson(const T& value) {
  return value;
}
template <ContractEnum E>
Json ToJson(const E& value) {
  return ToString(value);
}
template <ContractEnum E>
Json ToJson(const EnumSet<E>& value) {
  return Names(value);
}

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::vector<std::string_view> SplitList(std::string_view text) {
  std::vector<std::string_view> items;
  if (text == kEmptyList) return items;
  while (true) {
    const size_t comma = text.find(',');
    items.push_back(Trim(text.substr(0, comma)));
    if (comma == std::string_view::npos) return items;
    text.remove_prefix(comma + 1);
  }
}

// Parse() fills `out` or says what it would have accepted and which word is nearest.
struct Expectation {
  std::string expected;
  std::optional<std::string_view> nearest = std::nullopt;
};
using ParseResult = std::optional<Expectation>;

ParseResult Parse(std::string_view text, std::string& out) {
  out = text;
  return std::nullopt;
}

ParseResult Parse(std::string_view text, bool& out) {
  out = text == "yes";
  if (out || text == "no") return std::nullopt;
  return Expectation{"yes or no"};
}

ParseResult Parse(std::string_view text, int& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error == std::errc() && end == text.data() + text.size() && out >= 0) return std::nullopt;
  return Expectation{"a whole number from 0"};
}

ParseResult Parse(std::string_view text, std::vector<int>& out) {
  out.clear();
  for (std::string_view item : SplitList(text)) {
    if (Parse(item, out.emplace_back())) {
      return Expectation{fmt::format("whole numbers separated by commas, or {}", kEmptyList)};
    }
  }
  return std::nullopt;
}

template <ContractEnum E>
ParseResult Parse(std::string_view text, E& out) {
  if (const std::optional<E> value = ParseEnum<E>(text)) {
    out = *value;
    return std::nullopt;
  }
  return Expectation{fmt::format("one of {}", fmt::join(EnumText<E>::kNames, ", ")),
                     NearestName(text, EnumText<E>::kNames)};
}

template <ContractEnum E>
ParseResult Parse(std::string_view text, EnumSet<E>& out) {
  out = {};
  for (std::string_view item : SplitList(text)) {
    E value;
    if (Parse(item, value)) {
      return Expectation{
          fmt::format("a list of {}, or {}", fmt::join(EnumText<E>::kNames, ", "), kEmptyList),
          NearestName(item, EnumText<E>::kNames)};
    }
    out.Add(value);
  }
  return std::nullopt;
}

std::string Suggestion(std::optional<std::string_view> word) {
  return word ? fmt::format("did you mean {}?", *word) : "";
}

struct Entry {
  std::string value;
  int line;
  bool used = false;
};
using Entries = std::map<std::string, Entry, std::less<>>;

Result<Entries> ReadEntries(std::string_view text, std::string_view where) {
  Entries entries;
  int line = 0;
  while (!text.empty()) {
    ++line;
    const size_t newline = text.find('\n');
    std::string_view content = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    content = Trim(content.substr(0, content.find('#')));
    if (content.empty()) continue;
    const size_t equals = content.find('=');
    const std::string_view key = Trim(content.substr(0, equals));
    const std::string_view value =
        equals == std::string_view::npos ? "" : Trim(content.substr(equals + 1));
    if (key.empty() || value.empty()) {
      return InvalidArgument({.what = "not a key with a value",
                              .where = fmt::format("{}:{}", where, line),
                              .found = Quoted(content),
                              .expected = "key = value"});
    }
    const auto [it, inserted] =
        entries.try_emplace(std::string(key), Entry{std::string(value), line});
    if (!inserted) {
      return InvalidArgument(
          {.what = fmt::format("key {} is given twice", Quoted(key)),
           .where = fmt::format("{}:{}", where, line),
           .remedy = fmt::format("remove it here or in line {}", it->second.line)});
    }
  }
  return entries;
}

}  // namespace

std::string ContractToText(const Contract& contract) {
  std::string text;
  VisitFields(contract, [&](std::string_view key, const auto& field, Need) {
    const std::string value = Format(field);
    if (!value.empty()) text += fmt::format("{} = {}\n", key, value);
  });
  return text;
}

std::string ContractToJson(const Contract& contract) {
  Json json;
  VisitFields(contract, [&](std::string_view key, const auto& field, Need) {
    json[std::string(key)] = ToJson(field);
  });
  return json.dump();
}

std::vector<std::string> Differences(const Contract& a, const Contract& b) {
  std::vector<std::string> values;
  VisitFields(a,
              [&](std::string_view, const auto& field, Need) { values.push_back(Format(field)); });
  std::vector<std::string> differences;
  size_t i = 0;
  VisitFields(b, [&](std::string_view key, const auto& field, Need) {
    const std::string& mine = values[i++];
    const std::string other = Format(field);
    if (mine != other && key != "name" && key != "mode") {
      differences.push_back(fmt::format("{}: {} | {}", key, mine, other));
    }
  });
  return differences;
}

Result<Contract> ContractFromText(std::string_view text, std::string_view where) {
  SB_ASSIGN_OR_RETURN(Entries entries, ReadEntries(text, where));
  Contract contract;
  std::vector<std::string_view> keys;
  std::vector<std::string_view> missing;
  Status failure;
  VisitFields(contract, [&](std::string_view key, auto& field, Need need) {
    keys.push_back(key);
    const auto it = entries.find(key);
    if (it == entries.end()) {
      if (need == Need::kRequired) missing.push_back(key);
      return;
    }
    it->second.used = true;
    const ParseResult bad = Parse(it->second.value, field);
    if (!bad || !failure.ok()) return;
    failure = InvalidArgument({.what = fmt::format("key {} has a value that it cannot have", key),
                               .where = fmt::format("{}:{}", where, it->second.line),
                               .found = Quoted(it->second.value),
                               .expected = bad->expected,
                               .remedy = Suggestion(bad->nearest)});
  });
  for (const auto& [key, entry] : entries) {
    if (entry.used) continue;
    return InvalidArgument({.what = fmt::format("unknown key {}", Quoted(key)),
                            .where = fmt::format("{}:{}", where, entry.line),
                            .remedy = Suggestion(NearestName(key, keys))});
  }
  SB_RETURN_IF_ERROR(failure);
  if (!missing.empty()) {
    return InvalidArgument({.what = fmt::format("missing keys: {}", fmt::join(missing, ", ")),
                            .where = std::string(where),
                            .remedy = "give them: each of them decides what a result means"});
  }
  if (const Status valid = Validate(contract); !valid.ok()) return valid.At(where);
  return contract;
}

Result<Contract> ContractFromFile(const std::string& path) {
  constexpr std::streamsize kMaxBytes = 1 << 20;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxBytes, '\0');
  file.read(text.data(), kMaxBytes);
  if (!file.eof()) {
    return NotFound({.what = "cannot read the contract file",
                     .where = path,
                     .remedy = "give a readable text file of key = value lines, below 1 MiB"});
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return ContractFromText(text, path);
}

}  // namespace signalbox
