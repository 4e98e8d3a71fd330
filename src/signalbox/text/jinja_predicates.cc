// SPDX-License-Identifier: Apache-2.0
//
// Jinja tests: `value is name(arguments)`. Each answers with a bool.
#include <algorithm>

#include "signalbox/text/jinja_ops.h"

namespace signalbox::jinja {
namespace {

template <bool (*holds)(const Value&)>
Result<Value> Is(Runtime&, const Value& self, const Arguments&) {
  return Value::Bool(holds(self));
}

template <CompareOp op>
Result<Value> Compares(Runtime& runtime, const Value& self, const Arguments& args) {
  SB_ASSIGN_OR_RETURN(const bool holds, Compare(runtime, op, self, args[0]));
  return Value::Bool(holds);
}

bool IsDefined(const Value& v) {
  return !v.is_undefined();
}
bool IsUndefined(const Value& v) {
  return v.is_undefined();
}
bool IsNone(const Value& v) {
  return v.is_none();
}
bool IsBoolean(const Value& v) {
  return v.kind() == Value::Kind::kBool;
}
bool IsTrue(const Value& v) {
  return IsBoolean(v) && v.integer() != 0;
}
bool IsFalse(const Value& v) {
  return IsBoolean(v) && v.integer() == 0;
}
bool IsInteger(const Value& v) {
  return v.kind() == Value::Kind::kInt;
}
bool IsFloat(const Value& v) {
  return v.kind() == Value::Kind::kFloat;
}
bool IsNumber(const Value& v) {
  return v.is_number();
}
bool IsString(const Value& v) {
  return v.is_string();
}
bool IsMapping(const Value& v) {
  return v.is_dict();
}
// Undefined values can be iterated over and called as far as Jinja's tests know.
bool IsSequence(const Value& v) {
  return v.is_string() || v.is_sequence() || v.is_dict() || v.is_undefined();
}
bool IsCallable(const Value& v) {
  if (v.is_undefined()) return true;
  return v.is_object() && (std::holds_alternative<Macro>(v.object().state) ||
                           std::holds_alternative<Method>(v.object().state));
}

// str.isupper and str.islower: at least one cased character, and all cased ones agree.
template <Case how>
Result<Value> HasCase(Runtime& runtime, const Value& self, const Arguments&) {
  SB_ASSIGN_OR_RETURN(const Text text, ToText(runtime, self));
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(text.size() * kCaseCost * 2));
  const Case other = how == Case::kUpper ? Case::kLower : Case::kUpper;
  return Value::Bool(ChangeCase(text, how).bytes() == text.bytes() &&
                     ChangeCase(text, other).bytes() != text.bytes());
}

Result<Value> Remainder(Runtime& runtime, const Value& self, const Value& divisor,
                        int64_t expected) {
  if (!self.is_number()) return WrongKind("the test needs a number", self, "an int");
  SB_ASSIGN_OR_RETURN(const Value rest, Binary(runtime, BinaryOp::kMod, self, divisor));
  return Value::Bool(Equals(rest, Value::Int(expected)));
}

template <int64_t rest>
Result<Value> Parity(Runtime& runtime, const Value& self, const Arguments&) {
  return Remainder(runtime, self, Value::Int(2), rest);
}

Result<Value> DivisibleBy(Runtime& runtime, const Value& self, const Arguments& args) {
  return Remainder(runtime, self, args[0], 0);
}

Result<Value> SameAs(Runtime&, const Value& self, const Arguments& args) {
  const Value& other = args[0];
  if (self.is_sequence() || self.is_dict() || other.is_sequence() || other.is_dict()) {
    return WrongKind("sameas compares identities, which lists and dicts do not have here",
                     self.is_sequence() || self.is_dict() ? self : other, "a scalar; use ==");
  }
  return Value::Bool(self.kind() == other.kind() && Equals(self, other));
}

template <const Builtin* (*find)(std::string_view)>
Result<Value> Exists(Runtime&, const Value& self, const Arguments&) {
  return Value::Bool(self.is_string() && find(self.str()) != nullptr);
}

constexpr Builtin kTests[] = {
    {"!=", "other", 1, Compares<CompareOp::kNe>},
    {"<", "other", 1, Compares<CompareOp::kLt>},
    {"<=", "other", 1, Compares<CompareOp::kLe>},
    {"==", "other", 1, Compares<CompareOp::kEq>},
    {">", "other", 1, Compares<CompareOp::kGt>},
    {">=", "other", 1, Compares<CompareOp::kGe>},
    {"boolean", "", 0, Is<IsBoolean>},
    {"callable", "", 0, Is<IsCallable>},
    {"defined", "", 0, Is<IsDefined>},
    {"divisibleby", "num", 1, DivisibleBy},
    {"eq", "other", 1, Compares<CompareOp::kEq>},
    {"equalto", "other", 1, Compares<CompareOp::kEq>},
    {"even", "", 0, Parity<0>},
    {"false", "", 0, Is<IsFalse>},
    {"filter", "", 0, Exists<FindFilter>},
    {"float", "", 0, Is<IsFloat>},
    {"ge", "other", 1, Compares<CompareOp::kGe>},
    {"greaterthan", "other", 1, Compares<CompareOp::kGt>},
    {"gt", "other", 1, Compares<CompareOp::kGt>},
    {"in", "seq", 1, Compares<CompareOp::kIn>},
    {"integer", "", 0, Is<IsInteger>},
    {"iterable", "", 0, Is<IsSequence>},
    {"le", "other", 1, Compares<CompareOp::kLe>},
    {"lessthan", "other", 1, Compares<CompareOp::kLt>},
    {"lower", "", 0, HasCase<Case::kLower>},
    {"lt", "other", 1, Compares<CompareOp::kLt>},
    {"mapping", "", 0, Is<IsMapping>},
    {"ne", "other", 1, Compares<CompareOp::kNe>},
    {"none", "", 0, Is<IsNone>},
    {"number", "", 0, Is<IsNumber>},
    {"odd", "", 0, Parity<1>},
    {"sameas", "other", 1, SameAs},
    {"sequence", "", 0, Is<IsSequence>},
    {"string", "", 0, Is<IsString>},
    {"test", "", 0, Exists<FindTest>},
    {"true", "", 0, Is<IsTrue>},
    {"undefined", "", 0, Is<IsUndefined>},
    {"upper", "", 0, HasCase<Case::kUpper>},
};

}  // namespace

const Builtin* FindTest(std::string_view name) {
  const auto* it = std::find_if(std::begin(kTests), std::end(kTests),
                                [name](const Builtin& test) { return test.name == name; });
  return it == std::end(kTests) ? nullptr : it;
}

}  // namespace signalbox::jinja
