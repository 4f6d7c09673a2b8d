#pragma once
// The parser's two halves: expressions (parse_expressions.cpp) and statements (parser.cpp).

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/syntax/lexer.h"
#include "nibble/core/text/chat/jinja/syntax/syntax.h"

namespace nibble::jinja {

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}
  Syntax run();

 private:
  // Nesting of brackets, operators and statements; Python ends earlier.
  static constexpr int kMaxNesting = 400;
  static constexpr int kMaxTreeDepth = 300;

  class Nested {
   public:
    explicit Nested(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting) parser_.fail("the template is nested too deep");
    }
    ~Nested() { --parser_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Parser& parser_;
  };

  [[noreturn]] void fail(const std::string& reason) const { throw SyntaxFailure(reason, current().line); }
  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_[at_]; }
  bool skip_symbol(std::string_view symbol);
  bool skip_name(std::string_view name);
  void expect_symbol(std::string_view symbol);
  std::string expect_name();
  void expect(TokenKind kind);
  std::string describe() const;
  Name intern(const std::string& name);

  // Expressions.
  ExpressionPtr make(ExpressionKind kind, int line, std::vector<ExpressionPtr> parts = {}, std::string text = "");
  ExpressionPtr parse_expression(bool with_conditional = true);
  ExpressionPtr parse_conditional();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filter = true);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr node);
  ExpressionPtr parse_filters(ExpressionPtr node, bool starts_inline = false);
  ExpressionPtr parse_test(ExpressionPtr node);
  ExpressionPtr parse_subscript(ExpressionPtr node);
  ExpressionPtr parse_subscribed();
  ExpressionPtr parse_call(ExpressionPtr callee);
  CallArguments parse_arguments();
  void parse_argument(CallArguments& arguments);
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  // end: a name that ends the tuple ("in", "recursive"), besides the ends of tags and ")".
  ExpressionPtr parse_tuple(bool with_conditional = true, std::string_view end = "", bool parentheses = false);
  bool is_tuple_end(std::string_view end) const;
  // parse_one() for each of what commas separate, one of which may be the last, and then `end`.
  template <typename ParseOne>
  void parse_separated(std::string_view end, const ParseOne& parse_one) {
    for (bool first = true; !current().is_symbol(end); first = false) {
      if (!first) expect_symbol(",");
      if (current().is_symbol(end)) break;
      parse_one();
    }
    expect_symbol(end);
  }

  // Statements.
  Block parse_block(const std::vector<std::string>& ends);
  Statement parse_statement();
  void parse_if(Statement& statement);
  void parse_for(Statement& statement);
  void parse_set(Statement& statement);
  void parse_macro(Statement& statement);
  void parse_call_block(Statement& statement);
  void parse_with(Statement& statement);
  void parse_named_block(Statement& statement);
  void parse_load_other(Statement& statement);
  void parse_signature(MacroSyntax& macro);
  Target parse_target(bool with_namespace, std::string_view end = "");
  Target parse_one_target(bool with_namespace);
  Name parse_name_target();
  Block parse_body(const std::string& end);
  // Parses the body of a macro and finds which of the special names it uses.
  void parse_macro_body(MacroSyntax& macro, const std::string& end);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  std::vector<std::string> names_;
  std::map<std::string, Name> name_numbers_;
  std::vector<MacroSyntax*> open_macros_;
};

}  // namespace nibble::jinja
