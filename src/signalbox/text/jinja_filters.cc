// SPDX-License-Identifier: Apache-2.0
//
// Filters: `value | name(arguments)`. Filters that Jinja makes generators return lists here.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "signalbox/text/jinja_ops.h"

namespace signalbox::jinja {
namespace {

// --- Arguments -----------------------------------------------------------------------------------

bool IsAbsent(const Value& argument) {
  return argument.is_undefined() || argument.is_none();
}

Result<int64_t> IntOr(const Value& argument, int64_t fallback) {
  if (IsAbsent(argument)) return fallback;
  if (!argument.is_integral())
    return WrongKind("the argument is not a whole number", argument, "an int");
  return argument.integer();
}

// The value as text, charged as one copy.
Result<Text> AsText(Runtime& runtime, const Value& value) {
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(value.is_string() ? value.text().footprint() : 0));
  return ToText(runtime, value);
}

// `attribute` arguments: names or indices joined by dots; sort takes several, joined by commas.
std::vector<std::vector<Value>> ParsePaths(const Value& attribute) {
  if (attribute.is_integral()) return {{attribute}};
  std::vector<std::vector<Value>> paths(1);
  std::string part;
  const auto finish = [&paths, &part] {
    const bool digits =
        !part.empty() && part.size() < 10 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    paths.back().push_back(digits ? Value::Int(std::atoll(part.c_str()))
                                  : Value::String(part, /*trusted=*/true));
    part.clear();
  };
  for (const char c : attribute.str()) {
    if (c == '.' || c == ',') {
      finish();
      if (c == ',') paths.emplace_back();
    } else {
      part += c;
    }
  }
  finish();
  return paths;
}

Result<Value> Follow(Runtime& runtime, Value item, const std::vector<Value>& path) {
  for (const Value& step : path) {
    SB_ASSIGN_OR_RETURN(item, GetItem(runtime, item, step));
  }
  return item;
}

// The items of `value`, or the attribute of each.
Result<Value> ItemsOf(Runtime& runtime, const Value& value, const Value& attribute) {
  SB_ASSIGN_OR_RETURN(Value items, ToItems(runtime, value));
  if (IsAbsent(attribute)) return items;
  if (!attribute.is_string() && !attribute.is_integral()) {
    return WrongKind("an attribute name", attribute, "a str or an int");
  }
  const auto paths = ParsePaths(attribute);
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(items.items().size() * sizeof(Value)));
  Value::Items picked;
  for (const Value& item : items.items()) {
    Value::Items parts;
    for (const auto& path : paths) {
      SB_ASSIGN_OR_RETURN(Value part, Follow(runtime, item, path));
      parts.push_back(std::move(part));
    }
    picked.push_back(parts.size() == 1 ? std::move(parts[0]) : Value::List(std::move(parts)));
  }
  return Value::List(std::move(picked));
}

Value Lowered(const Value& key) {
  return key.is_string() ? Value::String(ChangeCase(key.text(), Case::kLower)) : key;
}

// What to compare the items by: strings compare without case unless asked otherwise.
Result<Value> KeysOf(Runtime& runtime, const Value& value, const Value& attribute,
                     bool case_sensitive) {
  SB_ASSIGN_OR_RETURN(Value keys, ItemsOf(runtime, value, attribute));
  if (case_sensitive) return keys;
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(keys.weight() * kCaseCost));
  Value::Items lowered;
  for (const Value& key : keys.items()) lowered.push_back(Lowered(key));
  return Value::List(std::move(lowered));
}

