// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/jinja_runtime.h"

#include <algorithm>

namespace signalbox::jinja {
namespace {

// The names of a comma separated list, without allocation.
template <typename Visit>
void ForEachName(std::string_view list, Visit visit) {
  for (size_t index = 0; !list.empty(); ++index) {
    const size_t comma = std::min(list.find(','), list.size());
    visit(index, list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
}

}  // namespace

Value MakeMethod(const Value& self, const Builtin& builtin) {
  return Value::FromObject(
      std::make_shared<Object>(Object{Method{self, &builtin}, self.depth() + 1}));
}

Value MakeLoop(const Value& items, size_t index) {
  return Value::FromObject(std::make_shared<Object>(Object{Loop{items, index}, items.depth() + 1}));
}

Status Budget::Spend(size_t steps) {
  if (steps > left_) {
    left_ = 0;
    return InvalidArgument({.what = "the template does more work than its limit allows",
                            .remedy = "shorten the conversation or simplify the template"});
  }
  left_ -= steps;
  return OkStatus();
}

const Value* Scope::Find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [held, value] : scope->names) {
      if (held == name) return &value;
    }
  }
  return nullptr;
}

void Scope::Set(std::string_view name, Value value) {
  for (auto& [held, old] : names) {
    if (held == name) {
      old = std::move(value);
      return;
    }
  }
  names.emplace_back(name, std::move(value));
}

Result<Value> CallBuiltin(Runtime& runtime, const Builtin& builtin, const Value& self,
                          Arguments args) {
  if (builtin.params == "*") return builtin.call(runtime, self, args);
  size_t arity = 0;
  ForEachName(builtin.params, [&arity](size_t, std::string_view) { ++arity; });
  if (args.positional.size() > arity) {
    return InvalidArgument({.what = "too many arguments for " + std::string(builtin.name),
                            .found = std::to_string(args.positional.size()),
                            .expected = "at most " + std::to_string(arity)});
  }
  const size_t given = args.positional.size();
  args.given.assign(arity, false);
  std::fill_n(args.given.begin(), given, true);
  args.positional.resize(arity);
  for (auto& [name, value] : args.named) {
    size_t position = arity;
    ForEachName(builtin.params, [&, &name = name](size_t index, std::string_view param) {
      if (param == name) position = index;
    });
    if (position == arity || args.given[position]) {
      return InvalidArgument(
          {.what = std::string(builtin.name) + " takes no argument '" + name + "' here"});
    }
    args.positional[position] = std::move(value);
    args.given[position] = true;
  }
  for (size_t i = 0; i < static_cast<size_t>(builtin.required); ++i) {
    if (!args.given[i]) {
      return InvalidArgument({.what = "missing argument for " + std::string(builtin.name)});
    }
  }
  args.named.clear();
  return builtin.call(runtime, self, args);
}

std::string_view KindName(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      return "undefined";
    case Value::Kind::kNone:
      return "NoneType";
    case Value::Kind::kBool:
      return "bool";
    case Value::Kind::kInt:
      return "int";
    case Value::Kind::kFloat:
      return "float";
    case Value::Kind::kString:
      return "str";
    case Value::Kind::kList:
      return "list";
    case Value::Kind::kTuple:
      return "tuple";
    case Value::Kind::kDict:
      return "dict";
    case Value::Kind::kObject:
      break;
  }
  constexpr std::string_view kObjects[] = {"namespace", "macro", "function", "loop"};
  return kObjects[value.object().state.index()];
}

Status WrongKind(std::string_view what, const Value& value, std::string_view expected) {
  if (value.is_undefined()) return InvalidArgument({.what = value.why()});
  return InvalidArgument({.what = std::string(what),
                          .found = std::string(KindName(value)),
                          .expected = std::string(expected)});
}

}  // namespace signalbox::jinja
