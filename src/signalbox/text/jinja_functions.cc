// SPDX-License-Identifier: Apache-2.0
//
// Methods of strings, lists, dicts and loops, and the functions every template can call.
#include <algorithm>
#include <ctime>
#include <span>

#include "signalbox/text/jinja_ops.h"

namespace signalbox::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // items; Jinja's sandbox has the same limit

// --- Strings -------------------------------------------------------------------------------------

Result<std::string_view> StringArgument(const Value& argument) {
  if (!argument.is_string()) return WrongKind("the argument of a method", argument, "a str");
  return argument.str();
}

Result<int64_t> CountArgument(const Arguments& args, size_t position) {
  const Value& argument = args[position];
  if (!args.given[position]) return int64_t{-1};
  if (!argument.is_integral()) return WrongKind("the argument of a method", argument, "an int");
  return argument.integer();
}

template <Case how>
Result<Value> ChangeCaseMethod(Runtime& runtime, const Value& self, const Arguments&) {
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(self.text().footprint() * kCaseCost));
  return Value::String(ChangeCase(self.text(), how));
}

template <bool left, bool right>
Result<Value> Strip(Runtime& runtime, const Value& self, const Arguments& args) {
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(self.text().footprint()));
  const bool whitespace = !args.given[0] || args[0].is_none();
  std::string_view chars;
  if (!whitespace) {
    SB_ASSIGN_OR_RETURN(chars, StringArgument(args[0]));
    SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(self.str().size() / 8 * chars.size()));
  }
  const ByteRange kept = StripRange(self.str(), whitespace ? nullptr : &chars, left, right);
  return Value::String(self.text().Slice(kept.begin, kept.end));
}

// at_start: startswith; else endswith. A tuple asks for any of its strings.
template <bool at_start>
Result<Value> HasAffix(Runtime& runtime, const Value& self, const Arguments& args) {
  const auto matches = [&self](std::string_view affix) {
    return at_start ? self.str().substr(0, affix.size()) == affix
                    : self.str().size() >= affix.size() &&
                          self.str().substr(self.str().size() - affix.size()) == affix;
  };
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(args[0].weight()));
  if (args[0].kind() != Value::Kind::kTuple) {
    SB_ASSIGN_OR_RETURN(const std::string_view affix, StringArgument(args[0]));
    return Value::Bool(matches(affix));
  }
  for (const Value& item : args[0].items()) {
    SB_ASSIGN_OR_RETURN(const std::string_view affix, StringArgument(item));
    if (matches(affix)) return Value::Bool(true);
  }
  return Value::Bool(false);
}

Result<Value> FindMethodOfString(Runtime& runtime, const Value& self, const Arguments& args) {
  SB_ASSIGN_OR_RETURN(const std::string_view needle, StringArgument(args[0]));
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(self.str().size() + needle.size()));
  const size_t at = Find(self.str(), needle);
  if (at == std::string_view::npos) return Value::Int(-1);
  return Value::Int(static_cast<int64_t>(CountCodePoints(self.str().substr(0, at))));
}

Result<Value> CountInString(Runtime& runtime, const Value& self, const Arguments& args) {
  SB_ASSIGN_OR_RETURN(const std::string_view needle, StringArgument(args[0]));
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(self.str().size() + needle.size()));
  return Value::Int(static_cast<int64_t>(CountOccurrences(self.str(), needle)));
}

Result<Value> ReplaceMethod(Runtime& runtime, const Value& self, const Arguments& args) {
  SB_RETURN_IF_ERROR(StringArgument(args[0]).status());
  SB_RETURN_IF_ERROR(StringArgument(args[1]).status());
  return CallBuiltin(runtime, *FindFilter("replace"), self, {.positional = args.positional});
}

Result<Value> JoinMethod(Runtime& runtime, const Value& self, const Arguments& args) {
  SB_ASSIGN_OR_RETURN(const Value items, ToItems(runtime, args[0]));
  for (const Value& item : items.items()) SB_RETURN_IF_ERROR(StringArgument(item).status());
  return CallBuiltin(runtime, *FindFilter("join"), items, {.positional = {self}});
}

