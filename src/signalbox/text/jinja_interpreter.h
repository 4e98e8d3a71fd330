// SPDX-License-Identifier: Apache-2.0
//
// Walks a syntax tree with a context and writes the output. One interpreter renders once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "signalbox/text/jinja_ast.h"
#include "signalbox/text/jinja_template.h"

namespace signalbox::jinja {

class Interpreter {
 public:
  // Both must outlive the interpreter.
  Interpreter(const Dict& context, const RenderOptions& options);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Result<Text> Run(const Body& body);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  using ScopePtr = std::shared_ptr<Scope>;

  // --- Statements: write to `out` ----------------------------------------------------------------
  Result<Flow> ExecBody(const Body& body, const ScopePtr& scope, Text& out);
  Result<Flow> Exec(const OutputStmt& stmt, const ScopePtr& scope, Text& out);
  Result<Flow> Exec(const IfStmt& stmt, const ScopePtr& scope, Text& out);
  Result<Flow> Exec(const ForStmt& stmt, const ScopePtr& scope, Text& out);
  Result<Flow> Exec(const SetStmt& stmt, const ScopePtr& scope, Text& out);
  Result<Flow> Exec(const SetBlockStmt& stmt, const ScopePtr& scope, Text& out);
  Result<Flow> Exec(const MacroStmt& stmt, const ScopePtr& scope, Text& out);
  Result<Flow> Exec(const GenerationStmt& stmt, const ScopePtr& scope, Text& out);
  Result<Flow> Exec(const BreakStmt& stmt, const ScopePtr& scope, Text& out);
  Result<Flow> Exec(const ContinueStmt& stmt, const ScopePtr& scope, Text& out);
  Result<bool> Passes(const ForStmt& stmt, const Value& item, const ScopePtr& scope);
  Status Assign(const Target& target, const Value& value, Scope& scope);
  Status Emit(const Text& text, Text& out);

  // Runs `work` one level deeper, and adds the line to its error.
  template <typename Work>
  auto Descend(int line, Work work) -> decltype(work());

  // --- Expressions -------------------------------------------------------------------------------
  Result<Value> Eval(const Expr& expr, const ScopePtr& scope);
  Result<Value> Eval(const ConstExpr& expr, const ScopePtr& scope);
  Result<Value> Eval(const NameExpr& expr, const ScopePtr& scope);
  Result<Value> Eval(const ListExpr& expr, const ScopePtr& scope);
  Result<Value> Eval(const DictExpr& expr, const ScopePtr& scope);
  Result<Value> Eval(const AttributeExpr& expr, const ScopePtr& scope);
  Result<Value> Eval(const ItemExpr& expr, const ScopePtr& scope);
  Result<Value> Eval(const SliceExpr& expr, const ScopePtr& scope);
  Result<Value> Eval(const CallExpr& expr, const ScopePtr& scope);
  Result<Value> Eval(const FilterExpr& expr, const ScopePtr& scope);
  Result<Value> Eval(const TestExpr& expr, const ScopePtr& scope);
  Result<Value> Eval(const NotExpr& expr, const ScopePtr& scope);
  Result<Value> Eval(const SignExpr& expr, const ScopePtr& scope);
  Result<Value> Eval(const BinaryExpr& expr, const ScopePtr& scope);
  Result<Value> Eval(const LogicalExpr& expr, const ScopePtr& scope);
  Result<Value> Eval(const CompareExpr& expr, const ScopePtr& scope);
  Result<Value> Eval(const ConcatExpr& expr, const ScopePtr& scope);
  Result<Value> Eval(const ConditionalExpr& expr, const ScopePtr& scope);
  Result<Arguments> EvalArgs(const CallArgs& args, const ScopePtr& scope);
  Result<Value> CallMacro(const Macro& macro, Arguments args);

  const Dict& context_;
  const RenderOptions& options_;
  Runtime runtime_;
  std::vector<ScopePtr> captured_;  // scopes that a macro refers to, which may refer to the macro
  int depth_ = 0;                   // of the walk, which is the depth of the C++ stack
};

}  // namespace signalbox::jinja
