// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/jinja_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace signalbox::jinja {
namespace {

constexpr std::string_view kBinaryNames[] = {"+", "-", "*", "/", "//", "%", "**"};
constexpr std::string_view kCompareNames[] = {"==", "!=", "<", "<=", ">", ">=", "in", "not in"};

// Wide enough to hold every int64 and double exactly on the machines that Signalbox runs on.
long double Exact(const Value& number) {
  return number.is_integral() ? static_cast<long double>(number.integer())
                              : static_cast<long double>(number.number());
}

bool IsNan(const Value& value) {
  return value.kind() == Value::Kind::kFloat && std::isnan(value.number());
}

int Sign(long double a, long double b) {
  return a < b ? -1 : (a > b ? 1 : 0);
}

Status OutOfRange(BinaryOp op) {
  return InvalidArgument({.what = "the result of " + std::string(ToString(op)) + " is out of range",
                          .expected = "a 64-bit integer or a finite float"});
}

Status DivisionByZero() {
  return InvalidArgument({.what = "division by zero"});
}

Result<Value> FloatOrError(BinaryOp op, double result, double a, double b) {
  if (!std::isfinite(result) && std::isfinite(a) && std::isfinite(b)) return OutOfRange(op);
  return Value::Float(result);
}

Result<Value> IntegerPower(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      return OutOfRange(BinaryOp::kPow);
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) {
      return OutOfRange(BinaryOp::kPow);
    }
  }
  return Value::Int(result);
}

Result<Value> IntegerBinary(BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case BinaryOp::kAdd:
      if (__builtin_add_overflow(a, b, &result)) return OutOfRange(op);
      return Value::Int(result);
    case BinaryOp::kSub:
      if (__builtin_sub_overflow(a, b, &result)) return OutOfRange(op);
      return Value::Int(result);
    case BinaryOp::kMul:
      if (__builtin_mul_overflow(a, b, &result)) return OutOfRange(op);
      return Value::Int(result);
    case BinaryOp::kFloorDiv:
    case BinaryOp::kMod: {
      if (b == 0) return DivisionByZero();
      if (b == -1)
        return op == BinaryOp::kMod ? Value::Int(0) : IntegerBinary(BinaryOp::kSub, 0, a);
      const bool round_down = a % b != 0 && (a < 0) != (b < 0);
      if (op == BinaryOp::kFloorDiv) return Value::Int(a / b - (round_down ? 1 : 0));
      return Value::Int(a % b + (round_down ? b : 0));
    }
    case BinaryOp::kPow:
      if (b >= 0) return IntegerPower(a, b);
      break;
    case BinaryOp::kDiv:
      break;
  }
  if (op == BinaryOp::kDiv && b == 0) return DivisionByZero();
  if (op == BinaryOp::kPow && a == 0) return DivisionByZero();
  const double x = static_cast<double>(a);
  const double y = static_cast<double>(b);
  return Value::Float(op == BinaryOp::kDiv ? x / y : std::pow(x, y));
}

struct Division {
  double quotient;
  double remainder;
};

// Python's float // and %: the remainder is exact and has the divisor's sign, also when it is zero.
Division FloorDivide(double a, double b) {
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder == 0) {
    remainder = std::copysign(0.0, b);
  } else if ((remainder < 0) != (b < 0)) {
    remainder += b;
    quotient -= 1;
  }
  if (quotient == 0) return {std::copysign(0.0, a / b), remainder};
  const double floor = std::floor(quotient);
  return {quotient - floor > 0.5 ? floor + 1 : floor, remainder};
}

