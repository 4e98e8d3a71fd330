// SPDX-License-Identifier: Apache-2.0
//
// ConfigReader: typed access to one JSON object of a config, with errors that name file, key, found
// value and what was expected. For model/ and for families registered from elsewhere.
//
//   ConfigReader r(json, "config.json");
//   int64_t hidden = r.Positive("hidden_size");       // remembers the first error
//   SB_RETURN_IF_ERROR(r.status());
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "signalbox/base/status.h"

namespace signalbox {

class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  bool Has(const std::string& key) const;
  // Integer in [1, 2^31): sizes and counts. 0 after an error.
  int64_t Positive(const std::string& key);
  int64_t PositiveOr(const std::string& key, int64_t fallback) {
    return Has(key) ? Positive(key) : fallback;
  }
  // Integer in [0, 2^31).
  int64_t CountOr(const std::string& key, int64_t fallback);
  double Number(const std::string& key);
  double NumberOr(const std::string& key, double fallback) {
    return Has(key) ? Number(key) : fallback;
  }
  bool BoolOr(const std::string& key, bool fallback);
  std::string StringOr(const std::string& key, const std::string& fallback);
  // The object under `key`; an empty object when it is missing.
  ConfigReader Object(const std::string& key);
  const nlohmann::json& Raw(const std::string& key) const;  // REQUIRES: Has(key)

  // The whole numbers under `key`; none when it is missing.
  std::vector<int64_t> Integers(const std::string& key);
  // num_hidden_layers, bounded.
  int64_t LayerCount();

  // Records an error of the caller's own, unless there is one already.
  void Fail(const std::string& key, std::string found, std::string expected,
            std::string remedy = "");
  // The same with an error of a reader of one of the objects inside.
  void Adopt(const Status& status) {
    if (status_.ok()) status_ = status;
  }
  const std::string& where() const { return where_; }
  const Status& status() const { return status_; }

 private:
  const nlohmann::json& object_;
  std::string where_;
  Status status_;
};

}  // namespace signalbox
