// SPDX-License-Identifier: Apache-2.0
//
// What a running template shares with the functions it calls: the work budget, the objects that
// only a template can make, and the tables of built-in filters, tests, methods and functions.
//
// A built-in is a row of a table. Its arguments arrive bound: one value per declared parameter, in
// order, undefined where the caller gave none (Arguments::given tells the two apart).
//
//   const Builtin* trim = FindFilter("trim");
//   SB_ASSIGN_OR_RETURN(Value v, CallBuiltin(runtime, *trim, subject, {}));
#pragma once

#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/text/jinja_value.h"

namespace signalbox::jinja {

// Bounds time and memory together: a step is one evaluated node or 16 bytes produced or visited.
class Budget {
 public:
  explicit Budget(size_t steps) : left_(steps) {}
  Status Spend(size_t steps);
  Status SpendBytes(size_t bytes) { return Spend(bytes / 16 + 1); }

 private:
  size_t left_;
};

// Heap bytes behind one short string, for charging lists of them.
inline constexpr size_t kStringCost = 160;
// Times that changing the case of a byte is dearer than copying it.
inline constexpr size_t kCaseCost = 4;

struct Scope {
  std::vector<std::pair<std::string, Value>> names;
  std::shared_ptr<Scope> parent;  // null for the template's own scope

  const Value* Find(std::string_view name) const;  // here or in a parent
  void Set(std::string_view name, Value value);    // here
};

struct Builtin;
struct MacroStmt;

struct Namespace {
  std::map<std::string, Value, std::less<>> attributes;
};
struct Macro {
  const MacroStmt* definition;
  std::shared_ptr<Scope> scope;  // where it was defined
};
struct Method {  // a built-in function, or a method with the value it belongs to
  Value self;
  const Builtin* builtin;
};
struct Loop {  // the state of one iteration, as the template sees it
  Value items;
  size_t index;
};
struct Object {
  std::variant<Namespace, Macro, Method, Loop> state;
  int depth = 0;  // of what a method or loop holds: the interpreter takes the others apart itself
};
Value MakeMethod(const Value& self, const Builtin& builtin);
Value MakeLoop(const Value& items, size_t index);

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  std::vector<bool> given;  // per declared parameter, once bound

  const Value& operator[](size_t parameter) const { return positional[parameter]; }
};

struct Runtime {
  Budget budget;
  std::optional<std::tm> now;  // for strftime_now; the local time where unset
  // Objects that may close a reference cycle; the interpreter empties them when it is done.
  std::vector<std::shared_ptr<Object>> namespaces;
};

struct Builtin {
  std::string_view name;
  std::string_view params;  // comma separated; "*": the arguments arrive as the caller gave them
  int required;             // how many of `params` must be given
  Result<Value> (*call)(Runtime& runtime, const Value& self, const Arguments& args);
};

Result<Value> CallBuiltin(Runtime& runtime, const Builtin& builtin, const Value& self,
                          Arguments args);

// Each returns null where the name is unknown.
const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);
const Builtin* FindFunction(std::string_view name);
const Builtin* FindMethod(Value::Kind kind, std::string_view name);

// --- Errors ------------------------------------------------------------------------------------
// kInvalidArgument about a value of the wrong kind: the reason itself where it is undefined.
Status WrongKind(std::string_view what, const Value& value, std::string_view expected);
// The kind as Python names it: "str", "NoneType", "list".
std::string_view KindName(const Value& value);

}  // namespace signalbox::jinja