Result<Value> FloatBinary(BinaryOp op, double a, double b) {
  const bool divides = op == BinaryOp::kDiv || op == BinaryOp::kFloorDiv || op == BinaryOp::kMod;
  if (divides && b == 0) return DivisionByZero();
  switch (op) {
    case BinaryOp::kAdd:
      return Value::Float(a + b);
    case BinaryOp::kSub:
      return Value::Float(a - b);
    case BinaryOp::kMul:
      return Value::Float(a * b);
    case BinaryOp::kDiv:
      return Value::Float(a / b);
    case BinaryOp::kFloorDiv:
      return Value::Float(FloorDivide(a, b).quotient);
    case BinaryOp::kMod:
      return Value::Float(FloorDivide(a, b).remainder);
    case BinaryOp::kPow:
      return FloatOrError(op, std::pow(a, b), a, b);
  }
  return OutOfRange(op);
}

Result<Value> Repeat(Runtime& runtime, const Value& value, int64_t count) {
  const size_t times = static_cast<size_t>(std::max<int64_t>(count, 0));
  size_t bytes = 0;
  const size_t each =
      value.is_string() ? value.text().footprint() : value.items().size() * sizeof(Value);
  if (__builtin_mul_overflow(times, each, &bytes)) return OutOfRange(BinaryOp::kMul);
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(bytes));
  if (value.is_string()) {
    Text out;
    for (size_t i = 0; each > 0 && i < times; ++i) out.Append(value.text());
    return Value::String(std::move(out));
  }
  Value::Items out;
  for (size_t i = 0; each > 0 && i < times; ++i) {
    out.insert(out.end(), value.items().begin(), value.items().end());
  }
  return value.kind() == Value::Kind::kList ? Value::List(std::move(out))
                                            : Value::Tuple(std::move(out));
}

Result<Value> Concatenate(Runtime& runtime, const Value& a, const Value& b) {
  if (a.is_string()) {
    SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(a.text().footprint() + b.text().footprint()));
    Text out = a.text();
    out.Append(b.text());
    return Value::String(std::move(out));
  }
  SB_RETURN_IF_ERROR(
      runtime.budget.SpendBytes((a.items().size() + b.items().size()) * sizeof(Value)));
  Value::Items out = a.items();
  out.insert(out.end(), b.items().begin(), b.items().end());
  return a.kind() == Value::Kind::kList ? Value::List(std::move(out))
                                        : Value::Tuple(std::move(out));
}

Result<bool> Contains(Runtime& runtime, const Value& needle, const Value& haystack) {
  if (haystack.is_undefined()) return false;
  if (haystack.is_string()) {
    if (!needle.is_string()) return WrongKind("'in' of a string", needle, "a str");
    SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(haystack.str().size() + needle.str().size()));
    return Find(haystack.str(), needle.str()) != std::string_view::npos;
  }
  if (haystack.is_dict()) {
    SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(needle.weight()));
    SB_ASSIGN_OR_RETURN(const Value* item, FindKey(haystack.dict(), needle));
    return item != nullptr;
  }
  if (!haystack.is_sequence()) {
    return WrongKind("'in' needs something to look in", haystack, "a str, list or dict");
  }
  for (const Value& item : haystack.items()) {
    SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(std::min(item.weight(), needle.weight())));
    if (Equals(item, needle)) return true;
  }
  return false;
}

Value LoopAttribute(const Value& self, const Loop& loop, std::string_view name) {
  const auto& items = loop.items.items();
  const auto index = static_cast<int64_t>(loop.index);
  const auto length = static_cast<int64_t>(items.size());
  if (name == "index") return Value::Int(index + 1);
  if (name == "index0") return Value::Int(index);
  if (name == "revindex") return Value::Int(length - index);
  if (name == "revindex0") return Value::Int(length - index - 1);
  if (name == "first") return Value::Bool(index == 0);
  if (name == "last") return Value::Bool(index + 1 == length);
  if (name == "length") return Value::Int(length);
  if (name == "depth") return Value::Int(1);  // of recursive loops, which are not supported
  if (name == "depth0") return Value::Int(0);
  if (name == "previtem") {
    return index > 0 ? items[loop.index - 1] : Value::Undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < length ? items[loop.index + 1] : Value::Undefined("there is no next item");
  }
  if (const Builtin* method = FindMethod(Value::Kind::kObject, name)) {
    return MakeMethod(self, *method);
  }
  return Value::Undefined("the loop has no attribute '" + std::string(name) + "'");
}

