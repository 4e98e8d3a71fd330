// SPDX-License-Identifier: Apache-2.0
//
// The expression half of the parser, over a token stream that the statement half shares.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "signalbox/text/jinja_ast.h"
#include "signalbox/text/jinja_lexer.h"

namespace signalbox::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // A full expression; `conditional` allows "a if b else c".
  Result<ExprPtr> ParseExpression(bool conditional = true);
  // One expression, or several joined by commas, which make a tuple.
  Result<ExprPtr> ParseTuple(bool conditional = true);
  // `| name(arguments)`, as often as it occurs.
  Result<std::vector<FilterExpr>> ParseFilters();

  // --- The token stream --------------------------------------------------------------------------
  const Token& Peek(size_t ahead = 0) const;
  Token Next();
  bool IsName(std::string_view name, size_t ahead = 0) const;
  bool IsOperator(std::string_view op, size_t ahead = 0) const;
  bool SkipName(std::string_view name);
  bool SkipOperator(std::string_view op);
  Status ExpectOperator(std::string_view op);
  Result<std::string> ExpectName();
  // "expected X" with what is there instead.
  Status Unexpected(std::string_view expected) const;
  Status ErrorAt(int line, std::string what) const;

  // How often the name `loop` has been read: a loop whose body does not can skip making it.
  int loop_reads() const { return loop_reads_; }

  // Bounds recursion: fails beyond kMaxSyntaxDepth guards alive at a time.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser) : parser_(parser) { ++parser_.nesting_; }
    ~Nesting() { --parser_.nesting_; }
    Status Check() const;

   private:
    ExpressionParser& parser_;
  };

 private:
  template <typename Node>
  Result<ExprPtr> Make(int line, Node node) const;
  Result<ExprPtr> ParseLogical(bool is_or);
  Result<ExprPtr> ParseNot();
  Result<ExprPtr> ParseCompare();
  Result<ExprPtr> ParseArithmetic(int level);
  Result<ExprPtr> ParseConcat();
  Result<ExprPtr> ParseUnary(bool with_filters);
  Result<ExprPtr> ParsePrimary();
  Result<ExprPtr> ParseNameOrConstant();
  Result<ExprPtr> ParseList();
  Result<ExprPtr> ParseDict();
  Result<ExprPtr> ParsePostfix(ExprPtr expr);
  Result<ExprPtr> ParseFiltersAndTests(ExprPtr expr);
  Result<ExprPtr> ParseSubscript(ExprPtr object);
  Result<ExprPtr> ParseTest(ExprPtr subject);
  Result<FilterExpr> ParseFilter();
  Result<CallArgs> ParseCallArgs();
  bool StartsTestArgument() const;
  bool EndsTuple() const;

  std::vector<Token> tokens_;
  size_t next_ = 0;
  int nesting_ = 0;
  int loop_reads_ = 0;
};

}  // namespace signalbox::jinja