// Positions of `keys` in stable ascending or descending order: a bottom-up merge sort, because a
// comparison may fail.
Result<std::vector<size_t>> SortedPositions(Runtime& runtime, const Value::Items& keys,
                                            bool descending) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::vector<size_t> merged(order.size());
  for (size_t width = 1; width < order.size(); width *= 2) {
    for (size_t begin = 0; begin < order.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, order.size());
      const size_t end = std::min(begin + 2 * width, order.size());
      size_t left = begin;
      size_t right = middle;
      for (size_t out = begin; out < end; ++out) {
        bool take_right = left == middle;
        if (!take_right && right < end) {
          SB_ASSIGN_OR_RETURN(const int sign,
                              Order(runtime, keys[order[right]], keys[order[left]]));
          take_right = descending ? sign > 0 : sign < 0;
        }
        merged[out] = order[take_right ? right++ : left++];
      }
    }
    order.swap(merged);
  }
  return order;
}

// --- Text ----------------------------------------------------------------------------------------

template <Case how>
Result<Value> CaseFilter(Runtime& runtime, const Value& self, const Arguments&) {
  SB_ASSIGN_OR_RETURN(const Text text, AsText(runtime, self));
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(text.size() * kCaseCost));
  return Value::String(ChangeCase(text, how));
}

Result<Value> Trim(Runtime& runtime, const Value& self, const Arguments& args) {
  SB_ASSIGN_OR_RETURN(const Text text, AsText(runtime, self));
  std::string_view chars;
  if (!IsAbsent(args[0])) {
    if (!args[0].is_string()) return WrongKind("trim's characters", args[0], "a str");
    chars = args[0].str();
    SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(text.size() / 8 * chars.size()));
  }
  const ByteRange kept = StripRange(text.bytes(), IsAbsent(args[0]) ? nullptr : &chars, true, true);
  return Value::String(text.Slice(kept.begin, kept.end));
}

Result<Value> ReplaceFilter(Runtime& runtime, const Value& self, const Arguments& args) {
  SB_ASSIGN_OR_RETURN(const Text text, AsText(runtime, self));
  SB_ASSIGN_OR_RETURN(const Text from, AsText(runtime, args[0]));
  SB_ASSIGN_OR_RETURN(const Text to, AsText(runtime, args[1]));
  SB_ASSIGN_OR_RETURN(const int64_t count, IntOr(args[2], -1));
  const size_t hits = CountOccurrences(text.bytes(), from.bytes());
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(text.footprint()));
  SB_RETURN_IF_ERROR(runtime.budget.Spend(hits));
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(hits * to.footprint()));
  return Value::String(Replace(text, from.bytes(), to, count));
}

Result<Value> Join(Runtime& runtime, const Value& self, const Arguments& args) {
  SB_ASSIGN_OR_RETURN(const Value items, ItemsOf(runtime, self, args[1]));
  SB_ASSIGN_OR_RETURN(const Text separator, AsText(runtime, args[0]));
  Text out;
  for (size_t i = 0; i < items.items().size(); ++i) {
    SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(separator.footprint()));
    if (i > 0) out.Append(separator);
    SB_ASSIGN_OR_RETURN(const Text item, AsText(runtime, items.items()[i]));
    out.Append(item);
  }
  return Value::String(std::move(out));
}

Result<Value> Indent(Runtime& runtime, const Value& self, const Arguments& args) {
  if (!self.is_string()) return WrongKind("indent", self, "a str");
  const Text& text = self.text();
  Text indent;
  if (args[0].is_string()) {
    indent = args[0].text();
  } else {
    SB_ASSIGN_OR_RETURN(const int64_t width, IntOr(args[0], 4));
    SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(static_cast<size_t>(std::max<int64_t>(width, 0))));
    indent.Append(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '), false);
  }
  const bool first = IsTruthy(args[1]);
  const bool blank = IsTruthy(args[2]);
  std::vector<ByteRange> lines = SplitLines(text.bytes(), /*keep_ends=*/false);
  // Jinja appends a newline before it splits, so a trailing newline opens one more, empty line.
  // A carriage return at the end joins that newline instead.
  const bool ends_line =
      lines.empty() || (lines.back().end < text.size() && text.bytes().back() != '\r');
  if (ends_line) lines.push_back({text.size(), text.size()});
  SB_RETURN_IF_ERROR(runtime.budget.Spend(lines.size()));
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(lines.size() * indent.footprint()));
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    const bool empty = lines[i].begin == lines[i].end;
    if (i > 0) out.Append("\n", /*trusted=*/false);
    if (i == 0 ? first : (blank || !empty)) out.Append(indent);
    out.Append(text, lines[i].begin, lines[i].end);
  }
  return Value::String(std::move(out));
}