Value ObjectAttribute(const Value& value, std::string_view name) {
  const auto& state = value.object().state;
  if (const auto* loop = std::get_if<Loop>(&state)) return LoopAttribute(value, *loop, name);
  if (const auto* space = std::get_if<Namespace>(&state)) {
    const auto it = space->attributes.find(name);
    if (it != space->attributes.end()) return it->second;
  }
  return Value::Undefined("the " + std::string(KindName(value)) + " has no attribute '" +
                          std::string(name) + "'");
}

// Names that would change a value, or reach into one. As attributes they are never looked up as
// keys, so that a template cannot mean different things for different requests.
bool IsForbidden(const Value& value, std::string_view name) {
  constexpr std::string_view kDict[] = {"clear",   "copy",       "fromkeys", "pop",
                                        "popitem", "setdefault", "update"};
  constexpr std::string_view kList[] = {"append", "clear", "copy",    "extend", "insert",
                                        "remove", "pop",   "reverse", "sort"};
  if (name.substr(0, 2) == "__") return true;
  if (value.is_dict())
    return std::find(std::begin(kDict), std::end(kDict), name) != std::end(kDict);
  return value.is_sequence() &&
         std::find(std::begin(kList), std::end(kList), name) != std::end(kList);
}

Value MissingAttribute(const Value& value, std::string_view name) {
  return Value::Undefined("the " + std::string(KindName(value)) + " has no attribute '" +
                          std::string(name) + "'");
}

// Resolves a slice bound as Python does; `length` code points or items.
int64_t ResolveBound(const Value& bound, int64_t absent, int64_t length, bool reversed) {
  if (bound.is_none()) return absent;
  const int64_t low = reversed ? -1 : 0;
  const int64_t high = reversed ? length - 1 : length;
  int64_t at = bound.integer();
  if (at < 0) at = at < -length ? low : at + length;
  return std::clamp(at, low, high);
}

}  // namespace

std::string_view ToString(BinaryOp op) {
  return kBinaryNames[static_cast<int>(op)];
}
std::string_view ToString(CompareOp op) {
  return kCompareNames[static_cast<int>(op)];
}

Result<const Value*> FindKey(const Dict& dict, const Value& key) {
  if (Dict::IsHashable(key)) return dict.Find(key);
  // Hashable in Python, but never keys here.
  if (key.is_undefined() || key.kind() == Value::Kind::kTuple) return nullptr;
  return WrongKind("a dict key", key, "a str or a number");
}

bool IsTruthy(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kUndefined:
    case Value::Kind::kNone:
      return false;
    case Value::Kind::kBool:
    case Value::Kind::kInt:
      return value.integer() != 0;
    case Value::Kind::kFloat:
      return value.number() != 0;
    case Value::Kind::kString:
      return !value.text().empty();
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      return !value.items().empty();
    case Value::Kind::kDict:
      return value.dict().size() > 0;
    case Value::Kind::kObject:
      return true;
  }
  return false;
}

bool Equals(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return !IsNan(a) && !IsNan(b) && Exact(a) == Exact(b);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::kString:
      return a.str() == b.str();
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                        Equals);
    case Value::Kind::kDict:
      return a.dict().size() == b.dict().size() &&
             std::all_of(a.dict().entries().begin(), a.dict().entries().end(),
                         [&b](const Dict::Entry& entry) {
                           const Value* other = b.dict().Find(entry.first);
                           return other != nullptr && Equals(entry.second, *other);
                         });
    case Value::Kind::kObject:
      return a.object_ptr() == b.object_ptr();
    default:
      return true;  // both undefined, or both none
  }
}

