// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "signalbox/text/jinja_runtime.h"

namespace signalbox::jinja {
namespace {

constexpr size_t kValueWeight = 16;  // of a value without contents

size_t SaturatingAdd(size_t a, size_t b) {
  return a > std::numeric_limits<size_t>::max() - b ? std::numeric_limits<size_t>::max() : a + b;
}

// Equal keys, and only they, have equal canonical forms.
std::string CanonicalKey(const Value& key) {
  switch (key.kind()) {
    case Value::Kind::kString:
      return "s" + std::string(key.str());
    case Value::Kind::kNone:
      return "none";
    case Value::Kind::kFloat: {
      const double d = key.number();
      const bool integral = d == std::floor(d) && std::fabs(d) < 9.2e18;
      return integral ? fmt::format("i{}", static_cast<int64_t>(d)) : fmt::format("f{}", d);
    }
    default:
      return fmt::format("i{}", key.integer());
  }
}

}  // namespace

struct Value::SequenceData {
  Items items;
  int depth = 1;
  size_t weight = kValueWeight;
};

Value Value::Undefined(std::string why) {
  return Value(Kind::kUndefined, std::make_shared<const std::string>(std::move(why)));
}

Value Value::None() {
  return Value(Kind::kNone, std::monostate());
}

Value Value::String(Text text) {
  return Value(Kind::kString, std::make_shared<const Text>(std::move(text)));
}

Value Value::FromDict(Dict dict) {
  return Value(Kind::kDict, std::make_shared<const Dict>(std::move(dict)));
}

Value Value::FromObject(std::shared_ptr<Object> object) {
  return Value(Kind::kObject, std::move(object));
}

Value Value::Sequence(Kind kind, Items items) {
  auto data = std::make_shared<SequenceData>();
  for (const Value& item : items) {
    data->depth = std::max(data->depth, item.depth() + 1);
    data->weight = SaturatingAdd(data->weight, item.weight());
  }
  data->items = std::move(items);
  return Value(kind, std::shared_ptr<const SequenceData>(std::move(data)));
}

const std::string& Value::why() const {
  static const auto* const kNoReason = new std::string("an undefined value was used");
  const auto* reason = std::get_if<std::shared_ptr<const std::string>>(&storage_);
  return reason == nullptr ? *kNoReason : **reason;
}

int64_t Value::integer() const {
  return kind_ == Kind::kBool ? static_cast<int64_t>(Get<bool>()) : Get<int64_t>();
}

double Value::number() const {
  return kind_ == Kind::kFloat ? Get<double>() : static_cast<double>(integer());
}

const Value::Items& Value::items() const {
  return Get<std::shared_ptr<const SequenceData>>()->items;
}

int Value::depth() const {
  if (is_sequence()) return Get<std::shared_ptr<const SequenceData>>()->depth;
  if (is_object()) return object().depth;
  return is_dict() ? dict().depth() : 0;
}

size_t Value::weight() const {
  if (is_string()) return kValueWeight + text().footprint();
  if (is_sequence()) return Get<std::shared_ptr<const SequenceData>>()->weight;
  return is_dict() ? SaturatingAdd(kValueWeight, dict().weight()) : kValueWeight;
}

bool Dict::IsHashable(const Value& key) {
  return key.is_string() || key.is_number() || key.is_none();
}

const Value* Dict::Find(std::string_view key) const {
  const auto it = index_.find("s" + std::string(key));
  return it == index_.end() ? nullptr : &entries_[it->second].second;
}

const Value* Dict::Find(const Value& key) const {
  const auto it = index_.find(CanonicalKey(key));
  return it == index_.end() ? nullptr : &entries_[it->second].second;
}

void Dict::Set(Value key, Value value) {
  depth_ = std::max(depth_, value.depth() + 1);
  // A replaced value keeps its weight: an upper bound is enough and needs no second walk.
  weight_ = SaturatingAdd(weight_, SaturatingAdd(key.weight(), value.weight()));
  const auto [it, added] = index_.emplace(CanonicalKey(key), entries_.size());
  if (added) {
    entries_.emplace_back(std::move(key), std::move(value));
  } else {
    entries_[it->second].second = std::move(value);
  }
}

void Dict::Set(std::string_view key, Value value) {
  Set(Value::String(key, /*trusted=*/true), std::move(value));
}

}  // namespace signalbox::jinja