Result<Value> StringFilter(Runtime& runtime, const Value& self, const Arguments&) {
  SB_ASSIGN_OR_RETURN(Text text, AsText(runtime, self));
  return Value::String(std::move(text));
}

Result<Value> Safe(Runtime&, const Value& self, const Arguments&) {
  return self;
}

Result<Value> ToJsonFilter(Runtime& runtime, const Value& self, const Arguments& args) {
  JsonStyle style;
  style.ensure_ascii = IsTruthy(args[0]);
  style.sort_keys = IsTruthy(args[3]);
  if (!IsAbsent(args[1])) {
    style.multi_line = true;
    style.item_separator = ",";
    if (args[1].is_string()) {
      style.indent = args[1].str();
    } else {
      SB_ASSIGN_OR_RETURN(const int64_t width, IntOr(args[1], 0));
      const auto spaces = static_cast<size_t>(std::max<int64_t>(width, 0));
      SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(spaces));
      style.indent.assign(spaces, ' ');
    }
  }
  if (!IsAbsent(args[2])) {
    const bool pair = args[2].is_sequence() && args[2].items().size() == 2 &&
                      args[2].items()[0].is_string() && args[2].items()[1].is_string();
    if (!pair) return WrongKind("tojson's separators", args[2], "two strings");
    style.item_separator = args[2].items()[0].str();
    style.key_separator = args[2].items()[1].str();
  }
  SB_ASSIGN_OR_RETURN(const std::string json, ToJson(runtime, self, style));
  // Untrusted as a whole: its strings may come from the request.
  return Value::String(json, /*trusted=*/false);
}

// --- Numbers -------------------------------------------------------------------------------------

// A number as Python's int() and float() read it: surrounding space, a sign, single underscores
// between digits. Empty where the text cannot be a number.
std::string CleanNumber(std::string_view s) {
  const ByteRange kept = StripRange(s, nullptr, true, true);
  s = s.substr(kept.begin, kept.end - kept.begin);
  const bool negative = !s.empty() && s[0] == '-';
  if (!s.empty() && (s[0] == '-' || s[0] == '+')) s.remove_prefix(1);
  if (s.empty() || s[0] == '-' || s[0] == '+') return "";
  std::string digits(negative ? "-" : "");
  for (size_t i = 0; i < s.size(); ++i) {
    const auto alnum = [&s](size_t at) {
      return at < s.size() && std::isalnum(static_cast<unsigned char>(s[at])) != 0;
    };
    if (s[i] != '_') {
      digits += s[i];
    } else if (i == 0 || !alnum(i - 1) || !alnum(i + 1)) {
      return "";
    }
  }
  return digits;
}

bool ParseFloat(std::string_view s, double& out) {
  const std::string clean = CleanNumber(s);
  const auto [end, error] = std::from_chars(clean.data(), clean.data() + clean.size(), out);
  return !clean.empty() && error == std::errc() && end == clean.data() + clean.size();
}

bool ParseInt(std::string_view s, int64_t base, int64_t& out) {
  std::string clean = CleanNumber(s);
  const size_t sign = !clean.empty() && clean[0] == '-' ? 1 : 0;
  const std::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
  if (!prefix.empty() && clean.size() > sign + 1 && clean[sign] == '0' &&
      (clean[sign + 1] | 0x20) == prefix[1]) {
    clean.erase(sign, 2);
  }
  const auto [end, error] =
      std::from_chars(clean.data(), clean.data() + clean.size(), out, static_cast<int>(base));
  return !clean.empty() && error == std::errc() && end == clean.data() + clean.size();
}

