// SPDX-License-Identifier: Apache-2.0
//
// A parsed template as plain data. Filters and tests are resolved to table rows, constants to
// values.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "signalbox/text/jinja_ops.h"
#include "signalbox/text/jinja_value.h"

namespace signalbox::jinja {

// --- Expressions ---------------------------------------------------------------------------------

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;  // null where a part is absent

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
};

struct ConstExpr {
  Value value;
};
struct NameExpr {
  std::string name;
};
struct ListExpr {  // also a tuple
  bool is_tuple;
  std::vector<ExprPtr> items;
};
struct DictExpr {
  std::vector<std::pair<ExprPtr, ExprPtr>> entries;
};
struct AttributeExpr {
  ExprPtr object;
  std::string name;
};
struct ItemExpr {
  ExprPtr object;
  ExprPtr key;
};
struct SliceExpr {
  ExprPtr object;
  ExprPtr start, stop, step;
};
struct CallExpr {
  ExprPtr callee;
  CallArgs args;
};
struct FilterExpr {
  ExprPtr subject;
  const Builtin* filter;
  CallArgs args;
};
struct TestExpr {
  ExprPtr subject;
  const Builtin* test;
  CallArgs args;
};
struct NotExpr {
  ExprPtr operand;
};
struct SignExpr {
  bool negative;
  ExprPtr operand;
};
struct BinaryExpr {
  BinaryOp op;
  ExprPtr left, right;
};
struct LogicalExpr {
  bool is_and;
  ExprPtr left, right;
};
struct CompareExpr {  // a < b <= c
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};
struct ConcatExpr {  // a ~ b ~ c
  std::vector<ExprPtr> parts;
};
struct ConditionalExpr {  // then if condition else otherwise
  ExprPtr condition, then, otherwise;
};

struct Expr {
  int line;
  int depth;  // 1 + the deepest part: bounds every recursive walk
  std::variant<ConstExpr, NameExpr, ListExpr, DictExpr, AttributeExpr, ItemExpr, SliceExpr,
               CallExpr, FilterExpr, TestExpr, NotExpr, SignExpr, BinaryExpr, LogicalExpr,
               CompareExpr, ConcatExpr, ConditionalExpr>
      node;
};

// --- Statements ----------------------------------------------------------------------------------

struct Stmt;
using Body = std::vector<Stmt>;

// What can be assigned to: a name, an attribute of a namespace, or several targets to unpack into.
struct Target {
  std::string name;
  std::string attribute;      // empty for a plain name
  std::vector<Target> parts;  // unpacking when is_tuple
  bool is_tuple = false;
};

struct OutputStmt {
  ExprPtr value;  // template data is a constant
};
struct IfStmt {
  std::vector<std::pair<ExprPtr, Body>> branches;
  Body otherwise;
};
struct ForStmt {
  Target target;
  ExprPtr items;
  ExprPtr condition;  // of "for ... if", or null
  bool uses_loop;     // the body names `loop`
  Body body;
  Body otherwise;
};
struct SetStmt {
  Target target;
  ExprPtr value;
};
struct SetBlockStmt {
  Target target;
  std::vector<FilterExpr> filters;  // without subject, in order
  Body body;
};
struct MacroStmt {
  std::string name;
  std::vector<std::pair<std::string, ExprPtr>> params;  // with defaults, or null
  Body body;
};
struct GenerationStmt {  // marks what the assistant wrote, for training; renders its body
  Body body;
};
struct BreakStmt {};
struct ContinueStmt {};

struct Stmt {
  int line;
  std::variant<OutputStmt, IfStmt, ForStmt, SetStmt, SetBlockStmt, MacroStmt, GenerationStmt,
               BreakStmt, ContinueStmt>
      node;
};

}  // namespace signalbox::jinja
