// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/api_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"

namespace signalbox {
namespace {

// A whole number, also where it is written as 16.0.
std::optional<int64_t> IntegerOf(const ApiJson& value) {
  if (value.is_number_unsigned()) {
    const auto n = value.get<uint64_t>();
    if (n > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(n);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto n = value.get<double>();
  if (std::trunc(n) != n || std::abs(n) > 1e15) return std::nullopt;
  return static_cast<int64_t>(n);
}

}  // namespace

std::optional<ApiError> ParseApiBody(std::string_view body, ApiJson* object) {
  const auto checked = ParseJson(body);
  if (!checked.ok()) {
    return ApiError{.message = "the request's body is not JSON: " + checked.status().message()};
  }
  // That reader sorts keys; what it has passed, this one takes.
  *object = ApiJson::parse(body, nullptr, /*allow_exceptions=*/false);
  if (object->is_object()) return std::nullopt;
  return ApiError{.message = "the request's body is not a JSON object: found " + Shown(*object)};
}

std::string Shown(const ApiJson& value) {
  constexpr size_t kMost = 60;
  std::string text = value.is_structured() && value.size() > kMost
                         ? std::string(value.is_array() ? "a long list" : "a large object")
                         : value.dump(-1, ' ', /*ensure_ascii=*/true,
                                      nlohmann::ordered_json::error_handler_t::replace);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

std::optional<std::vector<TokenId>> IdsOf(const ApiJson& list, int64_t vocab) {
  std::vector<TokenId> ids;
  ids.reserve(list.size());
  for (const ApiJson& value : list) {
    const auto id = IntegerOf(value);
    if (!id || *id < 0 || *id >= vocab) return std::nullopt;
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

const ApiJson* ApiFields::Find(std::string_view name) {
  read_.emplace(name);
  const auto found = object_->find(std::string(name));
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> ApiFields::Bool(std::string_view name) {
  const ApiJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Expected(name, "true or false", *value);
  return std::nullopt;
}

std::optional<int64_t> ApiFields::Integer(std::string_view name, int64_t least, int64_t most) {
  const ApiJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const auto number = IntegerOf(*value);
  if (number && *number >= least && *number <= most) return number;
  Expected(name,
           most < INT64_MAX ? fmt::format("a whole number from {} to {}", least, most)
                            : fmt::format("a whole number of at least {}", least),
           *value);
  return std::nullopt;
}

std::optional<double> ApiFields::Number(std::string_view name) {
  const ApiJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->get<double>();
  Expected(name, "a number", *value);
  return std::nullopt;
}

std::optional<std::string> ApiFields::Text(std::string_view name) {
  const ApiJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  Expected(name, "a text", *value);
  return std::nullopt;
}

std::optional<std::string> ApiFields::Word(std::string_view name,
                                           const std::vector<std::string>& words) {
  const ApiJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) {
    const auto word = value->get<std::string>();
    if (std::find(words.begin(), words.end(), word) != words.end()) return word;
  }
  Expected(name, fmt::format("one of {}", fmt::join(words, ", ")), *value);
  return std::nullopt;
}

std::vector<std::string> ApiFields::Texts(std::string_view name) {
  std::vector<std::string> texts;
  const ApiJson* value = Find(name);
  if (value == nullptr) return texts;
  if (value->is_string()) return {value->get<std::string>()};
  bool all = value->is_array();
  for (const ApiJson& text : all ? *value : ApiJson::array()) {
    all = all && text.is_string();
    if (all) texts.push_back(text.get<std::string>());
  }
  if (!all) Expected(name, "a text or a list of texts", *value);
  return texts;
}

std::vector<TokenId> ApiFields::Ids(std::string_view name, int64_t vocab) {
  const ApiJson* value = Find(name);
  if (value == nullptr) return {};
  if (value->is_array()) {
    if (auto ids = IdsOf(*value, vocab)) return *std::move(ids);
  }
  Expected(name, fmt::format("a list of token ids below {}", vocab), *value);
  return {};
}

const ApiJson* ApiFields::Object(std::string_view name) {
  const ApiJson* value = Find(name);
  if (value == nullptr || value->is_object()) return value;
  Expected(name, "an object", *value);
  return nullptr;
}

const ApiJson* ApiFields::Array(std::string_view name) {
  const ApiJson* value = Find(name);
  if (value == nullptr || value->is_array()) return value;
  Expected(name, "a list", *value);
  return nullptr;
}

bool ApiFields::Refuse(std::string_view name, std::string reason) {
  if (!ok()) return false;
  const std::string param = NameOf(name);
  *error_ = ApiError{.param = param, .message = param + ": " + std::move(reason)};
  return true;
}

void ApiFields::Expected(std::string_view name, std::string_view what, const ApiJson& found) {
  Refuse(name, fmt::format("expected {}, found {}", what, Shown(found)));
}

std::vector<std::string> ApiFields::Unread() const {
  std::vector<std::string> names;
  for (const auto& [name, unused] : object_->items())
    if (read_.count(name) == 0) names.push_back(NameOf(name));
  return names;
}

}  // namespace signalbox