// Pieces between runs of whitespace, or between separators; at most `limit` cuts unless negative.
std::vector<ByteRange> SplitWhitespace(std::string_view s, int64_t limit) {
  std::vector<ByteRange> pieces;
  for (size_t pos = 0;;) {
    pos += StripRange(s.substr(pos), nullptr, true, false).begin;
    if (pos == s.size()) return pieces;
    if (limit >= 0 && static_cast<int64_t>(pieces.size()) == limit) {
      pieces.push_back({pos, s.size()});
      return pieces;
    }
    const size_t begin = pos;
    size_t end = pos;
    while (pos < s.size() && !IsSpace(NextCodePoint(s, pos))) end = pos;
    pieces.push_back({begin, end});
    pos = end;
  }
}

std::vector<ByteRange> SplitBySeparator(std::string_view s, std::string_view separator,
                                        int64_t limit) {
  std::vector<ByteRange> pieces;
  size_t begin = 0;
  while (limit < 0 || static_cast<int64_t>(pieces.size()) < limit) {
    const size_t hit = Find(s, separator, begin);
    if (hit == std::string_view::npos) break;
    pieces.push_back({begin, hit});
    begin = hit + separator.size();
  }
  pieces.push_back({begin, s.size()});
  return pieces;
}

// The same, cutting from the right. A null separator means whitespace and needs limit >= 0.
std::vector<ByteRange> SplitFromRight(std::string_view s, const std::string_view* separator,
                                      int64_t limit) {
  std::vector<ByteRange> pieces;
  if (separator != nullptr) {
    // Splitting the mirrored bytes is exact: a separator is matched as a whole.
    const std::string mirrored(s.rbegin(), s.rend());
    const std::string mirrored_separator(separator->rbegin(), separator->rend());
    pieces = SplitBySeparator(mirrored, mirrored_separator, limit);
    for (ByteRange& piece : pieces) piece = {s.size() - piece.end, s.size() - piece.begin};
  } else {
    pieces = SplitWhitespace(s, -1);
    std::reverse(pieces.begin(), pieces.end());
    const auto cuts = static_cast<size_t>(limit);
    if (pieces.size() > cuts) {
      pieces[cuts].begin = 0;  // the rest, with its leading whitespace
      pieces.resize(cuts + 1);
    }
  }
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

Result<Value> Pieces(Runtime& runtime, const Value& self, const std::vector<ByteRange>& pieces) {
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(pieces.size() * kStringCost));
  Value::Items out;
  for (const ByteRange& piece : pieces) {
    out.push_back(Value::String(self.text().Slice(piece.begin, piece.end)));
  }
  return Value::List(std::move(out));
}

template <bool from_right>
Result<Value> Split(Runtime& runtime, const Value& self, const Arguments& args) {
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(self.text().footprint() * 2));
  SB_ASSIGN_OR_RETURN(const int64_t limit, CountArgument(args, 1));
  if (!args.given[0] || args[0].is_none()) {
    return Pieces(runtime, self,
                  from_right && limit >= 0 ? SplitFromRight(self.str(), nullptr, limit)
                                           : SplitWhitespace(self.str(), limit));
  }
  SB_ASSIGN_OR_RETURN(const std::string_view separator, StringArgument(args[0]));
  if (separator.empty()) return InvalidArgument({.what = "split by an empty separator"});
  return Pieces(runtime, self,
                from_right ? SplitFromRight(self.str(), &separator, limit)
                           : SplitBySeparator(self.str(), separator, limit));
}

Result<Value> SplitLinesMethod(Runtime& runtime, const Value& self, const Arguments& args) {
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(self.text().footprint()));
  return Pieces(runtime, self, SplitLines(self.str(), IsTruthy(args[0])));
}

// --- Lists, dicts, loops -------------------------------------------------------------------------

Result<Value> CountInList(Runtime& runtime, const Value& self, const Arguments& args) {
  int64_t count = 0;
  for (const Value& item : self.items()) {
    SB_ASSIGN_OR_RETURN(const bool equal, Compare(runtime, CompareOp::kEq, item, args[0]));
    count += equal ? 1 : 0;
  }
  return Value::Int(count);
}