bool FitsInt(double d) {
  return d > -9.2233720368547748e18 && d < 9.2233720368547748e18;
}

Result<Value> Int(Runtime&, const Value& self, const Arguments& args) {
  const Value fallback = args.given[0] ? args[0] : Value::Int(0);
  SB_ASSIGN_OR_RETURN(const int64_t base, IntOr(args[1], 10));
  if (base < 2 || base > 36) {
    return InvalidArgument(
        {.what = "int's base", .found = std::to_string(base), .expected = "2 to 36"});
  }
  if (self.is_undefined()) return InvalidArgument({.what = self.why()});
  if (self.is_integral()) return Value::Int(self.integer());
  double d = 0;
  if (self.is_string()) {
    int64_t i = 0;
    if (ParseInt(self.str(), base, i)) return Value::Int(i);
    if (!ParseFloat(self.str(), d)) return fallback;
  } else if (self.is_number()) {
    d = self.number();
  } else {
    return fallback;
  }
  return FitsInt(d) ? Value::Int(static_cast<int64_t>(d)) : fallback;
}

Result<Value> Float(Runtime&, const Value& self, const Arguments& args) {
  if (self.is_undefined()) return InvalidArgument({.what = self.why()});
  double d = 0;
  if (self.is_number()) return Value::Float(self.number());
  if (self.is_string() && ParseFloat(self.str(), d)) return Value::Float(d);
  return args.given[0] ? args[0] : Value::Float(0);
}

Result<Value> Abs(Runtime&, const Value& self, const Arguments&) {
  if (!self.is_number()) return WrongKind("abs", self, "an int or float");
  if (self.kind() == Value::Kind::kFloat) return Value::Float(std::fabs(self.number()));
  return self.integer() < 0 ? Negate(self) : Value::Int(self.integer());
}

Result<Value> Round(Runtime&, const Value& self, const Arguments& args) {
  if (!self.is_number()) return WrongKind("round", self, "an int or float");
  SB_ASSIGN_OR_RETURN(const int64_t precision, IntOr(args[0], 0));
  if (precision < 0 || precision > 300) {
    return InvalidArgument(
        {.what = "round's precision", .found = std::to_string(precision), .expected = "0 to 300"});
  }
  const std::string_view method = args[1].is_string() ? args[1].str() : "common";
  if (method == "common") {
    if (self.is_integral()) return Value::Int(self.integer());
    // Correct rounding of the exact binary value, as Python's round().
    const std::string text = fmt::format("{:.{}f}", self.number(), precision);
    return Value::Float(std::strtod(text.c_str(), nullptr));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Value::Float(std::ceil(self.number() * scale) / scale);
  if (method == "floor") return Value::Float(std::floor(self.number() * scale) / scale);
  return InvalidArgument({.what = "round's method", .expected = "common, ceil or floor"});
}

// --- Collections ---------------------------------------------------------------------------------

Result<Value> Default(Runtime&, const Value& self, const Arguments& args) {
  const bool replace = self.is_undefined() || (IsTruthy(args[1]) && !IsTruthy(self));
  if (!replace) return self;
  return args.given[0] ? args[0] : Value::String("", /*trusted=*/true);
}

Result<Value> LengthFilter(Runtime& runtime, const Value& self, const Arguments&) {
  SB_ASSIGN_OR_RETURN(const int64_t length, Length(runtime, self));
  return Value::Int(length);
}

Result<Value> First(Runtime& runtime, const Value& self, const Arguments&) {
  SB_ASSIGN_OR_RETURN(const Value items, ToItems(runtime, self));
  if (items.items().empty()) return Value::Undefined("no first item, the sequence was empty");
  return items.items().front();
}

Result<Value> Last(Runtime& runtime, const Value& self, const Arguments&) {
  SB_ASSIGN_OR_RETURN(const Value items, ToItems(runtime, self));
  if (items.items().empty()) return Value::Undefined("no last item, the sequence was empty");
  return items.items().back();
}

Result<Value> List(Runtime& runtime, const Value& self, const Arguments&) {
  SB_ASSIGN_OR_RETURN(const Value items, ToItems(runtime, self));
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(items.items().size() * sizeof(Value)));
  return Value::List(items.items());
}