Result<int> Order(Runtime& runtime, const Value& a, const Value& b) {
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(std::min(a.weight(), b.weight())));
  if (a.is_number() && b.is_number()) {
    // NaN after everything else, so that sorting has a total order.
    if (IsNan(a) || IsNan(b)) return static_cast<int>(IsNan(a)) - static_cast<int>(IsNan(b));
    return Sign(Exact(a), Exact(b));
  }
  if (a.is_string() && b.is_string()) return a.str().compare(b.str());  // code point order
  if (!a.is_sequence() || a.kind() != b.kind()) {
    const Value& culprit = a.is_undefined() || !b.is_undefined() ? a : b;
    return WrongKind("these values have no order", culprit,
                     "two of one kind, next to " + std::string(KindName(&culprit == &a ? b : a)));
  }
  const auto& x = a.items();
  const auto& y = b.items();
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (Equals(x[i], y[i])) continue;
    return Order(runtime, x[i], y[i]);
  }
  return Sign(static_cast<long double>(x.size()), static_cast<long double>(y.size()));
}

Result<Value> Binary(Runtime& runtime, BinaryOp op, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return IntegerBinary(op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return FloatBinary(op, a.number(), b.number());
  const auto repeatable = [](const Value& v) { return v.is_string() || v.is_sequence(); };
  if (op == BinaryOp::kAdd && a.kind() == b.kind() && repeatable(a)) {
    return Concatenate(runtime, a, b);
  }
  if (op == BinaryOp::kMul && repeatable(a) && b.is_integral()) {
    return Repeat(runtime, a, b.integer());
  }
  if (op == BinaryOp::kMul && repeatable(b) && a.is_integral()) {
    return Repeat(runtime, b, a.integer());
  }
  for (const Value* operand : {&a, &b}) {
    if (operand->is_undefined()) return InvalidArgument({.what = operand->why()});
  }
  return InvalidArgument({.what = "unsupported operands of " + std::string(ToString(op)),
                          .found = std::string(KindName(a)) + " and " + std::string(KindName(b))});
}

Result<Value> Negate(const Value& value) {
  if (value.is_integral()) return IntegerBinary(BinaryOp::kSub, 0, value.integer());
  if (value.is_number()) return Value::Float(-value.number());
  return WrongKind("a sign needs a number", value, "an int or float");
}

Result<bool> Compare(Runtime& runtime, CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::kEq:
    case CompareOp::kNe:
      SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(std::min(a.weight(), b.weight())));
      return Equals(a, b) == (op == CompareOp::kEq);
    case CompareOp::kIn:
      return Contains(runtime, a, b);
    case CompareOp::kNotIn: {
      SB_ASSIGN_OR_RETURN(const bool found, Contains(runtime, a, b));
      return !found;
    }
    default:
      break;
  }
  SB_ASSIGN_OR_RETURN(const int order, Order(runtime, a, b));
  if (IsNan(a) || IsNan(b)) return false;
  switch (op) {
    case CompareOp::kLt:
      return order < 0;
    case CompareOp::kLe:
      return order <= 0;
    case CompareOp::kGt:
      return order > 0;
    default:
      return order >= 0;
  }
}

Result<Value> ToItems(Runtime& runtime, const Value& value) {
  if (value.is_sequence()) return value;
  Value::Items items;
  if (value.is_string()) {
    SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(value.str().size() * kStringCost));
    for (size_t pos = 0; pos < value.str().size();) {
      const size_t begin = pos;
      NextCodePoint(value.str(), pos);
      items.push_back(Value::String(value.text().Slice(begin, pos)));
    }
  } else if (value.is_dict()) {
    SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(value.dict().size() * sizeof(Value)));
    for (const auto& [key, item] : value.dict().entries()) items.push_back(key);
  } else if (!value.is_undefined()) {
    return WrongKind("the value cannot be iterated over", value, "a list, dict or str");
  }
  return Value::List(std::move(items));
}

Result<int64_t> Length(Runtime& runtime, const Value& value) {
  if (value.is_sequence()) return static_cast<int64_t>(value.items().size());
  if (value.is_dict()) return static_cast<int64_t>(value.dict().size());
  if (value.is_undefined()) return int64_t{0};
  if (!value.is_string()) return WrongKind("the value has no length", value, "a list, dict or str");
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(value.str().size()));
  return static_cast<int64_t>(CountCodePoints(value.str()));
}

