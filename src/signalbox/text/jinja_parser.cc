// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/jinja_parser.h"

#include <algorithm>
#include <initializer_list>

#include "signalbox/text/jinja_expression_parser.h"

namespace signalbox::jinja {
namespace {

constexpr std::string_view kConstantNames[] = {"true", "True", "false", "False", "none", "None"};

class StatementParser {
 public:
  explicit StatementParser(std::vector<Token> tokens) : in_(std::move(tokens)) {}

  Result<Body> ParseAll() {
    SB_ASSIGN_OR_RETURN(Body body, ParseBody({}));
    return body;
  }

 private:
  using Nesting = ExpressionParser::Nesting;

  // Statements up to a tag that starts with one of `ends`, which is left unread but for its
  // opening; the end of the template is such a tag where `ends` is empty.
  Result<Body> ParseBody(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(in_);
    SB_RETURN_IF_ERROR(nesting.Check());
    Body body;
    while (true) {
      const int line = in_.Peek().line;
      switch (in_.Peek().type) {
        case TokenType::kEnd: {
          if (ends.size() == 0) return body;
          return in_.Unexpected("{% " + std::string(*(ends.end() - 1)) + " %}");
        }
        case TokenType::kData: {
          Value data = Value::String(in_.Next().text, /*trusted=*/true);
          auto expr = std::make_unique<Expr>(Expr{line, 1, ConstExpr{std::move(data)}});
          body.push_back({line, OutputStmt{std::move(expr)}});
          break;
        }
        case TokenType::kVariableBegin: {
          in_.Next();
          SB_ASSIGN_OR_RETURN(ExprPtr value, in_.ParseTuple());
          if (in_.Peek().type != TokenType::kVariableEnd) return in_.Unexpected("'}}'");
          in_.Next();
          body.push_back({line, OutputStmt{std::move(value)}});
          break;
        }
        default: {
          in_.Next();  // kBlockBegin: the lexer makes nothing else outside tags
          const bool ended = std::any_of(ends.begin(), ends.end(),
                                         [this](std::string_view end) { return in_.IsName(end); });
          if (ended) return body;
          SB_RETURN_IF_ERROR(ParseStatement(line, body));
        }
      }
    }
  }

  Status ExpectBlockEnd() {
    if (in_.Peek().type != TokenType::kBlockEnd) return in_.Unexpected("'%}'");
    in_.Next();
    return OkStatus();
  }

  // `... %} body {% end %}`; reads the end tag too.
  Result<Body> ParseBlock(std::string_view end) {
    in_.SkipOperator(":");  // allowed before the end of an opening tag
    SB_RETURN_IF_ERROR(ExpectBlockEnd());
    SB_ASSIGN_OR_RETURN(Body body, ParseBody({end}));
    in_.Next();
    SB_RETURN_IF_ERROR(ExpectBlockEnd());
    return body;
  }

  template <typename Node>
  Status Add(int line, Result<Node> node, Body& body) {
    SB_RETURN_IF_ERROR(node.status());
    body.push_back({line, std::move(node).value()});
    return OkStatus();
  }

  Status ParseStatement(int line, Body& body) {
    SB_ASSIGN_OR_RETURN(const std::string tag, in_.ExpectName());
    if (tag == "if") return Add(line, ParseIf(), body);
    if (tag == "for") return Add(line, ParseFor(), body);
    if (tag == "set") return ParseSet(line, body);
    if (tag == "macro") return Add(line, ParseMacro(), body);
    if (tag == "generation") {
      SB_ASSIGN_OR_RETURN(Body inner, ParseBlock("endgeneration"));
      body.push_back({line, GenerationStmt{std::move(inner)}});
      return OkStatus();
    }
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) return in_.ErrorAt(line, "'" + tag + "' outside a loop");
      if (tag == "break") {
        body.push_back({line, BreakStmt{}});
      } else {
        body.push_back({line, ContinueStmt{}});
      }
      return ExpectBlockEnd();
    }
    return in_.ErrorAt(line, "the tag '" + tag + "' is unknown here or not supported");
  }

  Result<IfStmt> ParseIf() {
    IfStmt result;
    while (true) {
      SB_ASSIGN_OR_RETURN(ExprPtr condition, in_.ParseTuple(/*conditional=*/false));
      in_.SkipOperator(":");
      SB_RETURN_IF_ERROR(ExpectBlockEnd());
      SB_ASSIGN_OR_RETURN(Body body, ParseBody({"elif", "else", "endif"}));
      result.branches.emplace_back(std::move(condition), std::move(body));
      if (in_.SkipName("elif")) continue;
      if (in_.SkipName("endif")) {
        SB_RETURN_IF_ERROR(ExpectBlockEnd());
        return result;
      }
      in_.Next();
      SB_ASSIGN_OR_RETURN(result.otherwise, ParseBlock("endif"));
      return result;
    }
  }