Result<Value> ItemsFilter(Runtime& runtime, const Value& self, const Arguments&) {
  if (self.is_undefined()) return Value::List({});
  if (!self.is_dict()) return WrongKind("items needs pairs", self, "a dict");
  return CallBuiltin(runtime, *FindMethod(Value::Kind::kDict, "items"), self, {});
}

Result<Value> ReverseFilter(Runtime& runtime, const Value& self, const Arguments&) {
  if (self.is_string()) {
    SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(self.text().footprint()));
    return Value::String(Reverse(self.text()));
  }
  SB_ASSIGN_OR_RETURN(const Value items, ToItems(runtime, self));
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(items.items().size() * sizeof(Value)));
  return Value::List({items.items().rbegin(), items.items().rend()});
}

Result<Value> Sort(Runtime& runtime, const Value& self, const Arguments& args) {
  SB_ASSIGN_OR_RETURN(const Value items, ToItems(runtime, self));
  SB_ASSIGN_OR_RETURN(const Value found, ItemsOf(runtime, items, args[2]));
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(found.weight() * kCaseCost));
  // Jinja sorts by lists of attributes, also when there is one or none: equal keys then need no
  // order.
  const bool several = args[2].is_string() && args[2].str().find(',') != std::string_view::npos;
  Value::Items keys;
  for (const Value& key : found.items()) {
    Value::Items parts = several ? key.items() : Value::Items{key};
    for (Value& part : parts) part = IsTruthy(args[1]) ? part : Lowered(part);
    keys.push_back(Value::List(std::move(parts)));
  }
  SB_ASSIGN_OR_RETURN(const auto order, SortedPositions(runtime, keys, IsTruthy(args[0])));
  Value::Items sorted;
  for (const size_t position : order) sorted.push_back(items.items()[position]);
  return Value::List(std::move(sorted));
}

Result<Value> DictSort(Runtime& runtime, const Value& self, const Arguments& args) {
  if (!self.is_dict()) return WrongKind("dictsort", self, "a dict");
  SB_ASSIGN_OR_RETURN(const Value items, ItemsFilter(runtime, self, {}));
  const std::string_view by = args[1].is_string() ? args[1].str() : "key";
  if (by != "key" && by != "value") {
    return InvalidArgument({.what = "dictsort's by", .expected = "key or value"});
  }
  SB_ASSIGN_OR_RETURN(const Value keys,
                      KeysOf(runtime, items, Value::Int(by == "key" ? 0 : 1), IsTruthy(args[0])));
  SB_ASSIGN_OR_RETURN(const auto order, SortedPositions(runtime, keys.items(), IsTruthy(args[2])));
  Value::Items sorted;
  for (const size_t position : order) sorted.push_back(items.items()[position]);
  return Value::List(std::move(sorted));
}

Result<Value> Unique(Runtime& runtime, const Value& self, const Arguments& args) {
  SB_ASSIGN_OR_RETURN(const Value items, ToItems(runtime, self));
  SB_ASSIGN_OR_RETURN(const Value keys, KeysOf(runtime, items, args[1], IsTruthy(args[0])));
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(keys.weight() * 4));
  Dict seen;
  Value::Items kept;
  for (size_t i = 0; i < items.items().size(); ++i) {
    const Value& key = keys.items()[i];
    if (!Dict::IsHashable(key)) return WrongKind("unique", key, "strings or numbers");
    if (seen.Find(key) != nullptr) continue;
    seen.Set(key, Value::None());
    kept.push_back(items.items()[i]);
  }
  return Value::List(std::move(kept));
}

