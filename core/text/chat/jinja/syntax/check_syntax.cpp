#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/filters/filters.h"
#include "nibble/core/text/chat/jinja/syntax/parser.h"

namespace nibble::jinja {

namespace {

// An unknown filter or test is an error when a template is compiled, except directly inside an `if`, where it is one
// when it is reached: Jinja2's soft frames.
class Checker {
 public:
  explicit Checker(const Syntax& syntax) : syntax_(syntax) {}

  void check(const Block& block, bool soft) {
    for (const Statement& statement : block) check(statement, soft);
  }

 private:
  void check(const Statement& statement, bool soft) {
    switch (statement.kind) {
      case StatementKind::condition:
        for (const ExpressionPtr& expression : statement.expressions) check(expression.get(), true, statement.line);
        for (const Block& block : statement.blocks) check(block, true);
        return;
      case StatementKind::loop:
        check_loop(statement, soft);
        return;
      case StatementKind::macro:
      case StatementKind::generation:
        check_macro(*statement.macro);
        return;
      case StatementKind::call_block:
        check(statement.expressions[0].get(), soft, statement.line);
        check_macro(*statement.macro);
        return;
      case StatementKind::break_loop:
      case StatementKind::continue_loop:
        if (!breaks_) throw SyntaxFailure("break and continue stand outside of a loop", statement.line);
        return;
      case StatementKind::set_block:
      case StatementKind::filter:
        check_target(statement);
        check(statement.expressions[0].get(), false, statement.line);
        check(statement.blocks[0], false);
        return;
      case StatementKind::named_block: {
        const bool breaks = std::exchange(breaks_, false);
        check(statement.blocks[0], false);
        breaks_ = breaks;
        return;
      }
      default:
        check_target(statement);
        for (const ExpressionPtr& expression : statement.expressions) check(expression.get(), soft, statement.line);
        for (const Block& block : statement.blocks) check(block, false);
    }
  }

  void check_loop(const Statement& loop, bool soft) {
    const bool breaks = std::exchange(breaks_, true), inside = std::exchange(inside_loop_, true);
    check_target(loop);
    check(loop.expressions[0].get(), soft, loop.line);
    check(loop.expressions[1].get(), false, loop.line);
    check(loop.blocks[0], false);
    breaks_ = breaks;
    if (loop.blocks.size() > 1) check(loop.blocks[1], false);
    inside_loop_ = inside;
  }

  void check_macro(const MacroSyntax& macro) {
    const bool breaks = std::exchange(breaks_, false);
    for (const Parameter& parameter : macro.parameters) check(parameter.otherwise.get(), false, 0);
    check(macro.body, false);
    breaks_ = breaks;
  }

  void check_target(const Statement& statement) const {
    for (const Target& target : statement.targets) check_target(target, statement.line);
  }

  void check_target(const Target& target, int line) const {
    if (inside_loop_ && target.kind == Target::Kind::name && syntax_.names[static_cast<size_t>(target.name)] == "loop")
      throw SyntaxFailure("Can't assign to special loop variable in for-loop target", line);
    for (const Target& part : target.parts) check_target(part, line);
  }

  void check(const Expression* expression, bool soft, int line) {
    if (!expression) return;
    soft |= expression->kind == ExpressionKind::conditional;
    if (expression->kind == ExpressionKind::filter && !soft && !find_filter(expression->text))
      throw SyntaxFailure("No filter named '" + expression->text + "'.", expression->line);
    if (expression->kind == ExpressionKind::test && !soft && !find_test(expression->text))
      throw SyntaxFailure("No test named '" + expression->text + "'.", expression->line);
    for (const ExpressionPtr& part : expression->parts) check(part.get(), soft, line);
    for (const ExpressionPtr& argument : expression->arguments.positional) check(argument.get(), soft, line);
    for (const auto& [name, argument] : expression->arguments.named) check(argument.get(), soft, line);
    check(expression->arguments.more_positional.get(), soft, line);
    check(expression->arguments.more_named.get(), soft, line);
  }

  const Syntax& syntax_;
  bool breaks_ = false;       // break and continue have a loop here
  bool inside_loop_ = false;  // also in macros inside it
};

}  // namespace

void check_syntax(const Syntax& syntax) { Checker(syntax).check(syntax.body, false); }

}  // namespace nibble::jinja