Result<Value> IndexInList(Runtime& runtime, const Value& self, const Arguments& args) {
  for (size_t i = 0; i < self.items().size(); ++i) {
    SB_ASSIGN_OR_RETURN(const bool equal,
                        Compare(runtime, CompareOp::kEq, self.items()[i], args[0]));
    if (equal) return Value::Int(static_cast<int64_t>(i));
  }
  return InvalidArgument({.what = "index: the list has no such item"});
}

Result<Value> Get(Runtime& runtime, const Value& self, const Arguments& args) {
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(args[0].weight()));
  SB_ASSIGN_OR_RETURN(const Value* item, FindKey(self.dict(), args[0]));
  if (item != nullptr) return *item;
  return args.given[1] ? args[1] : Value::None();
}

Result<Value> Items(Runtime& runtime, const Value& self, const Arguments&) {
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(self.dict().size() * kStringCost));
  Value::Items pairs;
  for (const auto& [key, value] : self.dict().entries()) {
    pairs.push_back(Value::Tuple({key, value}));
  }
  return Value::List(std::move(pairs));
}

Result<Value> Keys(Runtime& runtime, const Value& self, const Arguments&) {
  return ToItems(runtime, self);
}

Result<Value> Values(Runtime& runtime, const Value& self, const Arguments&) {
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(self.dict().size() * sizeof(Value)));
  Value::Items values;
  for (const auto& [key, value] : self.dict().entries()) values.push_back(value);
  return Value::List(std::move(values));
}

Result<Value> Cycle(Runtime&, const Value& self, const Arguments& args) {
  if (args.positional.empty()) return InvalidArgument({.what = "cycle needs items to choose from"});
  return args.positional[std::get<Loop>(self.object().state).index % args.positional.size()];
}

// --- Functions -----------------------------------------------------------------------------------

Result<Value> Range(Runtime& runtime, const Value&, const Arguments& args) {
  for (size_t i = 0; i < 3; ++i) {
    if (args.given[i] && !args[i].is_integral()) return WrongKind("range", args[i], "an int");
  }
  const int64_t start = args.given[1] ? args[0].integer() : 0;
  const int64_t stop = args.given[1] ? args[1].integer() : args[0].integer();
  const int64_t step = args.given[2] ? args[2].integer() : 1;
  if (step == 0) return InvalidArgument({.what = "range: the step is zero"});
  Value::Items numbers;
  for (int64_t at = start; step > 0 ? at < stop : at > stop;) {
    if (static_cast<int64_t>(numbers.size()) == kMaxRange) {
      return InvalidArgument(
          {.what = "range: too many items", .expected = "at most " + std::to_string(kMaxRange)});
    }
    numbers.push_back(Value::Int(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(numbers.size() * sizeof(Value)));
  return Value::List(std::move(numbers));
}

// dict() and namespace(): another dict's entries, then the named arguments.
Result<Dict> Gather(Runtime& runtime, const Arguments& args) {
  Dict dict;
  if (args.positional.size() > 1) return InvalidArgument({.what = "more than one dict to copy"});
  for (const Value& source : args.positional) {
    if (!source.is_dict()) return WrongKind("only dicts can be copied", source, "a dict");
    SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(source.dict().size() * kStringCost));
    dict = source.dict();
  }
  for (const auto& [name, value] : args.named) dict.Set(name, value);
  return dict;
}

Result<Value> DictFunction(Runtime& runtime, const Value&, const Arguments& args) {
  SB_ASSIGN_OR_RETURN(Dict dict, Gather(runtime, args));
  return Value::FromDict(std::move(dict));
}

Result<Value> NamespaceFunction(Runtime& runtime, const Value&, const Arguments& args) {
  SB_ASSIGN_OR_RETURN(const Dict dict, Gather(runtime, args));
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes((dict.size() + 1) * kStringCost));
  Namespace space;
  for (const auto& [key, value] : dict.entries()) {
    if (key.is_string()) space.attributes[std::string(key.str())] = value;
  }
  auto object = std::make_shared<Object>(Object{.state = std::move(space)});
  runtime.namespaces.push_back(object);
  return Value::FromObject(std::move(object));
}

