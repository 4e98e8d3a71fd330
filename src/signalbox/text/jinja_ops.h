// SPDX-License-Identifier: Apache-2.0
//
// The operators of the expression language, with Python's meaning: arithmetic, comparison,
// membership, subscripts, and the text forms of values (str, repr, JSON).
//
//   SB_ASSIGN_OR_RETURN(Value sum, Binary(runtime, BinaryOp::kAdd, a, b));
//   SB_ASSIGN_OR_RETURN(Text shown, ToText(runtime, sum));
#pragma once

#include <string>
#include <string_view>

#include "signalbox/text/jinja_runtime.h"

namespace signalbox::jinja {

enum class BinaryOp { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
enum class CompareOp { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };
std::string_view ToString(BinaryOp op);
std::string_view ToString(CompareOp op);

// The value of a key that may be any value; null where it is absent, an error where it cannot be
// one.
Result<const Value*> FindKey(const Dict& dict, const Value& key);
bool IsTruthy(const Value& value);
// Equality never fails: values of kinds that cannot be compared are unequal. Costs at most the
// smaller weight.
bool Equals(const Value& a, const Value& b);
// Negative, zero or positive. Numbers, strings, lists and tuples have an order, each with its kind.
Result<int> Order(Runtime& runtime, const Value& a, const Value& b);
Result<Value> Binary(Runtime& runtime, BinaryOp op, const Value& a, const Value& b);
Result<Value> Negate(const Value& value);
Result<bool> Compare(Runtime& runtime, CompareOp op, const Value& a, const Value& b);

// What a for loop walks: the items themselves, a dict's keys, a string's code points; empty for
// undefined. A list or tuple.
Result<Value> ToItems(Runtime& runtime, const Value& value);
Result<int64_t> Length(Runtime& runtime, const Value& value);

// value.name: the method of that name first, then the key. Undefined where there is neither; an
// error only for undefined values.
Result<Value> GetAttribute(Runtime& runtime, const Value& value, std::string_view name);
// value[key]: the item first, then, for a string, the attribute.
Result<Value> GetItem(Runtime& runtime, const Value& value, const Value& key);
// value[start:stop:step] of strings, lists and tuples; bounds that are none are absent. Undefined
// for other values and bounds.
Result<Value> GetSlice(Runtime& runtime, const Value& value, const Value& start, const Value& stop,
                       const Value& step);

// The text that printing shows: Python's str(). Provenance is kept for strings; everything else is
// untrusted. Functions, namespaces and loops cannot be shown.
Result<Text> ToText(Runtime& runtime, const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool multi_line = false;
  std::string indent;  // of one level, when multi_line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// The text of json.dumps. Undefined values and objects are errors.
Result<std::string> ToJson(Runtime& runtime, const Value& value, const JsonStyle& style);

}  // namespace signalbox::jinja
