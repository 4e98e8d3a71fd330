// SPDX-License-Identifier: Apache-2.0
//
// The values a template works on: immutable, cheap to copy, free of host objects.
//
// Integers are 64-bit and distinct from floats; dicts keep insertion order; strings carry
// provenance (jinja_text.h). Every container knows its nesting depth and its weight, the number of
// bytes that a full walk of it visits (shared parts counted each time), so that work can be charged
// before it is done and no walk can overflow the stack.
//
//   SB_ASSIGN_OR_RETURN(jinja::Value v, jinja::Value::FromJson(R"({"role": "user"})"));
//   const jinja::Value* role = v.dict().Find("role");
//   role->text().ToSegments();  // {"user", untrusted}
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/text/jinja_text.h"

namespace signalbox::jinja {

class Dict;
struct Object;  // what only a running template makes: namespaces, macros, methods, loops

// Nesting that values may have; deeper JSON is refused, deeper results of a template are errors.
inline constexpr int kMaxValueDepth = 100;

class Value {
 public:
  enum class Kind {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kList,
    kTuple,
    kDict,
    kObject
  };
  using Items = std::vector<Value>;

  Value() = default;  // undefined, without a reason
  // `why` is the error message when the value is used where a defined one is needed.
  static Value Undefined(std::string why);
  static Value None();
  static Value Bool(bool b) { return Value(Kind::kBool, b); }
  static Value Int(int64_t i) { return Value(Kind::kInt, i); }
  static Value Float(double d) { return Value(Kind::kFloat, d); }
  static Value String(Text text);
  static Value String(std::string_view text, bool trusted) { return String(Text(text, trusted)); }
  static Value List(Items items) { return Sequence(Kind::kList, std::move(items)); }
  static Value Tuple(Items items) { return Sequence(Kind::kTuple, std::move(items)); }
  static Value FromDict(Dict dict);
  static Value FromObject(std::shared_ptr<Object> object);

  // Parses one JSON document; every string in it (keys too) gets the given trust. Of repeated keys
  // the last value wins; integers beyond 64 bits become floats. kInvalidArgument names the byte.
  static Result<Value> FromJson(std::string_view json, bool trusted = false);

  Kind kind() const { return kind_; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  bool is_object() const { return kind_ == Kind::kObject; }
  // bool, int: Python's bool is an int.
  bool is_integral() const { return kind_ == Kind::kBool || kind_ == Kind::kInt; }
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }

  // Each REQUIRES the kind it names.
  const std::string& why() const;                                           // undefined
  int64_t integer() const;                                                  // bool, int
  double number() const;                                                    // bool, int, float
  const Text& text() const { return *Get<std::shared_ptr<const Text>>(); }  // string
  std::string_view str() const { return text().bytes(); }                   // string
  const Items& items() const;                                               // list, tuple
  const Dict& dict() const { return *Get<std::shared_ptr<const Dict>>(); }  // dict
  Object& object() const { return *Get<std::shared_ptr<Object>>(); }        // object
  const std::shared_ptr<Object>& object_ptr() const { return Get<std::shared_ptr<Object>>(); }

  int depth() const;      // 0 for scalars, 1 + the deepest item for containers
  size_t weight() const;  // bytes that a full walk visits; saturates

 private:
  struct SequenceData;
  using Storage = std::variant<std::monostate, bool, int64_t, double, std::shared_ptr<const Text>,
                               std::shared_ptr<const SequenceData>, std::shared_ptr<const Dict>,
                               std::shared_ptr<Object>, std::shared_ptr<const std::string>>;

  Value(Kind kind, Storage storage) : kind_(kind), storage_(std::move(storage)) {}
  static Value Sequence(Kind kind, Items items);
  template <typename T>
  const T& Get() const {
    const T* held = std::get_if<T>(&storage_);
    SB_CHECK(held != nullptr) << "Jinja value of another kind, " << static_cast<int>(kind_);
    return *held;
  }

  Kind kind_ = Kind::kUndefined;
  Storage storage_;
};

// An ordered map whose keys are hashable values: strings, numbers and none. As in Python, 1, 1.0
// and true are one key.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;

  static bool IsHashable(const Value& key);
  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  // Null where there is no such key. REQUIRES for a Value: IsHashable(key).
  const Value* Find(std::string_view key) const;
  const Value* Find(const Value& key) const;
  // Adds the key, or replaces its value in place. REQUIRES: IsHashable(key).
  void Set(Value key, Value value);
  // A key that the template's author or the engine names.
  void Set(std::string_view key, Value value);

  int depth() const { return depth_; }
  size_t weight() const { return weight_; }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> index_;  // canonical key -> position in entries_
  int depth_ = 1;
  size_t weight_ = 0;
};

}  // namespace signalbox::jinja