  Result<ForStmt> ParseFor() {
    ForStmt result;
    SB_ASSIGN_OR_RETURN(result.target, ParseTarget(/*attributes=*/false));
    if (!in_.SkipName("in")) return in_.Unexpected("'in'");
    SB_ASSIGN_OR_RETURN(result.items, in_.ParseTuple(/*conditional=*/false));
    if (in_.SkipName("if")) {
      SB_ASSIGN_OR_RETURN(result.condition, in_.ParseExpression());
    }
    if (in_.IsName("recursive")) {
      return in_.ErrorAt(in_.Peek().line, "recursive loops are not supported; use a macro");
    }
    in_.SkipOperator(":");
    SB_RETURN_IF_ERROR(ExpectBlockEnd());
    const int reads_before = in_.loop_reads();
    ++loops_;
    auto body = ParseBody({"else", "endfor"});
    --loops_;
    SB_RETURN_IF_ERROR(body.status());
    result.body = std::move(body).value();
    result.uses_loop = in_.loop_reads() > reads_before;
    if (in_.SkipName("endfor")) {
      SB_RETURN_IF_ERROR(ExpectBlockEnd());
      return result;
    }
    in_.Next();
    SB_ASSIGN_OR_RETURN(result.otherwise, ParseBlock("endfor"));
    return result;
  }

  Status ParseSet(int line, Body& body) {
    SB_ASSIGN_OR_RETURN(Target target, ParseTarget(/*attributes=*/true));
    if (in_.SkipOperator("=")) {
      SB_ASSIGN_OR_RETURN(ExprPtr value, in_.ParseTuple());
      body.push_back({line, SetStmt{std::move(target), std::move(value)}});
      return ExpectBlockEnd();
    }
    if (target.is_tuple) return in_.Unexpected("'='");
    SB_ASSIGN_OR_RETURN(std::vector<FilterExpr> filters, in_.ParseFilters());
    SB_ASSIGN_OR_RETURN(Body inner, ParseBlock("endset"));
    body.push_back({line, SetBlockStmt{std::move(target), std::move(filters), std::move(inner)}});
    return OkStatus();
  }

  Result<MacroStmt> ParseMacro() {
    MacroStmt result;
    SB_ASSIGN_OR_RETURN(result.name, in_.ExpectName());
    SB_RETURN_IF_ERROR(in_.ExpectOperator("("));
    bool defaults = false;
    while (!in_.IsOperator(")")) {
      if (!result.params.empty()) SB_RETURN_IF_ERROR(in_.ExpectOperator(","));
      SB_ASSIGN_OR_RETURN(std::string name, in_.ExpectName());
      ExprPtr fallback;
      if (in_.SkipOperator("=")) {
        SB_ASSIGN_OR_RETURN(fallback, in_.ParseExpression());
      }
      if (defaults && fallback == nullptr) return in_.Unexpected("a default, as before");
      defaults = fallback != nullptr;
      result.params.emplace_back(std::move(name), std::move(fallback));
    }
    in_.Next();
    // A loop around the macro is no loop of the macro's body.
    const int outer_loops = std::exchange(loops_, 0);
    auto body = ParseBlock("endmacro");
    loops_ = outer_loops;
    SB_RETURN_IF_ERROR(body.status());
    result.body = std::move(body).value();
    return result;
  }

  // `a`, `a, b`, `(a, b), c`, and with `attributes` also `space.name`.
  Result<Target> ParseTarget(bool attributes) {
    const Nesting nesting(in_);
    SB_RETURN_IF_ERROR(nesting.Check());
    SB_ASSIGN_OR_RETURN(Target first, ParseSingleTarget(attributes));
    if (!in_.IsOperator(",")) return first;
    Target tuple;
    tuple.is_tuple = true;
    tuple.parts.push_back(std::move(first));
    while (in_.SkipOperator(",")) {
      if (in_.IsOperator("=") || in_.IsOperator(")")) break;
      SB_ASSIGN_OR_RETURN(Target part, ParseSingleTarget(attributes));
      tuple.parts.push_back(std::move(part));
    }
    return tuple;
  }

  Result<Target> ParseSingleTarget(bool attributes) {
    if (in_.SkipOperator("(")) {
      SB_ASSIGN_OR_RETURN(Target inner, ParseTarget(attributes));
      SB_RETURN_IF_ERROR(in_.ExpectOperator(")"));
      return inner;
    }
    const int line = in_.Peek().line;
    Target target;
    SB_ASSIGN_OR_RETURN(target.name, in_.ExpectName());
    const auto* constant =
        std::find(std::begin(kConstantNames), std::end(kConstantNames), target.name);
    if (constant != std::end(kConstantNames) || (!attributes && target.name == "loop")) {
      return in_.ErrorAt(line, "'" + target.name + "' cannot be assigned to");
    }
    if (attributes && in_.SkipOperator(".")) {
      SB_ASSIGN_OR_RETURN(target.attribute, in_.ExpectName());
    }
    return target;
  }

  ExpressionParser in_;
  int loops_ = 0;  // around the statement being parsed, inside its macro
};

}  // namespace

Result<Body> ParseTemplate(std::string_view source) {
  SB_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return StatementParser(std::move(tokens)).ParseAll();
}

}  // namespace signalbox::jinja
