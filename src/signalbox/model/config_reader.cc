// SPDX-License-Identifier: Apache-2.0
#include "signalbox/model/config_reader.h"

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

namespace signalbox {
namespace {

std::string Shown(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

}  // namespace

bool ConfigReader::Has(const std::string& key) const {
  return object_.contains(key) && !object_.at(key).is_null();
}

const nlohmann::json& ConfigReader::Raw(const std::string& key) const {
  return object_.at(key);
}

void ConfigReader::Fail(const std::string& key, std::string found, std::string expected,
                        std::string remedy) {
  if (!status_.ok()) return;
  status_ = BadCheckpoint({.what = "unusable model configuration",
                           .where = where_ + ", key " + key,
                           .found = std::move(found),
                           .expected = std::move(expected),
                           .remedy = std::move(remedy)});
}

int64_t ConfigReader::Positive(const std::string& key) {
  const int64_t n = CountOr(key, -1);
  if (n >= 1 || !status_.ok()) return n < 0 ? 0 : n;
  Fail(key, n < 0 ? "nothing" : "0", "a positive integer");
  return 0;
}

int64_t ConfigReader::CountOr(const std::string& key, int64_t fallback) {
  if (!Has(key)) return fallback;
  const nlohmann::json& value = object_.at(key);
  if (value.is_number_integer()) {
    // Through double: an unsigned value above 2^63 must not wrap into range.
    const double d = value.get<double>();
    if (d >= 0 && d <= std::numeric_limits<int32_t>::max()) return value.get<int64_t>();
  }
  Fail(key, Shown(value), "an integer in [0, 2^31)");
  return 0;
}

double ConfigReader::Number(const std::string& key) {
  if (!Has(key)) {
    Fail(key, "nothing", "a number");
    return 0;
  }
  const nlohmann::json& value = object_.at(key);
  if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
  Fail(key, Shown(value), "a finite number");
  return 0;
}

bool ConfigReader::BoolOr(const std::string& key, bool fallback) {
  if (!Has(key)) return fallback;
  const nlohmann::json& value = object_.at(key);
  if (value.is_boolean()) return value.get<bool>();
  Fail(key, Shown(value), "true or false");
  return fallback;
}

std::string ConfigReader::StringOr(const std::string& key, const std::string& fallback) {
  if (!Has(key)) return fallback;
  const nlohmann::json& value = object_.at(key);
  if (value.is_string()) return value.get<std::string>();
  Fail(key, Shown(value), "a string");
  return fallback;
}

std::vector<int64_t> ConfigReader::Integers(const std::string& key) {
  std::vector<int64_t> numbers;
  if (!Has(key)) return numbers;
  const nlohmann::json& value = object_.at(key);
  if (!value.is_array()) {
    Fail(key, Shown(value), "a list of whole numbers");
    return numbers;
  }
  for (const nlohmann::json& v : value) {
    // Through double: an unsigned value above 2^63 must not wrap.
    const double d = v.is_number_integer() ? v.get<double>() : std::nan("");
    if (!(std::abs(d) <= std::numeric_limits<int32_t>::max())) {
      Fail(key, Shown(v), "whole numbers of at most 31 bits");
      return {};
    }
    numbers.push_back(v.get<int64_t>());
  }
  return numbers;
}

int64_t ConfigReader::LayerCount() {
  // Bounds what a hostile config can make us allocate; the deepest release has 94 layers.
  constexpr int64_t kMost = 4096;
  const int64_t n = Positive("num_hidden_layers");
  if (n <= kMost) return n;
  Fail("num_hidden_layers", std::to_string(n), "at most " + std::to_string(kMost));
  return 0;
}

ConfigReader ConfigReader::Object(const std::string& key) {
  static const nlohmann::json kEmpty = nlohmann::json::object();
  if (!Has(key)) return ConfigReader(kEmpty, where_ + ", " + key);
  const nlohmann::json& value = object_.at(key);
  if (value.is_object()) return ConfigReader(value, where_ + ", " + key);
  Fail(key, Shown(value), "an object");
  return ConfigReader(kEmpty, where_ + ", " + key);
}

}  // namespace signalbox
