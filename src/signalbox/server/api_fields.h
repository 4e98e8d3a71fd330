// SPDX-License-Identifier: Apache-2.0
//
// ApiFields: the fields of a JSON object that a client wrote, read by name and type. null is
// absent. The first field that is wrong is remembered with its full name, and reading goes on: a
// reader has no other path for errors. Fields that nobody asked for are known by name at the end.
//
//   std::optional<ApiError> error;
//   ApiFields fields(body, "", &error);
//   const double weight = fields.Number("weight").value_or(1);
//   if (error) return error;   // param "weight": expected a number, found "high"
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "signalbox/base/ids.h"
#include "signalbox/server/api.h"

namespace signalbox {

// Keys keep the order that the client gave them: models read tools and schemas in it.
using ApiJson = nlohmann::ordered_json;

// Strict JSON (base/json_util.h) of one object, else the error to answer with.
std::optional<ApiError> ParseApiBody(std::string_view body, ApiJson* object);

// A value as messages show it: its JSON, cut after 60 bytes.
std::string Shown(const ApiJson& value);

class ApiFields {
 public:
  // REQUIRES: `object` is one, and outlives this. `prefix` stands before names in errors:
  // "sampling_params.".
  ApiFields(const ApiJson& object, std::string prefix, std::optional<ApiError>* error)
      : object_(&object), prefix_(std::move(prefix)), error_(error) {}

  // Each gives nothing where the field is absent or wrong.
  std::optional<bool> Bool(std::string_view name);
  std::optional<int64_t> Integer(std::string_view name, int64_t least, int64_t most);
  std::optional<double> Number(std::string_view name);
  std::optional<std::string> Text(std::string_view name);
  // One of several words.
  std::optional<std::string> Word(std::string_view name, const std::vector<std::string>& words);
  // A text, or a list of texts.
  std::vector<std::string> Texts(std::string_view name);
  // A list of token ids below `vocab`.
  std::vector<TokenId> Ids(std::string_view name, int64_t vocab);
  const ApiJson* Object(std::string_view name);
  const ApiJson* Array(std::string_view name);
  // Of any type but null.
  const ApiJson* Find(std::string_view name);

  // The field is wrong, for this reason; false where another was before it.
  bool Refuse(std::string_view name, std::string reason);
  bool ok() const { return !error_->has_value(); }
  std::string NameOf(std::string_view name) const { return prefix_ + std::string(name); }
  std::optional<ApiError>* error() const { return error_; }
  // The fields that nobody asked for.
  std::vector<std::string> Unread() const;

 private:
  void Expected(std::string_view name, std::string_view what, const ApiJson& found);

  const ApiJson* object_;
  std::string prefix_;
  std::optional<ApiError>* error_;
  std::set<std::string, std::less<>> read_;
};

// Token ids of a list; nothing where one is none or not below `vocab`.
std::optional<std::vector<TokenId>> IdsOf(const ApiJson& list, int64_t vocab);

}  // namespace signalbox