Result<Value> GetAttribute(Runtime& runtime, const Value& value, std::string_view name) {
  SB_RETURN_IF_ERROR(runtime.budget.Spend(1));
  if (value.is_undefined()) return InvalidArgument({.what = value.why()});
  if (value.is_object()) return ObjectAttribute(value, name);
  if (const Builtin* method = FindMethod(value.kind(), name)) {
    return MakeMethod(value, *method);
  }
  if (value.is_dict() && !IsForbidden(value, name)) {
    if (const Value* item = value.dict().Find(name)) return *item;
  }
  return MissingAttribute(value, name);
}

Result<Value> GetItem(Runtime& runtime, const Value& value, const Value& key) {
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(key.is_string() ? key.str().size() : 0));
  if (value.is_undefined()) return InvalidArgument({.what = value.why()});
  if (value.is_dict() && Dict::IsHashable(key)) {
    if (const Value* item = value.dict().Find(key)) return *item;
  }
  if (key.is_string()) return GetAttribute(runtime, value, key.str());
  if (key.is_integral() && (value.is_string() || value.is_sequence())) {
    SB_ASSIGN_OR_RETURN(const int64_t length, Length(runtime, value));
    int64_t at = key.integer();
    if (at < 0) at += length;
    if (at >= 0 && at < length) {
      const auto index = static_cast<size_t>(at);
      if (value.is_sequence()) return value.items()[index];
      const size_t begin = CodePointOffset(value.str(), index);
      size_t end = begin;
      NextCodePoint(value.str(), end);
      return Value::String(value.text().Slice(begin, end));
    }
  }
  SB_ASSIGN_OR_RETURN(const Text shown, ToText(runtime, key));
  return MissingAttribute(value, shown.bytes().substr(0, CodePointOffset(shown.bytes(), 40)));
}

Result<Value> GetSlice(Runtime& runtime, const Value& value, const Value& start, const Value& stop,
                       const Value& step) {
  if (!value.is_string() && !value.is_sequence()) {
    return WrongKind("the value cannot be sliced", value, "a list, tuple or str");
  }
  for (const Value* bound : {&start, &stop, &step}) {
    if (!bound->is_none() && !bound->is_integral()) {
      return WrongKind("a slice bound", *bound, "an int or none");
    }
  }
  const int64_t stride = step.is_none() ? 1 : step.integer();
  if (stride == 0) return InvalidArgument({.what = "a slice step is zero"});
  SB_ASSIGN_OR_RETURN(const int64_t length, Length(runtime, value));
  const bool reversed = stride < 0;
  const int64_t from = ResolveBound(start, reversed ? length - 1 : 0, length, reversed);
  const int64_t to = ResolveBound(stop, reversed ? -1 : length, length, reversed);
  if (value.is_string() && stride == 1) {
    const size_t begin = CodePointOffset(value.str(), static_cast<size_t>(from));
    const size_t end = CodePointOffset(value.str(), static_cast<size_t>(std::max(from, to)));
    return Value::String(value.text().Slice(begin, end));
  }
  SB_ASSIGN_OR_RETURN(const Value all, ToItems(runtime, value));
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(all.items().size() * sizeof(Value)));
  Value::Items picked;
  for (int64_t at = from; reversed ? at > to : at < to;) {
    picked.push_back(all.items()[static_cast<size_t>(at)]);
    if (__builtin_add_overflow(at, stride, &at)) break;
  }
  if (value.kind() == Value::Kind::kTuple) return Value::Tuple(std::move(picked));
  if (value.kind() == Value::Kind::kList) return Value::List(std::move(picked));
  Text out;
  for (const Value& point : picked) out.Append(point.text());
  return Value::String(std::move(out));
}

}  // namespace signalbox::jinja
