#include <array>

#include "nibble/core/text/chat/jinja/syntax/parser_state.h"

namespace nibble::jinja {

ExpressionPtr Parser::make(ExpressionKind kind, int line, std::vector<ExpressionPtr> parts, std::string text) {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  node->text = std::move(text);
  for (const ExpressionPtr& part : parts) node->depth = std::max(node->depth, part ? part->depth + 1 : 1);
  if (node->depth > kMaxTreeDepth) fail("the expression is too long");
  node->parts = std::move(parts);
  return node;
}

namespace {

template <typename... Parts>
std::vector<ExpressionPtr> parts_of(Parts... parts) {
  std::vector<ExpressionPtr> all;
  (all.push_back(std::move(parts)), ...);
  return all;
}

}  // namespace

ExpressionPtr Parser::parse_expression(bool with_conditional) {
  const Nested nested(*this);
  return with_conditional ? parse_conditional() : parse_or();
}

ExpressionPtr Parser::parse_conditional() {
  const Nested nested(*this);
  const int line = current().line;
  ExpressionPtr node = parse_or();
  while (skip_name("if")) {
    ExpressionPtr condition = parse_or();
    ExpressionPtr otherwise = skip_name("else") ? parse_conditional() : nullptr;
    node =
        make(ExpressionKind::conditional, line, parts_of(std::move(condition), std::move(node), std::move(otherwise)));
  }
  return node;
}

ExpressionPtr Parser::parse_or() {
  const int line = current().line;
  ExpressionPtr node = parse_and();
  while (skip_name("or")) node = make(ExpressionKind::disjunction, line, parts_of(std::move(node), parse_and()));
  return node;
}

ExpressionPtr Parser::parse_and() {
  const int line = current().line;
  ExpressionPtr node = parse_not();
  while (skip_name("and")) node = make(ExpressionKind::conjunction, line, parts_of(std::move(node), parse_not()));
  return node;
}

ExpressionPtr Parser::parse_not() {
  const Nested nested(*this);
  const int line = current().line;
  if (skip_name("not")) return make(ExpressionKind::negation, line, parts_of(parse_not()));
  return parse_compare();
}

ExpressionPtr Parser::parse_compare() {
  constexpr std::array<std::pair<std::string_view, Comparison>, 6> kSymbols = {{{"==", Comparison::equal},
                                                                                {"!=", Comparison::not_equal},
                                                                                {"<", Comparison::less},
                                                                                {"<=", Comparison::less_equal},
                                                                                {">", Comparison::greater},
                                                                                {">=", Comparison::greater_equal}}};
  const int line = current().line;
  std::vector<ExpressionPtr> parts = parts_of(parse_sum());
  std::vector<Comparison> operators;
  while (true) {
    const auto* symbol = std::find_if(kSymbols.begin(), kSymbols.end(),
                                      [&](const auto& entry) { return current().is_symbol(entry.first); });
    if (symbol != kSymbols.end()) {
      take();
      operators.push_back(symbol->second);
    } else if (skip_name("in")) {
      operators.push_back(Comparison::in);
    } else if (current().is_name("not") && look().is_name("in")) {
      take();
      take();
      operators.push_back(Comparison::not_in);
    } else {
      break;
    }
    parts.push_back(parse_sum());
  }
  if (operators.empty()) return std::move(parts.front());
  ExpressionPtr node = make(ExpressionKind::compare, line, std::move(parts));
  node->operators = std::move(operators);
  return node;
}

ExpressionPtr Parser::parse_sum() {
  ExpressionPtr node = parse_concat();
  while (current().is_symbol("+") || current().is_symbol("-")) {
    const Token symbol = take();
    node = make(ExpressionKind::arithmetic, symbol.line, parts_of(std::move(node), parse_concat()), symbol.text);
  }
  return node;
}

ExpressionPtr Parser::parse_concat() {
  const int line = current().line;
  std::vector<ExpressionPtr> parts = parts_of(parse_product());
  while (skip_symbol("~")) parts.push_back(parse_product());
  return parts.size() == 1 ? std::move(parts.front()) : make(ExpressionKind::concat, line, std::move(parts));
}

ExpressionPtr Parser::parse_product() {
  ExpressionPtr node = parse_power();
  while (current().is_symbol("*") || current().is_symbol("/") || current().is_symbol("//") ||
         current().is_symbol("%")) {
    const Token symbol = take();
    node = make(ExpressionKind::arithmetic, symbol.line, parts_of(std::move(node), parse_power()), symbol.text);
  }
  return node;
}

ExpressionPtr Parser::parse_power() {
  ExpressionPtr node = parse_unary();
  while (current().is_symbol("**")) {
    const int line = take().line;
    node = make(ExpressionKind::arithmetic, line, parts_of(std::move(node), parse_unary()), "**");
  }
  return node;
}

ExpressionPtr Parser::parse_unary(bool with_filter) {
  const Nested nested(*this);
  const int line = current().line;
  ExpressionPtr node;
  if (skip_symbol("-")) {
    node = make(ExpressionKind::negative, line, parts_of(parse_unary(false)));
  } else if (skip_symbol("+")) {
    node = make(ExpressionKind::positive, line, parts_of(parse_unary(false)));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPtr Parser::parse_primary() {
  const int line = current().line;
  ExpressionPtr node = make(ExpressionKind::constant, line);
  if (current().kind == TokenKind::name) {
    const std::string name = take().text;
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      node->value = Value::boolean(name[0] == 't' || name[0] == 'T');
    } else if (name != "none" && name != "None") {
      node->kind = ExpressionKind::name;
      node->name = intern(name);
      for (MacroSyntax* macro : open_macros_) {
        macro->uses_caller |= name == "caller";
        macro->uses_kwargs |= name == "kwargs";
        macro->uses_varargs |= name == "varargs";
      }
    }
  } else if (current().kind == TokenKind::text) {
    std::string text;
    while (current().kind == TokenKind::text) text += take().text;
    node->value = Value::text(std::move(text));
  } else if (current().kind == TokenKind::number) {
    node->value = take().number;
  } else if (skip_symbol("(")) {
    node = parse_tuple(true, "", true);
    expect_symbol(")");
  } else if (current().is_symbol("[")) {
    node = parse_list();
  } else if (current().is_symbol("{")) {
    node = parse_dict();
  } else {
    fail("unexpected " + describe());
  }
  return node;
}

bool Parser::is_tuple_end(std::string_view end) const {
  const Token& token = current();
  return token.kind == TokenKind::variable_end || token.kind == TokenKind::block_end || token.is_symbol(")") ||
         (!end.empty() && token.is_name(end));
}

ExpressionPtr Parser::parse_tuple(bool with_conditional, std::string_view end, bool parentheses) {
  const int line = current().line;
  std::vector<ExpressionPtr> parts;
  bool is_tuple = false;
  while (true) {
    if (!parts.empty()) expect_symbol(",");
    if (is_tuple_end(end)) break;
    parts.push_back(parse_expression(with_conditional));
    if (!current().is_symbol(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !parts.empty()) return std::move(parts.front());
  if (!is_tuple && !parentheses) fail("Expected an expression, got " + describe());
  return make(ExpressionKind::tuple, line, std::move(parts));
}

ExpressionPtr Parser::parse_list() {
  const int line = take().line;
  std::vector<ExpressionPtr> parts;
  parse_separated("]", [&] { parts.push_back(parse_expression()); });
  return make(ExpressionKind::list, line, std::move(parts));
}

ExpressionPtr Parser::parse_dict() {
  const int line = take().line;
  std::vector<ExpressionPtr> parts;
  parse_separated("}", [&] {
    parts.push_back(parse_expression());
    expect_symbol(":");
    parts.push_back(parse_expression());
  });
  return make(ExpressionKind::dict, line, std::move(parts));
}

ExpressionPtr Parser::parse_postfix(ExpressionPtr node) {
  while (true) {
    if (current().is_symbol(".") || current().is_symbol("[")) {
      node = parse_subscript(std::move(node));
    } else if (current().is_symbol("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::parse_filters_and_tests(ExpressionPtr node) {
  while (true) {
    if (current().is_symbol("|")) {
      node = parse_filters(std::move(node));
    } else if (current().is_name("is")) {
      node = parse_test(std::move(node));
    } else if (current().is_symbol("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::parse_filters(ExpressionPtr node, bool starts_inline) {
  while (starts_inline || skip_symbol("|")) {
    starts_inline = false;
    const int line = current().line;
    std::string name = expect_name();
    while (skip_symbol(".")) name += "." + expect_name();
    CallArguments arguments;
    if (current().is_symbol("(")) arguments = parse_arguments();
    node = make(ExpressionKind::filter, line, parts_of(std::move(node)), std::move(name));
    node->arguments = std::move(arguments);
  }
  return node;
}

ExpressionPtr Parser::parse_test(ExpressionPtr node) {
  const Nested nested(*this);
  const int line = take().line;
  const bool negated = skip_name("not");
  std::string name = expect_name();
  while (skip_symbol(".")) name += "." + expect_name();
  CallArguments arguments;
  const Token& next = current();
  if (next.is_symbol("(")) {
    arguments = parse_arguments();
  } else if ((next.kind == TokenKind::name || next.kind == TokenKind::text || next.kind == TokenKind::number ||
              next.is_symbol("[") || next.is_symbol("{")) &&
             !next.is_name("else") && !next.is_name("or") && !next.is_name("and")) {
    if (next.is_name("is")) fail("You cannot chain multiple tests with is");
    arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  node = make(ExpressionKind::test, line, parts_of(std::move(node)), std::move(name));
  node->arguments = std::move(arguments);
  return negated ? make(ExpressionKind::negation, line, parts_of(std::move(node))) : std::move(node);
}

ExpressionPtr Parser::parse_subscript(ExpressionPtr node) {
  const int line = current().line;
  if (skip_symbol(".")) {
    const Token member = take();
    if (member.kind == TokenKind::name)
      return make(ExpressionKind::attribute, line, parts_of(std::move(node)), member.text);
    if (member.kind != TokenKind::number || !member.number.is(Kind::integer)) fail("expected name or number");
    ExpressionPtr index = make(ExpressionKind::constant, line);
    index->value = member.number;
    return make(ExpressionKind::item, line, parts_of(std::move(node), std::move(index)));
  }
  take();
  std::vector<ExpressionPtr> indices;
  while (!current().is_symbol("]")) {
    if (!indices.empty()) expect_symbol(",");
    indices.push_back(parse_subscribed());
  }
  expect_symbol("]");
  ExpressionPtr index =
      indices.size() == 1 ? std::move(indices.front()) : make(ExpressionKind::tuple, line, std::move(indices));
  return make(ExpressionKind::item, line, parts_of(std::move(node), std::move(index)));
}

ExpressionPtr Parser::parse_subscribed() {
  const int line = current().line;
  ExpressionPtr begin, end, step;
  if (!current().is_symbol(":")) {
    begin = parse_expression();
    if (!current().is_symbol(":")) return begin;
  }
  take();
  const auto ends = [&] { return current().is_symbol("]") || current().is_symbol(","); };
  if (!current().is_symbol(":") && !ends()) end = parse_expression();
  if (skip_symbol(":") && !ends()) step = parse_expression();
  return make(ExpressionKind::slice, line, parts_of(std::move(begin), std::move(end), std::move(step)));
}

ExpressionPtr Parser::parse_call(ExpressionPtr callee) {
  const int line = current().line;
  CallArguments arguments = parse_arguments();
  ExpressionPtr node = make(ExpressionKind::call, line, parts_of(std::move(callee)));
  node->arguments = std::move(arguments);
  return node;
}

CallArguments Parser::parse_arguments() {
  const Nested nested(*this);
  CallArguments arguments;
  expect_symbol("(");
  parse_separated(")", [&] { parse_argument(arguments); });
  return arguments;
}

void Parser::parse_argument(CallArguments& arguments) {
  const auto ensure = [&](bool right) {
    if (!right) fail("invalid syntax for function call expression");
  };
  if (skip_symbol("*")) {
    ensure(!arguments.more_positional && !arguments.more_named);
    arguments.more_positional = parse_expression();
  } else if (skip_symbol("**")) {
    ensure(!arguments.more_named);
    arguments.more_named = parse_expression();
  } else if (current().kind == TokenKind::name && look().is_symbol("=")) {
    ensure(!arguments.more_named);
    std::string name = take().text;
    take();
    for (const auto& [known, value] : arguments.named) {
      if (known == name) fail("keyword argument repeated: " + name);
    }
    arguments.named.emplace_back(std::move(name), parse_expression());
  } else {
    ensure(!arguments.more_positional && !arguments.more_named && arguments.named.empty());
    arguments.positional.push_back(parse_expression());
  }
}

}  // namespace nibble::jinja