Result<Value> RaiseException(Runtime& runtime, const Value&, const Arguments& args) {
  SB_ASSIGN_OR_RETURN(const Text message, ToText(runtime, args[0]));
  return InvalidArgument({.what = std::string(message.bytes())});
}

// The C locale's strftime of the render time; the result is untrusted.
Result<Value> StrftimeNow(Runtime& runtime, const Value&, const Arguments& args) {
  SB_ASSIGN_OR_RETURN(const std::string_view format, StringArgument(args[0]));
  std::tm now{};
  if (runtime.now.has_value()) {
    now = *runtime.now;
  } else {
    const std::time_t seconds = std::time(nullptr);
    localtime_r(&seconds, &now);
  }
  char buffer[1024];
  const std::string pattern(format);
  const size_t written = std::strftime(buffer, sizeof(buffer), pattern.c_str(), &now);
  if (written == 0 && !pattern.empty()) {
    return InvalidArgument({.what = "strftime_now: the result is empty or too long"});
  }
  const std::string_view shown(buffer, written);
  if (!IsValidUtf8(shown)) return InvalidArgument({.what = "strftime_now: not UTF-8"});
  return Value::String(shown, /*trusted=*/false);
}

constexpr Builtin kStringMethods[] = {
    {"capitalize", "", 0, ChangeCaseMethod<Case::kCapitalize>},
    {"count", "sub", 1, CountInString},
    {"endswith", "suffix", 1, HasAffix<false>},
    {"find", "sub", 1, FindMethodOfString},
    {"join", "iterable", 1, JoinMethod},
    {"lower", "", 0, ChangeCaseMethod<Case::kLower>},
    {"lstrip", "chars", 0, Strip<true, false>},
    {"replace", "old,new,count", 2, ReplaceMethod},
    {"rsplit", "sep,maxsplit", 0, Split<true>},
    {"rstrip", "chars", 0, Strip<false, true>},
    {"split", "sep,maxsplit", 0, Split<false>},
    {"splitlines", "keepends", 0, SplitLinesMethod},
    {"startswith", "prefix", 1, HasAffix<true>},
    {"strip", "chars", 0, Strip<true, true>},
    {"title", "", 0, ChangeCaseMethod<Case::kTitle>},
    {"upper", "", 0, ChangeCaseMethod<Case::kUpper>},
};

constexpr Builtin kListMethods[] = {
    {"count", "value", 1, CountInList},
    {"index", "value", 1, IndexInList},
};

constexpr Builtin kDictMethods[] = {
    {"get", "key,default", 1, Get},
    {"items", "", 0, Items},
    {"keys", "", 0, Keys},
    {"values", "", 0, Values},
};

constexpr Builtin kLoopMethods[] = {
    {"cycle", "*", 0, Cycle},
};

constexpr Builtin kFunctions[] = {
    {"dict", "*", 0, DictFunction},
    {"namespace", "*", 0, NamespaceFunction},
    {"raise_exception", "message", 1, RaiseException},
    {"range", "start,stop,step", 1, Range},
    {"strftime_now", "format", 1, StrftimeNow},
};

const Builtin* FindIn(std::span<const Builtin> table, std::string_view name) {
  const auto it = std::find_if(table.begin(), table.end(),
                               [name](const Builtin& row) { return row.name == name; });
  return it == table.end() ? nullptr : &*it;
}

}  // namespace

const Builtin* FindMethod(Value::Kind kind, std::string_view name) {
  switch (kind) {
    case Value::Kind::kString:
      return FindIn(kStringMethods, name);
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      return FindIn(kListMethods, name);
    case Value::Kind::kDict:
      return FindIn(kDictMethods, name);
    case Value::Kind::kObject:
      return FindIn(kLoopMethods, name);
    default:
      return nullptr;
  }
}

const Builtin* FindFunction(std::string_view name) {
  return FindIn(kFunctions, name);
}

}  // namespace signalbox::jinja