template <int sign>
Result<Value> Extreme(Runtime& runtime, const Value& self, const Arguments& args) {
  SB_ASSIGN_OR_RETURN(const Value items, ToItems(runtime, self));
  if (items.items().empty()) return Value::Undefined("no item to choose, the sequence was empty");
  SB_ASSIGN_OR_RETURN(const Value keys, KeysOf(runtime, items, args[1], IsTruthy(args[0])));
  size_t best = 0;
  for (size_t i = 1; i < items.items().size(); ++i) {
    SB_ASSIGN_OR_RETURN(const int order, Order(runtime, keys.items()[i], keys.items()[best]));
    if (order * sign > 0) best = i;
  }
  return items.items()[best];
}

Result<Value> Sum(Runtime& runtime, const Value& self, const Arguments& args) {
  SB_ASSIGN_OR_RETURN(const Value items, ItemsOf(runtime, self, args[0]));
  Value total = args.given[1] ? args[1] : Value::Int(0);
  for (const Value& item : items.items()) {
    if (total.is_string()) return WrongKind("sum", total, "numbers or lists; use join for text");
    SB_ASSIGN_OR_RETURN(total, Binary(runtime, BinaryOp::kAdd, total, item));
    SB_RETURN_IF_ERROR(runtime.budget.Spend(1));
  }
  return total;
}

// --- map, select, reject
// ---------------------------------------------------------------------------

// A filter or test named by the first argument at `position`, with the arguments after it.
Result<const Builtin*> NamedBuiltin(const Arguments& args, size_t position,
                                    const Builtin* (*find)(std::string_view)) {
  const Value& name = args.positional[position];
  if (!name.is_string()) return WrongKind("the name of a filter or test", name, "a str");
  const Builtin* builtin = find(name.str());
  if (builtin == nullptr) {
    return InvalidArgument({.what = "unknown filter or test '" + std::string(name.str()) + "'"});
  }
  return builtin;
}

Arguments Rest(const Arguments& args, size_t position) {
  Arguments rest;
  rest.positional.assign(args.positional.begin() + static_cast<ptrdiff_t>(position),
                         args.positional.end());
  rest.named = args.named;
  return rest;
}

Result<Value> MapAttribute(Runtime& runtime, const Value& items, const Arguments& args) {
  Value attribute;
  Value fallback;
  for (const auto& [name, value] : args.named) {
    if (name == "attribute") {
      attribute = value;
    } else if (name == "default") {
      fallback = value;
    } else {
      return InvalidArgument({.what = "map takes no argument '" + name + "'"});
    }
  }
  if (IsAbsent(attribute)) return WrongKind("map's attribute", Value::None(), "a name");
  SB_ASSIGN_OR_RETURN(Value picked, ItemsOf(runtime, items, attribute));
  if (IsAbsent(fallback)) return picked;
  Value::Items out = picked.items();
  for (Value& item : out) {
    if (item.is_undefined()) item = fallback;
  }
  return Value::List(std::move(out));
}

Result<Value> Map(Runtime& runtime, const Value& self, const Arguments& args) {
  if (!IsTruthy(self)) return Value::List({});  // none included
  SB_ASSIGN_OR_RETURN(const Value items, ToItems(runtime, self));
  if (args.positional.empty()) return MapAttribute(runtime, items, args);
  SB_ASSIGN_OR_RETURN(const Builtin* filter, NamedBuiltin(args, 0, FindFilter));
  if (filter->call == Map) return InvalidArgument({.what = "map cannot apply map"});
  Value::Items out;
  for (const Value& item : items.items()) {
    SB_RETURN_IF_ERROR(runtime.budget.Spend(args.positional.size()));
    SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(kStringCost));
    SB_ASSIGN_OR_RETURN(Value mapped, CallBuiltin(runtime, *filter, item, Rest(args, 1)));
    out.push_back(std::move(mapped));
  }
  return Value::List(std::move(out));
}

