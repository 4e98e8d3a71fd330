// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/jinja_interpreter.h"

#include <algorithm>
#include <utility>

#include "signalbox/text/jinja_lexer.h"

namespace signalbox::jinja {
namespace {

// Expressions and bodies on the C++ stack at a time. Real templates that recurse over a JSON schema
// need about ten a level; each costs a few KiB of stack.
constexpr int kMaxDepth = 400;
// Of one value, shared parts counted each time: no walk of a value can take long.
constexpr size_t kMaxValueBytes = size_t{1} << 30;

Status TooDeep() {
  return InvalidArgument({.what = "the template recurses too deeply",
                          .expected = "at most " + std::to_string(kMaxDepth) + " nested steps"});
}

Status Located(const Status& status, int line) {
  return status.detail().where.empty() ? status.At(LineName(line)) : status;
}

Status CheckSize(const Value& value) {
  if (value.depth() > kMaxValueDepth) {
    return InvalidArgument({.what = "a value is nested too deeply",
                            .expected = "at most " + std::to_string(kMaxValueDepth) + " levels"});
  }
  if (value.weight() > kMaxValueBytes) {
    return InvalidArgument({.what = "a value is too large"});
  }
  return OkStatus();
}

std::shared_ptr<Scope> Inside(const std::shared_ptr<Scope>& parent) {
  return std::make_shared<Scope>(Scope{.names = {}, .parent = parent});
}

}  // namespace

Interpreter::Interpreter(const Dict& context, const RenderOptions& options)
    : context_(context),
      options_(options),
      runtime_{.budget = Budget(options.limits.steps), .now = options.now, .namespaces = {}} {}

Interpreter::~Interpreter() {
  for (const ScopePtr& scope : captured_) scope->names.clear();
  for (const auto& object : runtime_.namespaces)
    std::get<Namespace>(object->state).attributes.clear();
}

Result<Text> Interpreter::Run(const Body& body) {
  Text out;
  SB_RETURN_IF_ERROR(ExecBody(body, Inside(nullptr), out).status());
  return out;
}

template <typename Work>
auto Interpreter::Descend(int line, Work work) -> decltype(work()) {
  if (depth_ == kMaxDepth) return Located(TooDeep(), line);
  if (Status spent = runtime_.budget.Spend(1); !spent.ok()) return Located(spent, line);
  ++depth_;
  auto result = work();
  --depth_;
  if (!result.ok()) return Located(result.status(), line);
  return result;
}

// --- Statements ----------------------------------------------------------------------------------

Result<Interpreter::Flow> Interpreter::ExecBody(const Body& body, const ScopePtr& scope,
                                                Text& out) {
  for (const Stmt& stmt : body) {
    SB_ASSIGN_OR_RETURN(const Flow flow, Descend(stmt.line, [&] {
                          return std::visit(
                              [&](const auto& node) { return Exec(node, scope, out); }, stmt.node);
                        }));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Status Interpreter::Emit(const Text& text, Text& out) {
  SB_RETURN_IF_ERROR(runtime_.budget.SpendBytes(text.footprint()));
  if (text.size() > options_.limits.output_bytes - out.size()) {
    return InvalidArgument(
        {.what = "the template's output is too long",
         .expected = "at most " + std::to_string(options_.limits.output_bytes) + " bytes"});
  }
  out.Append(text);
  return OkStatus();
}

Result<Interpreter::Flow> Interpreter::Exec(const OutputStmt& stmt, const ScopePtr& scope,
                                            Text& out) {
  SB_ASSIGN_OR_RETURN(const Value value, Eval(*stmt.value, scope));
  if (value.is_string()) {
    SB_RETURN_IF_ERROR(Emit(value.text(), out));
  } else {
    SB_ASSIGN_OR_RETURN(const Text shown, ToText(runtime_, value));
    SB_RETURN_IF_ERROR(Emit(shown, out));
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::Exec(const IfStmt& stmt, const ScopePtr& scope, Text& out) {
  for (const auto& [condition, body] : stmt.branches) {
    SB_ASSIGN_OR_RETURN(const Value value, Eval(*condition, scope));
    if (IsTruthy(value)) return ExecBody(body, scope, out);
  }
  return ExecBody(stmt.otherwise, scope, out);
}

Result<bool> Interpreter::Passes(const ForStmt& stmt, const Value& item, const ScopePtr& scope) {
  if (stmt.condition == nullptr) return true;
  const ScopePtr inner = Inside(scope);
  SB_RETURN_IF_ERROR(Assign(stmt.target, item, *inner));
  SB_ASSIGN_OR_RETURN(const Value value, Eval(*stmt.condition, inner));
  return IsTruthy(value);
}

Result<Interpreter::Flow> Interpreter::Exec(const ForStmt& stmt, const ScopePtr& scope, Text& out) {
  SB_ASSIGN_OR_RETURN(const Value iterated, Eval(*stmt.items, scope));
  SB_ASSIGN_OR_RETURN(Value items, ToItems(runtime_, iterated));
  // `loop` counts the items that pass, so they are chosen before the first turn. Without `loop`
  // each is tested at its turn, and the condition sees what earlier turns did to a namespace.
  const bool choose_first = stmt.condition != nullptr && stmt.uses_loop;
  if (choose_first) {
    Value::Items chosen;
    for (const Value& item : items.items()) {
      SB_ASSIGN_OR_RETURN(const bool passes, Passes(stmt, item, scope));
      if (passes) chosen.push_back(item);
    }
    items = Value::List(std::move(chosen));
  }
  bool completed = false;  // a turn that ends in break or continue does not count, as in Jinja
  for (size_t i = 0; i < items.items().size(); ++i) {
    SB_RETURN_IF_ERROR(runtime_.budget.Spend(1));
    const Value& item = items.items()[i];
    if (!choose_first) {
      SB_ASSIGN_OR_RETURN(const bool passes, Passes(stmt, item, scope));
      if (!passes) continue;
    }
    const ScopePtr inner = Inside(scope);
    SB_RETURN_IF_ERROR(Assign(stmt.target, item, *inner));
    if (stmt.uses_loop) inner->Set("loop", MakeLoop(items, i));
    SB_ASSIGN_OR_RETURN(const Flow flow, ExecBody(stmt.body, inner, out));
    if (flow == Flow::kBreak) break;
    completed = completed || flow == Flow::kNext;
  }
  if (completed) return Flow::kNext;
  return ExecBody(stmt.otherwise, Inside(scope), out);
}

Status Interpreter::Assign(const Target& target, const Value& value, Scope& scope) {
  if (target.is_tuple) {
    SB_ASSIGN_OR_RETURN(const Value items, ToItems(runtime_, value));
    if (items.items().size() != target.parts.size()) {
      return InvalidArgument({.what = "a value cannot be unpacked",
                              .found = std::to_string(items.items().size()) + " items",
                              .expected = std::to_string(target.parts.size())});
    }
    for (size_t i = 0; i < target.parts.size(); ++i) {
      SB_RETURN_IF_ERROR(Assign(target.parts[i], items.items()[i], scope));
    }
    return OkStatus();
  }
  if (target.attribute.empty()) {
    scope.Set(target.name, value);
    return OkStatus();
  }
  const Value* holder = scope.Find(target.name);
  Namespace* space = holder != nullptr && holder->is_object()
                         ? std::get_if<Namespace>(&holder->object().state)
                         : nullptr;
  if (space == nullptr) {
    return InvalidArgument(
        {.what = "cannot set an attribute of '" + target.name + "'", .expected = "a namespace"});
  }
  space->attributes[target.attribute] = value;
  return OkStatus();
}

Result<Interpreter::Flow> Interpreter::Exec(const SetStmt& stmt, const ScopePtr& scope, Text&) {
  SB_ASSIGN_OR_RETURN(const Value value, Eval(*stmt.value, scope));
  SB_RETURN_IF_ERROR(Assign(stmt.target, value, *scope));
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::Exec(const SetBlockStmt& stmt, const ScopePtr& scope,
                                            Text&) {
  const ScopePtr inner = Inside(scope);
  Text block;
  SB_ASSIGN_OR_RETURN(const Flow flow, ExecBody(stmt.body, inner, block));
  if (flow != Flow::kNext) return flow;
  Value value = Value::String(std::move(block));
  for (const FilterExpr& filter : stmt.filters) {
    SB_ASSIGN_OR_RETURN(Arguments args, EvalArgs(filter.args, inner));
    SB_ASSIGN_OR_RETURN(value, CallBuiltin(runtime_, *filter.filter, value, std::move(args)));
  }
  SB_RETURN_IF_ERROR(Assign(stmt.target, value, *scope));
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::Exec(const MacroStmt& stmt, const ScopePtr& scope, Text&) {
  SB_RETURN_IF_ERROR(runtime_.budget.SpendBytes(kStringCost));
  captured_.push_back(scope);
  scope->Set(stmt.name, Value::FromObject(std::make_shared<Object>(
                            Object{.state = Macro{.definition = &stmt, .scope = scope}})));
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::Exec(const GenerationStmt& stmt, const ScopePtr& scope,
                                            Text& out) {
  return ExecBody(stmt.body, Inside(scope), out);
}

Result<Interpreter::Flow> Interpreter::Exec(const BreakStmt&, const ScopePtr&, Text&) {
  return Flow::kBreak;
}

Result<Interpreter::Flow> Interpreter::Exec(const ContinueStmt&, const ScopePtr&, Text&) {
  return Flow::kContinue;
}

// --- Expressions ---------------------------------------------------------------------------------

Result<Value> Interpreter::Eval(const Expr& expr, const ScopePtr& scope) {
  return Descend(expr.line, [&]() -> Result<Value> {
    SB_ASSIGN_OR_RETURN(Value value,
                        std::visit([&](const auto& node) { return Eval(node, scope); }, expr.node));
    SB_RETURN_IF_ERROR(CheckSize(value));
    return value;
  });
}

Result<Value> Interpreter::Eval(const ConstExpr& expr, const ScopePtr&) {
  return expr.value;
}

Result<Value> Interpreter::Eval(const NameExpr& expr, const ScopePtr& scope) {
  if (const Value* value = scope->Find(expr.name)) return *value;
  if (const Value* value = context_.Find(expr.name)) return *value;
  if (const Builtin* function = FindFunction(expr.name)) return MakeMethod(Value(), *function);
  return Value::Undefined("'" + expr.name + "' is undefined");
}

Result<Value> Interpreter::Eval(const ListExpr& expr, const ScopePtr& scope) {
  Value::Items items;
  for (const ExprPtr& part : expr.items) {
    SB_ASSIGN_OR_RETURN(Value item, Eval(*part, scope));
    items.push_back(std::move(item));
  }
  return expr.is_tuple ? Value::Tuple(std::move(items)) : Value::List(std::move(items));
}

Result<Value> Interpreter::Eval(const DictExpr& expr, const ScopePtr& scope) {
  Dict dict;
  for (const auto& [key_expr, value_expr] : expr.entries) {
    SB_ASSIGN_OR_RETURN(Value key, Eval(*key_expr, scope));
    SB_RETURN_IF_ERROR(runtime_.budget.SpendBytes(key.weight() + kStringCost));
    if (!Dict::IsHashable(key)) return WrongKind("a dict key", key, "a str or a number");
    SB_ASSIGN_OR_RETURN(Value value, Eval(*value_expr, scope));
    dict.Set(std::move(key), std::move(value));
  }
  return Value::FromDict(std::move(dict));
}

Result<Value> Interpreter::Eval(const AttributeExpr& expr, const ScopePtr& scope) {
  SB_ASSIGN_OR_RETURN(const Value object, Eval(*expr.object, scope));
  return GetAttribute(runtime_, object, expr.name);
}

Result<Value> Interpreter::Eval(const ItemExpr& expr, const ScopePtr& scope) {
  SB_ASSIGN_OR_RETURN(const Value object, Eval(*expr.object, scope));
  SB_ASSIGN_OR_RETURN(const Value key, Eval(*expr.key, scope));
  return GetItem(runtime_, object, key);
}

Result<Value> Interpreter::Eval(const SliceExpr& expr, const ScopePtr& scope) {
  SB_ASSIGN_OR_RETURN(const Value object, Eval(*expr.object, scope));
  Value bounds[3] = {Value::None(), Value::None(), Value::None()};
  const ExprPtr* parts[3] = {&expr.start, &expr.stop, &expr.step};
  for (size_t i = 0; i < 3; ++i) {
    if (*parts[i] == nullptr) continue;
    SB_ASSIGN_OR_RETURN(bounds[i], Eval(**parts[i], scope));
  }
  return GetSlice(runtime_, object, bounds[0], bounds[1], bounds[2]);
}

Result<Arguments> Interpreter::EvalArgs(const CallArgs& args, const ScopePtr& scope) {
  Arguments values;
  for (const ExprPtr& expr : args.positional) {
    SB_ASSIGN_OR_RETURN(Value value, Eval(*expr, scope));
    values.positional.push_back(std::move(value));
  }
  for (const auto& [name, expr] : args.named) {
    SB_ASSIGN_OR_RETURN(Value value, Eval(*expr, scope));
    values.named.emplace_back(name, std::move(value));
  }
  return values;
}

Result<Value> Interpreter::Eval(const CallExpr& expr, const ScopePtr& scope) {
  SB_ASSIGN_OR_RETURN(const Value callee, Eval(*expr.callee, scope));
  SB_ASSIGN_OR_RETURN(Arguments args, EvalArgs(expr.args, scope));
  if (callee.is_object()) {
    const auto& state = callee.object().state;
    if (const auto* macro = std::get_if<Macro>(&state)) return CallMacro(*macro, std::move(args));
    if (const auto* method = std::get_if<Method>(&state)) {
      return CallBuiltin(runtime_, *method->builtin, method->self, std::move(args));
    }
  }
  return WrongKind("the value cannot be called", callee, "a function or macro");
}

Result<Value> Interpreter::CallMacro(const Macro& macro, Arguments args) {
  const auto& params = macro.definition->params;
  const std::string what = "macro " + macro.definition->name;
  if (args.positional.size() > params.size()) {
    return InvalidArgument({.what = "too many arguments for " + what,
                            .found = std::to_string(args.positional.size()),
                            .expected = "at most " + std::to_string(params.size())});
  }
  const ScopePtr scope = Inside(macro.scope);
  for (size_t i = 0; i < params.size(); ++i) {
    const auto& [name, fallback] = params[i];
    const auto named = std::find_if(args.named.begin(), args.named.end(),
                                    [&name = name](const auto& arg) { return arg.first == name; });
    if (i < args.positional.size()) {
      scope->Set(name, std::move(args.positional[i]));
    } else if (named != args.named.end()) {
      scope->Set(name, std::move(named->second));
      args.named.erase(named);
    } else if (fallback != nullptr) {
      SB_ASSIGN_OR_RETURN(Value value, Eval(*fallback, scope));
      scope->Set(name, std::move(value));
    } else {
      scope->Set(name, Value::Undefined("parameter '" + name + "' of " + what + " was not given"));
    }
  }
  if (!args.named.empty()) {
    return InvalidArgument(
        {.what = what + " takes no argument '" + args.named[0].first + "' here"});
  }
  Text out;
  SB_RETURN_IF_ERROR(ExecBody(macro.definition->body, scope, out).status());
  return Value::String(std::move(out));
}

Result<Value> Interpreter::Eval(const FilterExpr& expr, const ScopePtr& scope) {
  SB_ASSIGN_OR_RETURN(const Value subject, Eval(*expr.subject, scope));
  SB_ASSIGN_OR_RETURN(Arguments args, EvalArgs(expr.args, scope));
  return CallBuiltin(runtime_, *expr.filter, subject, std::move(args));
}

Result<Value> Interpreter::Eval(const TestExpr& expr, const ScopePtr& scope) {
  SB_ASSIGN_OR_RETURN(const Value subject, Eval(*expr.subject, scope));
  SB_ASSIGN_OR_RETURN(Arguments args, EvalArgs(expr.args, scope));
  return CallBuiltin(runtime_, *expr.test, subject, std::move(args));
}

Result<Value> Interpreter::Eval(const NotExpr& expr, const ScopePtr& scope) {
  SB_ASSIGN_OR_RETURN(const Value value, Eval(*expr.operand, scope));
  return Value::Bool(!IsTruthy(value));
}

Result<Value> Interpreter::Eval(const SignExpr& expr, const ScopePtr& scope) {
  SB_ASSIGN_OR_RETURN(const Value value, Eval(*expr.operand, scope));
  if (expr.negative) return Negate(value);
  return Binary(runtime_, BinaryOp::kAdd, Value::Int(0), value);
}

Result<Value> Interpreter::Eval(const BinaryExpr& expr, const ScopePtr& scope) {
  SB_ASSIGN_OR_RETURN(const Value left, Eval(*expr.left, scope));
  SB_ASSIGN_OR_RETURN(const Value right, Eval(*expr.right, scope));
  return Binary(runtime_, expr.op, left, right);
}

// As in Python the result is an operand, not a bool.
Result<Value> Interpreter::Eval(const LogicalExpr& expr, const ScopePtr& scope) {
  SB_ASSIGN_OR_RETURN(Value left, Eval(*expr.left, scope));
  if (IsTruthy(left) != expr.is_and) return left;
  return Eval(*expr.right, scope);
}

Result<Value> Interpreter::Eval(const CompareExpr& expr, const ScopePtr& scope) {
  SB_ASSIGN_OR_RETURN(Value left, Eval(*expr.first, scope));
  for (const auto& [op, operand] : expr.rest) {
    SB_ASSIGN_OR_RETURN(Value right, Eval(*operand, scope));
    SB_ASSIGN_OR_RETURN(const bool holds, Compare(runtime_, op, left, right));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Result<Value> Interpreter::Eval(const ConcatExpr& expr, const ScopePtr& scope) {
  Text out;
  for (const ExprPtr& part : expr.parts) {
    SB_ASSIGN_OR_RETURN(const Value value, Eval(*part, scope));
    SB_ASSIGN_OR_RETURN(const Text shown, ToText(runtime_, value));
    SB_RETURN_IF_ERROR(runtime_.budget.SpendBytes(shown.footprint()));
    out.Append(shown);
  }
  return Value::String(std::move(out));
}

Result<Value> Interpreter::Eval(const ConditionalExpr& expr, const ScopePtr& scope) {
  SB_ASSIGN_OR_RETURN(const Value condition, Eval(*expr.condition, scope));
  if (IsTruthy(condition)) return Eval(*expr.then, scope);
  if (expr.otherwise != nullptr) return Eval(*expr.otherwise, scope);
  return Value::Undefined("the inline if evaluated to false and has no else");
}

}  // namespace signalbox::jinja
