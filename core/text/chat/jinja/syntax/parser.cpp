#include "nibble/core/text/chat/jinja/syntax/parser.h"

#include "nibble/core/text/chat/jinja/syntax/parser_state.h"

namespace nibble::jinja {

bool Parser::skip_symbol(std::string_view symbol) {
  if (!current().is_symbol(symbol)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  take();
  return true;
}

std::string Parser::describe() const {
  switch (current().kind) {
    case TokenKind::end:
      return "end of template";
    case TokenKind::variable_end:
      return "end of print statement";
    case TokenKind::block_end:
      return "end of statement block";
    case TokenKind::text:
      return "string";
    default:
      return "'" + current().text + "'";
  }
}

void Parser::expect_symbol(std::string_view symbol) {
  if (!skip_symbol(symbol)) fail("expected '" + std::string(symbol) + "', got " + describe());
}

std::string Parser::expect_name() {
  if (current().kind != TokenKind::name) fail("expected a name, got " + describe());
  return take().text;
}

void Parser::expect(TokenKind kind) {
  if (current().kind != kind)
    fail(std::string("expected end of ") + (kind == TokenKind::variable_end ? "print statement" : "statement block") +
         ", got " + describe());
  take();
}

Name Parser::intern(const std::string& name) {
  const auto [entry, added] = name_numbers_.emplace(name, static_cast<Name>(names_.size()));
  if (added) names_.push_back(name);
  return entry->second;
}

Syntax Parser::run() {
  Syntax syntax;
  syntax.body = parse_block({});
  syntax.names = std::move(names_);
  return syntax;
}

// Up to a statement whose name is among `ends`; that name is then the current token.
Block Parser::parse_block(const std::vector<std::string>& ends) {
  const Nested nested(*this);
  Block block;
  while (current().kind != TokenKind::end) {
    Statement statement;
    statement.line = current().line;
    const Token token = take();
    if (token.kind == TokenKind::data) {
      statement.text = token.text;
    } else if (token.kind == TokenKind::variable_begin) {
      statement.kind = StatementKind::output;
      statement.expressions.push_back(parse_tuple());
      expect(TokenKind::variable_end);
    } else {
      const auto is_end = [&](const std::string& end) { return current().is_name(end); };
      if (std::any_of(ends.begin(), ends.end(), is_end)) return block;
      statement = parse_statement();
      expect(TokenKind::block_end);
    }
    block.push_back(std::move(statement));
  }
  if (!ends.empty())
    fail("Unexpected end of template. Jinja was looking for the following tags: '" + ends.back() + "'");
  return block;
}

// ":" may stand before the end of a statement, as in Python.
Block Parser::parse_body(const std::string& end) {
  skip_symbol(":");
  expect(TokenKind::block_end);
  Block block = parse_block({end});
  take();
  return block;
}

Statement Parser::parse_statement() {
  Statement statement;
  statement.line = current().line;
  if (current().kind != TokenKind::name) fail("tag name expected");
  const std::string tag = take().text;
  if (tag == "if") {
    parse_if(statement);
  } else if (tag == "for") {
    parse_for(statement);
  } else if (tag == "set") {
    parse_set(statement);
  } else if (tag == "macro") {
    parse_macro(statement);
  } else if (tag == "call") {
    parse_call_block(statement);
  } else if (tag == "with") {
    parse_with(statement);
  } else if (tag == "print") {
    statement.kind = StatementKind::output;
    while (current().kind != TokenKind::block_end) {
      if (!statement.expressions.empty()) expect_symbol(",");
      statement.expressions.push_back(parse_expression());
    }
  } else if (tag == "filter") {
    statement.kind = StatementKind::filter;
    statement.expressions.push_back(parse_filters(nullptr, true));
    statement.blocks.push_back(parse_body("endfilter"));
  } else if (tag == "generation") {
    statement.kind = StatementKind::generation;
    statement.macro = std::make_unique<MacroSyntax>();
    parse_macro_body(*statement.macro, "endgeneration");
  } else if (tag == "autoescape") {
    statement.kind = StatementKind::autoescape;
    statement.expressions.push_back(parse_expression());
    statement.blocks.push_back(parse_body("endautoescape"));
  } else if (tag == "break" || tag == "continue") {
    statement.kind = tag == "break" ? StatementKind::break_loop : StatementKind::continue_loop;
  } else if (tag == "block") {
    parse_named_block(statement);
  } else if (tag == "include" || tag == "import" || tag == "from" || tag == "extends") {
    statement.text = tag;
    parse_load_other(statement);
  } else {
    fail("Encountered unknown tag '" + tag + "'.");
  }
  return statement;
}

void Parser::parse_if(Statement& statement) {
  statement.kind = StatementKind::condition;
  while (true) {
    statement.expressions.push_back(parse_tuple(false));
    skip_symbol(":");
    expect(TokenKind::block_end);
    statement.blocks.push_back(parse_block({"elif", "else", "endif"}));
    const std::string end = take().text;
    if (end == "elif") continue;
    if (end == "else") statement.blocks.push_back(parse_body("endif"));
    return;
  }
}

void Parser::parse_for(Statement& statement) {
  statement.kind = StatementKind::loop;
  statement.targets.push_back(parse_target(false, "in"));
  if (!skip_name("in")) fail("expected 'in', got " + describe());
  statement.expressions.push_back(parse_tuple(false, "recursive"));
  statement.expressions.push_back(skip_name("if") ? parse_expression() : nullptr);
  statement.recursive = skip_name("recursive");
  skip_symbol(":");
  expect(TokenKind::block_end);
  statement.blocks.push_back(parse_block({"endfor", "else"}));
  if (take().text == "else") statement.blocks.push_back(parse_body("endfor"));
}

void Parser::parse_set(Statement& statement) {
  statement.targets.push_back(parse_target(true));
  if (skip_symbol("=")) {
    statement.kind = StatementKind::set;
    statement.expressions.push_back(parse_tuple());
    return;
  }
  statement.kind = StatementKind::set_block;
  statement.expressions.push_back(parse_filters(nullptr));
  statement.blocks.push_back(parse_body("endset"));
}

void Parser::parse_macro(Statement& statement) {
  statement.kind = StatementKind::macro;
  statement.macro = std::make_unique<MacroSyntax>();
  statement.macro->name = current().text;
  statement.name = parse_name_target();
  parse_signature(*statement.macro);
  parse_macro_body(*statement.macro, "endmacro");
}

void Parser::parse_call_block(Statement& statement) {
  statement.kind = StatementKind::call_block;
  statement.macro = std::make_unique<MacroSyntax>();
  statement.macro->name.clear();  // None in Python
  if (current().is_symbol("(")) parse_signature(*statement.macro);
  statement.expressions.push_back(parse_expression());
  if (statement.expressions.back()->kind != ExpressionKind::call) fail("expected call");
  parse_macro_body(*statement.macro, "endcall");
}

void Parser::parse_with(Statement& statement) {
  statement.kind = StatementKind::with;
  while (current().kind != TokenKind::block_end) {
    if (!statement.targets.empty()) expect_symbol(",");
    statement.targets.push_back(parse_target(false));
    expect_symbol("=");
    statement.expressions.push_back(parse_expression());
  }
  statement.blocks.push_back(parse_body("endwith"));
}

void Parser::parse_named_block(Statement& statement) {
  statement.kind = StatementKind::named_block;
  statement.text = expect_name();
  statement.scoped = skip_name("scoped");
  const bool required = skip_name("required");
  statement.blocks.push_back(parse_body("endblock"));
  skip_name(statement.text);
  if (required) fail("a required block has no other template to fill it");
}

// There is no other template to load: Jinja2 parses these and fails when they are reached.
void Parser::parse_load_other(Statement& statement) {
  statement.kind = StatementKind::load_other;
  statement.expressions.push_back(parse_expression());
  while (current().kind != TokenKind::block_end && current().kind != TokenKind::end) take();
}

void Parser::parse_signature(MacroSyntax& macro) {
  expect_symbol("(");
  while (!current().is_symbol(")")) {
    if (!macro.parameters.empty()) expect_symbol(",");
    Parameter parameter;
    parameter.text = current().text;
    parameter.name = parse_name_target();
    if (skip_symbol("=")) {
      parameter.otherwise = parse_expression();
    } else if (!macro.parameters.empty() && macro.parameters.back().otherwise) {
      fail("non-default argument follows default argument");
    }
    for (const Parameter& known : macro.parameters) {
      if (known.name == parameter.name) fail("duplicate argument '" + parameter.text + "' in macro definition");
    }
    macro.parameters.push_back(std::move(parameter));
  }
  expect_symbol(")");
}

void Parser::parse_macro_body(MacroSyntax& macro, const std::string& end) {
  open_macros_.push_back(&macro);
  macro.body = parse_body(end);
  open_macros_.pop_back();
  for (const Parameter& parameter : macro.parameters) {
    if (parameter.text == "kwargs") macro.uses_kwargs = false;
    if (parameter.text == "varargs") macro.uses_varargs = false;
    if (parameter.text != "caller" || !macro.uses_caller) continue;
    if (!parameter.otherwise)
      fail(
          "When defining macros or call blocks the special \"caller\" argument must be omitted or be given a default.");
    macro.uses_caller = false;  // an ordinary parameter then
  }
}

Name Parser::parse_name_target() {
  const std::string name = expect_name();
  for (const std::string_view constant : {"true", "True", "false", "False", "none", "None"}) {
    if (name == constant) fail("can't assign to '" + name + "'");
  }
  return intern(name);
}

Target Parser::parse_one_target(bool with_namespace) {
  const Nested nested(*this);
  if (skip_symbol("(")) {
    Target target = parse_target(with_namespace);
    expect_symbol(")");
    return target;
  }
  Target target;
  target.name = parse_name_target();
  if (with_namespace && skip_symbol(".")) {
    target.kind = Target::Kind::attribute;
    target.attribute = expect_name();
  }
  return target;
}

Target Parser::parse_target(bool with_namespace, std::string_view end) {
  Target tuple;
  tuple.kind = Target::Kind::tuple;
  bool comma = false;
  while (!is_tuple_end(end)) {
    tuple.parts.push_back(parse_one_target(with_namespace));
    if (!skip_symbol(",")) break;
    comma = true;
  }
  if (tuple.parts.empty()) fail("Expected an expression, got " + describe());
  return comma ? std::move(tuple) : std::move(tuple.parts.front());
}

Syntax parse_template(std::string_view source) {
  Syntax syntax = Parser(source).run();
  check_syntax(syntax);
  return syntax;
}

}  // namespace nibble::jinja