// keep: whether passing items stay. by_attribute: the first argument names what is tested.
template <bool keep, bool by_attribute>
Result<Value> Select(Runtime& runtime, const Value& self, const Arguments& args) {
  if (!IsTruthy(self)) return Value::List({});
  constexpr size_t kTest = by_attribute ? 1 : 0;  // position of the test's name
  if (args.positional.size() < kTest) {
    return InvalidArgument({.what = "selectattr and rejectattr need the name of an attribute"});
  }
  SB_ASSIGN_OR_RETURN(const Value items, ToItems(runtime, self));
  SB_ASSIGN_OR_RETURN(const Value subjects,
                      ItemsOf(runtime, items, by_attribute ? args.positional[0] : Value::None()));
  const Builtin* test = nullptr;
  if (args.positional.size() > kTest) {
    SB_ASSIGN_OR_RETURN(test, NamedBuiltin(args, kTest, FindTest));
  }
  Value::Items out;
  for (size_t i = 0; i < items.items().size(); ++i) {
    SB_RETURN_IF_ERROR(runtime.budget.Spend(args.positional.size() + 2));
    Value passed = subjects.items()[i];
    if (test != nullptr) {
      SB_ASSIGN_OR_RETURN(passed, CallBuiltin(runtime, *test, passed, Rest(args, kTest + 1)));
    }
    if (IsTruthy(passed) == keep) out.push_back(items.items()[i]);
  }
  return Value::List(std::move(out));
}

constexpr Builtin kFilters[] = {
    {"abs", "", 0, Abs},
    {"capitalize", "", 0, CaseFilter<Case::kCapitalize>},
    {"count", "", 0, LengthFilter},
    {"d", "default_value,boolean", 0, Default},
    {"default", "default_value,boolean", 0, Default},
    {"dictsort", "case_sensitive,by,reverse", 0, DictSort},
    {"first", "", 0, First},
    {"float", "default", 0, Float},
    {"indent", "width,first,blank", 0, Indent},
    {"int", "default,base", 0, Int},
    {"items", "", 0, ItemsFilter},
    {"join", "d,attribute", 0, Join},
    {"last", "", 0, Last},
    {"length", "", 0, LengthFilter},
    {"list", "", 0, List},
    {"lower", "", 0, CaseFilter<Case::kLower>},
    {"map", "*", 0, Map},
    {"max", "case_sensitive,attribute", 0, Extreme<1>},
    {"min", "case_sensitive,attribute", 0, Extreme<-1>},
    {"reject", "*", 0, Select<false, false>},
    {"rejectattr", "*", 0, Select<false, true>},
    {"replace", "old,new,count", 2, ReplaceFilter},
    {"reverse", "", 0, ReverseFilter},
    {"round", "precision,method", 0, Round},
    {"safe", "", 0, Safe},
    {"select", "*", 0, Select<true, false>},
    {"selectattr", "*", 0, Select<true, true>},
    {"sort", "reverse,case_sensitive,attribute", 0, Sort},
    {"string", "", 0, StringFilter},
    {"sum", "attribute,start", 0, Sum},
    {"title", "", 0, CaseFilter<Case::kJinjaTitle>},
    {"tojson", "ensure_ascii,indent,separators,sort_keys", 0, ToJsonFilter},
    {"trim", "chars", 0, Trim},
    {"unique", "case_sensitive,attribute", 0, Unique},
    {"upper", "", 0, CaseFilter<Case::kUpper>},
};

}  // namespace

const Builtin* FindFilter(std::string_view name) {
  const auto* it = std::find_if(std::begin(kFilters), std::end(kFilters),
                                [name](const Builtin& filter) { return filter.name == name; });
  return it == std::end(kFilters) ? nullptr : it;
}

}  // namespace signalbox::jinja
