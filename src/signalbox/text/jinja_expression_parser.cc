// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/jinja_expression_parser.h"

#include <algorithm>

#include "signalbox/text/jinja_parser.h"

namespace signalbox::jinja {
namespace {

int Depth(const ExprPtr& expr) {
  return expr == nullptr ? 0 : expr->depth;
}
int Depth(const std::vector<ExprPtr>& list) {
  int depth = 0;
  for (const ExprPtr& expr : list) depth = std::max(depth, Depth(expr));
  return depth;
}
int Depth(const CallArgs& args) {
  int depth = Depth(args.positional);
  for (const auto& [name, expr] : args.named) depth = std::max(depth, Depth(expr));
  return depth;
}
int Depth(const ConstExpr&) {
  return 0;
}
int Depth(const NameExpr&) {
  return 0;
}
int Depth(const ListExpr& e) {
  return Depth(e.items);
}
int Depth(const DictExpr& e) {
  int depth = 0;
  for (const auto& [key, value] : e.entries) depth = std::max({depth, Depth(key), Depth(value)});
  return depth;
}
int Depth(const AttributeExpr& e) {
  return Depth(e.object);
}
int Depth(const ItemExpr& e) {
  return std::max(Depth(e.object), Depth(e.key));
}
int Depth(const SliceExpr& e) {
  return std::max({Depth(e.object), Depth(e.start), Depth(e.stop), Depth(e.step)});
}
int Depth(const CallExpr& e) {
  return std::max(Depth(e.callee), Depth(e.args));
}
int Depth(const FilterExpr& e) {
  return std::max(Depth(e.subject), Depth(e.args));
}
int Depth(const TestExpr& e) {
  return std::max(Depth(e.subject), Depth(e.args));
}
int Depth(const NotExpr& e) {
  return Depth(e.operand);
}
int Depth(const SignExpr& e) {
  return Depth(e.operand);
}
int Depth(const BinaryExpr& e) {
  return std::max(Depth(e.left), Depth(e.right));
}
int Depth(const LogicalExpr& e) {
  return std::max(Depth(e.left), Depth(e.right));
}
int Depth(const CompareExpr& e) {
  int depth = Depth(e.first);
  for (const auto& [op, expr] : e.rest) depth = std::max(depth, Depth(expr));
  return depth;
}
int Depth(const ConcatExpr& e) {
  return Depth(e.parts);
}
int Depth(const ConditionalExpr& e) {
  return std::max({Depth(e.condition), Depth(e.then), Depth(e.otherwise)});
}

struct BinaryRow {
  std::string_view token;
  BinaryOp op;
};
// Operators of one precedence each, loosest first; "~" binds between the first two.
constexpr BinaryRow kSums[] = {{"+", BinaryOp::kAdd}, {"-", BinaryOp::kSub}};
constexpr BinaryRow kProducts[] = {{"*", BinaryOp::kMul},
                                   {"/", BinaryOp::kDiv},
                                   {"//", BinaryOp::kFloorDiv},
                                   {"%", BinaryOp::kMod}};
constexpr BinaryRow kPowers[] = {{"**", BinaryOp::kPow}};

struct CompareRow {
  std::string_view token;
  CompareOp op;
};
constexpr CompareRow kCompares[] = {{"==", CompareOp::kEq}, {"!=", CompareOp::kNe},
                                    {"<", CompareOp::kLt},  {"<=", CompareOp::kLe},
                                    {">", CompareOp::kGt},  {">=", CompareOp::kGe}};

}  // namespace

// --- The token stream ----------------------------------------------------------------------------

const Token& ExpressionParser::Peek(size_t ahead) const {
  return tokens_[std::min(next_ + ahead, tokens_.size() - 1)];
}

Token ExpressionParser::Next() {
  Token token = Peek();
  if (next_ + 1 < tokens_.size()) ++next_;
  return token;
}

bool ExpressionParser::IsName(std::string_view name, size_t ahead) const {
  return Peek(ahead).type == TokenType::kName && Peek(ahead).text == name;
}

bool ExpressionParser::IsOperator(std::string_view op, size_t ahead) const {
  return Peek(ahead).type == TokenType::kOperator && Peek(ahead).text == op;
}

bool ExpressionParser::SkipName(std::string_view name) {
  const bool there = IsName(name);
  if (there) Next();
  return there;
}

bool ExpressionParser::SkipOperator(std::string_view op) {
  const bool there = IsOperator(op);
  if (there) Next();
  return there;
}

Status ExpressionParser::ExpectOperator(std::string_view op) {
  if (SkipOperator(op)) return OkStatus();
  return Unexpected("'" + std::string(op) + "'");
}

Result<std::string> ExpressionParser::ExpectName() {
  if (Peek().type != TokenType::kName) return Unexpected("a name");
  return Next().text;
}

Status ExpressionParser::Unexpected(std::string_view expected) const {
  const Token& token = Peek();
  std::string found;
  switch (token.type) {
    case TokenType::kData:
      found = "template text";
      break;
    case TokenType::kVariableBegin:
    case TokenType::kBlockBegin:
      found = "the start of a tag";
      break;
    case TokenType::kVariableEnd:
    case TokenType::kBlockEnd:
      found = "the end of the tag";
      break;
    case TokenType::kEnd:
      found = "the end of the template";
      break;
    case TokenType::kString:
      found = "a string";
      break;
    default:
      found = "'" + token.text + "'";
  }
  return InvalidArgument({.what = "syntax error",
                          .where = LineName(token.line),
                          .found = std::move(found),
                          .expected = std::string(expected)});
}

Status ExpressionParser::ErrorAt(int line, std::string what) const {
  return InvalidArgument({.what = std::move(what), .where = LineName(line)});
}

Status ExpressionParser::Nesting::Check() const {
  if (parser_.nesting_ <= kMaxSyntaxDepth) return OkStatus();
  return parser_.ErrorAt(parser_.Peek().line, "the template is nested too deeply");
}

template <typename Node>
Result<ExprPtr> ExpressionParser::Make(int line, Node node) const {
  const int depth = Depth(node) + 1;
  // Chains such as a + b + c deepen the tree without nesting the parser.
  if (depth > kMaxSyntaxDepth) return ErrorAt(line, "an expression is nested too deeply");
  return std::make_unique<Expr>(Expr{line, depth, std::move(node)});
}

// --- Precedence, loosest first -------------------------------------------------------------------

Result<ExprPtr> ExpressionParser::ParseExpression(bool conditional) {
  const Nesting nesting(*this);
  SB_RETURN_IF_ERROR(nesting.Check());
  const int line = Peek().line;
  SB_ASSIGN_OR_RETURN(ExprPtr expr, ParseLogical(/*is_or=*/true));
  while (conditional && SkipName("if")) {
    SB_ASSIGN_OR_RETURN(ExprPtr condition, ParseLogical(/*is_or=*/true));
    ExprPtr otherwise;
    if (SkipName("else")) {
      SB_ASSIGN_OR_RETURN(otherwise, ParseExpression());
    }
    SB_ASSIGN_OR_RETURN(expr, Make(line, ConditionalExpr{std::move(condition), std::move(expr),
                                                         std::move(otherwise)}));
  }
  return expr;
}

Result<ExprPtr> ExpressionParser::ParseLogical(bool is_or) {
  const int line = Peek().line;
  const auto operand = [this, is_or] { return is_or ? ParseLogical(false) : ParseNot(); };
  SB_ASSIGN_OR_RETURN(ExprPtr left, operand());
  while (SkipName(is_or ? "or" : "and")) {
    SB_ASSIGN_OR_RETURN(ExprPtr right, operand());
    SB_ASSIGN_OR_RETURN(left, Make(line, LogicalExpr{!is_or, std::move(left), std::move(right)}));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::ParseNot() {
  const Nesting nesting(*this);
  SB_RETURN_IF_ERROR(nesting.Check());
  const int line = Peek().line;
  if (!SkipName("not")) return ParseCompare();
  SB_ASSIGN_OR_RETURN(ExprPtr operand, ParseNot());
  return Make(line, NotExpr{std::move(operand)});
}

Result<ExprPtr> ExpressionParser::ParseCompare() {
  const int line = Peek().line;
  CompareExpr compare;
  SB_ASSIGN_OR_RETURN(compare.first, ParseArithmetic(0));
  while (true) {
    const auto* row = std::find_if(std::begin(kCompares), std::end(kCompares),
                                   [this](const CompareRow& r) { return IsOperator(r.token); });
    CompareOp op = CompareOp::kIn;
    if (row != std::end(kCompares)) {
      op = row->op;
    } else if (IsName("not") && IsName("in", 1)) {
      op = CompareOp::kNotIn;
      Next();
    } else if (!IsName("in")) {
      break;
    }
    Next();
    SB_ASSIGN_OR_RETURN(ExprPtr operand, ParseArithmetic(0));
    compare.rest.emplace_back(op, std::move(operand));
  }
  if (compare.rest.empty()) return std::move(compare.first);
  return Make(line, std::move(compare));
}

// Levels: 0 sums, 1 products, 2 powers; all are left associative, as in Jinja.
Result<ExprPtr> ExpressionParser::ParseArithmetic(int level) {
  const BinaryRow* rows = level == 0 ? kSums : level == 1 ? kProducts : kPowers;
  const size_t count = level == 0   ? std::size(kSums)
                       : level == 1 ? std::size(kProducts)
                                    : std::size(kPowers);
  const auto operand = [this, level]() -> Result<ExprPtr> {
    if (level == 0) return ParseConcat();
    return level == 1 ? ParseArithmetic(2) : ParseUnary(/*with_filters=*/true);
  };
  const int line = Peek().line;
  SB_ASSIGN_OR_RETURN(ExprPtr left, operand());
  while (true) {
    const BinaryRow* row = std::find_if(rows, rows + count,
                                        [this](const BinaryRow& r) { return IsOperator(r.token); });
    if (row == rows + count) return left;
    Next();
    SB_ASSIGN_OR_RETURN(ExprPtr right, operand());
    SB_ASSIGN_OR_RETURN(left, Make(line, BinaryExpr{row->op, std::move(left), std::move(right)}));
  }
}

Result<ExprPtr> ExpressionParser::ParseConcat() {
  const int line = Peek().line;
  ConcatExpr concat;
  do {
    SB_ASSIGN_OR_RETURN(ExprPtr part, ParseArithmetic(1));
    concat.parts.push_back(std::move(part));
  } while (SkipOperator("~"));
  if (concat.parts.size() == 1) return std::move(concat.parts[0]);
  return Make(line, std::move(concat));
}

Result<ExprPtr> ExpressionParser::ParseUnary(bool with_filters) {
  const Nesting nesting(*this);
  SB_RETURN_IF_ERROR(nesting.Check());
  const int line = Peek().line;
  ExprPtr expr;
  if (IsOperator("-") || IsOperator("+")) {
    const bool negative = Next().text == "-";
    SB_ASSIGN_OR_RETURN(ExprPtr operand, ParseUnary(/*with_filters=*/false));
    SB_ASSIGN_OR_RETURN(expr, Make(line, SignExpr{negative, std::move(operand)}));
  } else {
    SB_ASSIGN_OR_RETURN(expr, ParsePrimary());
  }
  SB_ASSIGN_OR_RETURN(expr, ParsePostfix(std::move(expr)));
  if (!with_filters) return expr;
  return ParseFiltersAndTests(std::move(expr));
}

// --- Primary expressions -------------------------------------------------------------------------

Result<ExprPtr> ExpressionParser::ParsePrimary() {
  const Token& token = Peek();
  switch (token.type) {
    case TokenType::kName:
      return ParseNameOrConstant();
    case TokenType::kInteger: {
      const Token number = Next();
      return Make(number.line, ConstExpr{Value::Int(number.integer)});
    }
    case TokenType::kFloat: {
      const Token number = Next();
      return Make(number.line, ConstExpr{Value::Float(number.number)});
    }
    case TokenType::kString: {
      const int line = token.line;
      std::string text;
      while (Peek().type == TokenType::kString) text += Next().text;
      return Make(line, ConstExpr{Value::String(text, /*trusted=*/true)});
    }
    default:
      break;
  }
  if (IsOperator("[")) return ParseList();
  if (IsOperator("{")) return ParseDict();
  if (!IsOperator("(")) return Unexpected("an expression");
  const int line = Next().line;
  if (SkipOperator(")")) return Make(line, ListExpr{.is_tuple = true, .items = {}});
  SB_ASSIGN_OR_RETURN(ExprPtr inner, ParseTuple());
  SB_RETURN_IF_ERROR(ExpectOperator(")"));
  return inner;
}

Result<ExprPtr> ExpressionParser::ParseNameOrConstant() {
  const Token token = Next();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return Make(token.line, ConstExpr{Value::Bool(true)});
  if (name == "false" || name == "False") return Make(token.line, ConstExpr{Value::Bool(false)});
  if (name == "none" || name == "None") return Make(token.line, ConstExpr{Value::None()});
  if (name == "loop") ++loop_reads_;
  return Make(token.line, NameExpr{name});
}

Result<ExprPtr> ExpressionParser::ParseList() {
  const int line = Next().line;
  ListExpr list{.is_tuple = false, .items = {}};
  while (!IsOperator("]")) {
    if (!list.items.empty()) SB_RETURN_IF_ERROR(ExpectOperator(","));
    if (IsOperator("]")) break;
    SB_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
    list.items.push_back(std::move(item));
  }
  Next();
  return Make(line, std::move(list));
}

Result<ExprPtr> ExpressionParser::ParseDict() {
  const int line = Next().line;
  DictExpr dict;
  while (!IsOperator("}")) {
    if (!dict.entries.empty()) SB_RETURN_IF_ERROR(ExpectOperator(","));
    if (IsOperator("}")) break;
    SB_ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
    SB_RETURN_IF_ERROR(ExpectOperator(":"));
    SB_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    dict.entries.emplace_back(std::move(key), std::move(value));
  }
  Next();
  return Make(line, std::move(dict));
}

bool ExpressionParser::EndsTuple() const {
  return Peek().type == TokenType::kVariableEnd || Peek().type == TokenType::kBlockEnd ||
         Peek().type == TokenType::kEnd || IsOperator(")");
}

Result<ExprPtr> ExpressionParser::ParseTuple(bool conditional) {
  const int line = Peek().line;
  SB_ASSIGN_OR_RETURN(ExprPtr first, ParseExpression(conditional));
  if (!IsOperator(",")) return first;
  ListExpr tuple{.is_tuple = true, .items = {}};
  tuple.items.push_back(std::move(first));
  while (SkipOperator(",") && !EndsTuple()) {
    SB_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression(conditional));
    tuple.items.push_back(std::move(item));
  }
  return Make(line, std::move(tuple));
}

// --- What follows an expression ------------------------------------------------------------------

Result<ExprPtr> ExpressionParser::ParsePostfix(ExprPtr expr) {
  while (true) {
    const int line = Peek().line;
    if (SkipOperator(".")) {
      if (Peek().type == TokenType::kInteger) {
        SB_ASSIGN_OR_RETURN(ExprPtr index, Make(line, ConstExpr{Value::Int(Next().integer)}));
        SB_ASSIGN_OR_RETURN(expr, Make(line, ItemExpr{std::move(expr), std::move(index)}));
        continue;
      }
      SB_ASSIGN_OR_RETURN(std::string name, ExpectName());
      SB_ASSIGN_OR_RETURN(expr, Make(line, AttributeExpr{std::move(expr), std::move(name)}));
    } else if (IsOperator("[")) {
      SB_ASSIGN_OR_RETURN(expr, ParseSubscript(std::move(expr)));
    } else if (IsOperator("(")) {
      SB_ASSIGN_OR_RETURN(CallArgs args, ParseCallArgs());
      SB_ASSIGN_OR_RETURN(expr, Make(line, CallExpr{std::move(expr), std::move(args)}));
    } else {
      return expr;
    }
  }
}

Result<ExprPtr> ExpressionParser::ParseSubscript(ExprPtr object) {
  const int line = Next().line;
  ExprPtr parts[3];
  size_t colons = 0;
  while (!IsOperator("]")) {
    if (SkipOperator(":")) {
      if (++colons > 2) return Unexpected("']'");
    } else if (parts[colons] == nullptr) {
      SB_ASSIGN_OR_RETURN(parts[colons], ParseExpression());
    } else {
      return Unexpected("']'");
    }
  }
  Next();
  if (colons > 0) {
    return Make(line, SliceExpr{std::move(object), std::move(parts[0]), std::move(parts[1]),
                                std::move(parts[2])});
  }
  if (parts[0] == nullptr) return ErrorAt(line, "a subscript is empty");
  return Make(line, ItemExpr{std::move(object), std::move(parts[0])});
}

Result<CallArgs> ExpressionParser::ParseCallArgs() {
  Next();
  CallArgs args;
  while (!IsOperator(")")) {
    if (Peek().type == TokenType::kName && IsOperator("=", 1)) {
      std::string name = Next().text;
      Next();
      SB_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      args.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (IsOperator("*") || IsOperator("**")) {
        return ErrorAt(Peek().line, "unpacked arguments (* and **) are not supported");
      }
      if (!args.named.empty()) return Unexpected("a named argument");
      SB_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      args.positional.push_back(std::move(value));
    }
    if (!IsOperator(")")) SB_RETURN_IF_ERROR(ExpectOperator(","));
  }
  Next();
  return args;
}

Result<ExprPtr> ExpressionParser::ParseFiltersAndTests(ExprPtr expr) {
  while (true) {
    const int line = Peek().line;
    if (IsOperator("|")) {
      SB_ASSIGN_OR_RETURN(FilterExpr filter, ParseFilter());
      filter.subject = std::move(expr);
      SB_ASSIGN_OR_RETURN(expr, Make(line, std::move(filter)));
    } else if (IsName("is")) {
      SB_ASSIGN_OR_RETURN(expr, ParseTest(std::move(expr)));
    } else if (IsOperator("(")) {
      SB_ASSIGN_OR_RETURN(CallArgs args, ParseCallArgs());
      SB_ASSIGN_OR_RETURN(expr, Make(line, CallExpr{std::move(expr), std::move(args)}));
    } else {
      return expr;
    }
  }
}

Result<std::vector<FilterExpr>> ExpressionParser::ParseFilters() {
  std::vector<FilterExpr> filters;
  while (IsOperator("|")) {
    SB_ASSIGN_OR_RETURN(FilterExpr filter, ParseFilter());
    filters.push_back(std::move(filter));
  }
  return filters;
}

Result<FilterExpr> ExpressionParser::ParseFilter() {
  Next();
  const int line = Peek().line;
  SB_ASSIGN_OR_RETURN(const std::string name, ExpectName());
  FilterExpr filter{.subject = nullptr, .filter = FindFilter(name), .args = {}};
  if (filter.filter == nullptr) return ErrorAt(line, "there is no filter '" + name + "'");
  if (IsOperator("(")) {
    SB_ASSIGN_OR_RETURN(filter.args, ParseCallArgs());
  }
  return filter;
}

bool ExpressionParser::StartsTestArgument() const {
  switch (Peek().type) {
    case TokenType::kString:
    case TokenType::kInteger:
    case TokenType::kFloat:
      return true;
    // Jinja takes any other name for an argument, even `if`, which then is an undefined variable.
    case TokenType::kName:
      return !IsName("else") && !IsName("or") && !IsName("and");
    default:
      return IsOperator("[") || IsOperator("{");
  }
}

Result<ExprPtr> ExpressionParser::ParseTest(ExprPtr subject) {
  const int line = Next().line;
  const bool negated = SkipName("not");
  SB_ASSIGN_OR_RETURN(const std::string name, ExpectName());
  TestExpr test{.subject = std::move(subject), .test = FindTest(name), .args = {}};
  if (test.test == nullptr) return ErrorAt(line, "there is no test '" + name + "'");
  if (IsOperator("(")) {
    SB_ASSIGN_OR_RETURN(test.args, ParseCallArgs());
  } else if (StartsTestArgument()) {
    if (IsName("is")) return ErrorAt(line, "tests cannot be chained with 'is'");
    SB_ASSIGN_OR_RETURN(ExprPtr argument, ParsePrimary());
    SB_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    test.args.positional.push_back(std::move(argument));
  }
  SB_ASSIGN_OR_RETURN(ExprPtr expr, Make(line, std::move(test)));
  if (!negated) return expr;
  return Make(line, NotExpr{std::move(expr)});
}

}  // namespace signalbox::jinja
