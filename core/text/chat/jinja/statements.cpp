#include <algorithm>
#include <utility>

#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/interpreter.h"
#include "nibble/core/text/chat/jinja/loop.h"
#include "nibble/core/text/chat/jinja/operators.h"
#include "nibble/core/text/chat/jinja/values/objects.h"
#include "nibble/core/text/chat/jinja/values/print_value.h"
#include "nibble/core/text/chat/jinja/values/unicode_text.h"

namespace nibble::jinja {

// Gathers what is written while it lives.
class Interpreter::Capture {
 public:
  explicit Capture(Interpreter& interpreter) : interpreter_(interpreter), outer_(interpreter.out_) {
    interpreter_.out_ = &text_;
  }
  ~Capture() { interpreter_.out_ = outer_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// The text; writing goes on outside.
  std::string finish() {
    interpreter_.out_ = outer_;
    return std::move(text_);
  }

 private:
  Interpreter& interpreter_;
  std::string* outer_;
  std::string text_;
};

std::string Interpreter::run() {
  run_block(syntax_.body, root_);
  return std::move(text_);
}

void Interpreter::write(std::string_view text) {
  budget_.take(text.size());
  out_->append(text);
}

void Interpreter::write(const Value& value) {
  if (value.is_text() && (!autoescape_ || value.is_markup())) return write(std::string_view(value.as_text()));
  write(std::string_view(autoescape_ ? escape_html(str(value, budget_)) : str(value, budget_)));
}

void Interpreter::write_text(const Value& value) {
  if (!value.is_text()) throw Failure("sequence item 0: expected str instance, " + value.type() + " found");
  write(std::string_view(value.as_text()));
}

Interpreter::Flow Interpreter::run_block(const Block& block, const ScopePtr& scope) {
  for (const Statement& statement : block) {
    const Flow flow = run_statement(statement, scope);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::run_statement(const Statement& statement, const ScopePtr& scope) {
  budget_.step();
  budget_.check_stack();
  line_ = statement.line;
  switch (statement.kind) {
    case StatementKind::data:
      write(std::string_view(statement.text));
      return Flow::normal;
    case StatementKind::output:
      for (const ExpressionPtr& expression : statement.expressions) write(evaluate(*expression, scope));
      return Flow::normal;
    case StatementKind::condition:
      return run_condition(statement, scope);
    case StatementKind::loop: {
      const Value iterable = evaluate(*statement.expressions[0], scope);
      if (statement.recursive) {
        write_text(run_recursive_loop(statement, scope, iterable, 0));
        return Flow::normal;
      }
      return run_loop(statement, scope, iterable, 0);
    }
    case StatementKind::set:
      assign(statement.targets[0], evaluate(*statement.expressions[0], scope), scope);
      return Flow::normal;
    case StatementKind::set_block:
      return run_set_block(statement, scope);
    case StatementKind::macro:
      scope->set(statement.name, make_macro(*statement.macro, scope));
      return Flow::normal;
    case StatementKind::call_block:
      run_call_block(statement, scope);
      return Flow::normal;
    case StatementKind::filter:
      return run_filter_block(statement, scope);
    case StatementKind::with:
      return run_with(statement, scope);
    case StatementKind::generation:
      run_generation(statement, scope);
      return Flow::normal;
    case StatementKind::named_block:
      return run_block(statement.blocks[0], inside(statement.scoped ? scope : root_));
    case StatementKind::autoescape: {
      const bool outer = std::exchange(autoescape_, evaluate(*statement.expressions[0], scope).truth());
      const Flow flow = run_block(statement.blocks[0], inside(scope));
      autoescape_ = outer;  // an exception ends the rendering: nothing to restore
      return flow;
    }
    case StatementKind::break_loop:
      return Flow::break_loop;
    case StatementKind::continue_loop:
      return Flow::continue_loop;
    default:
      throw Failure("there is no other template to " + statement.text);
  }
}

Interpreter::Flow Interpreter::run_condition(const Statement& statement, const ScopePtr& scope) {
  for (size_t k = 0; k < statement.expressions.size(); ++k) {
    if (evaluate(*statement.expressions[k], scope).truth()) return run_block(statement.blocks[k], scope);
  }
  const bool has_else = statement.blocks.size() > statement.expressions.size();
  return has_else ? run_block(statement.blocks.back(), scope) : Flow::normal;
}

// The elements for which the loop's condition holds, found when they are asked for.
Next Interpreter::filtered(const Statement& loop, const ScopePtr& scope, Next next) {
  if (!loop.expressions[1]) return next;
  return [this, &loop, scope, next = std::move(next)](Value& element) {
    while (next(element)) {
      const ScopePtr test = inside(scope);
      assign(loop.targets[0], element, test);
      if (evaluate(*loop.expressions[1], test).truth()) return true;
    }
    return false;
  };
}

Interpreter::Flow Interpreter::run_loop(const Statement& statement, const ScopePtr& scope, const Value& iterable,
                                        int depth) {
  const Name name = find_name("loop");
  const bool lazy = statement.expressions[1] != nullptr;
  const auto loop =
      std::make_shared<Loop>(filtered(statement, scope, iterate(iterable)), lazy ? std::nullopt : length_of(iterable),
                             depth, statement.recursive ? &statement : nullptr, scope);
  struct Release {
    Loop& loop;
    ~Release() { loop.release(); }
  } const release{*loop};
  bool ran = false;
  while (loop->advance()) {
    budget_.step();
    const ScopePtr body = inside(scope);
    if (name >= 0) body->set(name, Value::object(loop));
    assign(statement.targets[0], loop->current(), body);
    const Flow flow = run_block(statement.blocks[0], body);
    if (flow == Flow::break_loop) break;
    ran |= flow == Flow::normal;  // an iteration that `continue` ends does not count against the else
  }
  if (ran || statement.blocks.size() < 2) return Flow::normal;
  return run_block(statement.blocks[1], inside(scope));
}

Value Interpreter::run_recursive_loop(const Statement& loop, const ScopePtr& scope, const Value& iterable, int depth) {
  if (++calls_ > Budget::kCalls) throw Failure("maximum recursion depth exceeded");
  Capture capture(*this);
  run_loop(loop, scope, iterable, depth);
  --calls_;
  return Value::text(capture.finish(), autoescape_);
}

Interpreter::Flow Interpreter::run_set_block(const Statement& statement, const ScopePtr& scope) {
  const ScopePtr body = inside(scope);
  Capture capture(*this);
  const Flow flow = run_block(statement.blocks[0], body);
  Value text = Value::text(capture.finish(), autoescape_);
  if (flow != Flow::normal) return flow;
  if (const Expression* filter = statement.expressions[0].get()) text = evaluate_filter(*filter, body, &text);
  assign(statement.targets[0], text, scope);
  return Flow::normal;
}

Interpreter::Flow Interpreter::run_filter_block(const Statement& statement, const ScopePtr& scope) {
  const ScopePtr body = inside(scope);
  Capture capture(*this);
  const Flow flow = run_block(statement.blocks[0], body);
  const Value text = Value::text(capture.finish(), autoescape_);
  if (flow == Flow::normal) write_text(evaluate_filter(*statement.expressions[0], body, &text));
  return flow;
}

Interpreter::Flow Interpreter::run_with(const Statement& statement, const ScopePtr& scope) {
  const ScopePtr body = inside(scope);
  for (size_t k = 0; k < statement.targets.size(); ++k)
    assign(statement.targets[k], evaluate(*statement.expressions[k], scope), body);
  return run_block(statement.blocks[0], body);
}

Value Interpreter::make_macro(const MacroSyntax& macro, const ScopePtr& scope) {
  budget_.take(256);
  if (kept_scopes_.empty() || kept_scopes_.back() != scope) kept_scopes_.push_back(scope);
  return Value::object(std::make_shared<Macro>(macro, scope));
}

void Interpreter::run_call_block(const Statement& statement, const ScopePtr& scope) {
  const Value caller = make_macro(*statement.macro, scope);
  const Expression& syntax = *statement.expressions[0];
  const Value callee = evaluate(*syntax.parts[0], scope);
  Arguments arguments = evaluate_arguments(syntax.arguments, scope);
  arguments.named.emplace_back("caller", caller);
  write_text(call(callee, std::move(arguments)));
}

void Interpreter::run_generation(const Statement& statement, const ScopePtr& scope) {
  counted_.end += count_code_points(std::string_view(text_).substr(counted_.begin));
  counted_.begin = text_.size();
  const TextSpan start = counted_;
  const Value body = run_macro(Macro(*statement.macro, scope), {});
  spans_.push_back(
      {{start.begin, start.begin + body.as_text().size()}, {start.end, start.end + count_code_points(body.as_text())}});
  write(body);
}

// Gives the parameters of a macro their values in `scope`, as jinja2.runtime.Macro does; returns those without one.
std::vector<const Parameter*> Interpreter::bind_parameters(const MacroSyntax& macro, Arguments& arguments,
                                                           const ScopePtr& scope) {
  const auto take_named = [&](std::string_view name) -> std::optional<Value> {
    budget_.read(arguments.named.size() * sizeof(Value));
    const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& argument) { return argument.first == name; });
    if (found == arguments.named.end()) return std::nullopt;
    Value value = std::move(found->second);
    arguments.named.erase(found);
    return value;
  };
  std::vector<const Parameter*> missing;
  const size_t count = std::min(arguments.positional.size(), macro.parameters.size());
  for (size_t k = 0; k < macro.parameters.size(); ++k) {
    const Parameter& parameter = macro.parameters[k];
    std::optional<Value> value = k < count ? std::move(arguments.positional[k]) : take_named(parameter.text);
    if (!value) missing.push_back(&parameter);
    scope->set(parameter.name,
               value ? std::move(*value) : Value::undefined("parameter '" + parameter.text + "' was not provided"));
  }
  if (macro.uses_caller) {
    std::optional<Value> caller = take_named("caller");
    scope->set(find_name("caller"), caller && !caller->is_none() ? *caller : Value::undefined("No caller defined"));
  }
  if (macro.uses_kwargs) {
    Dict named;
    for (auto& [name, value] : arguments.named) named.set(name, std::move(value));
    scope->set(find_name("kwargs"), Value::dict(std::move(named)));
  } else if (!arguments.named.empty()) {
    throw Failure("macro '" + macro.name + "' takes no keyword argument '" + arguments.named.front().first + "'");
  }
  if (macro.uses_varargs) {
    Items more(arguments.positional.begin() + static_cast<ptrdiff_t>(count), arguments.positional.end());
    scope->set(find_name("varargs"), Value::tuple(std::move(more)));
  } else if (arguments.positional.size() > count) {
    throw Failure("macro '" + macro.name + "' takes not more than " + std::to_string(count) + " argument(s)");
  }
  return missing;
}

Value Interpreter::run_macro(const Macro& macro, Arguments arguments) {
  if (++calls_ > Budget::kCalls) throw Failure("maximum recursion depth exceeded");
  const ScopePtr scope = inside(macro.scope());
  const std::vector<const Parameter*> missing = bind_parameters(macro.syntax(), arguments, scope);
  Capture capture(*this);
  for (const Parameter* parameter : missing) {
    if (parameter->otherwise) scope->set(parameter->name, evaluate(*parameter->otherwise, scope));
  }
  run_block(macro.syntax().body, scope);
  --calls_;
  return Value::text(capture.finish(), autoescape_);
}

void Interpreter::assign(const Target& target, const Value& value, const ScopePtr& scope) {
  if (target.kind == Target::Kind::name) return scope->set(target.name, value);
  if (target.kind == Target::Kind::attribute) {
    const Value* object = scope->find(target.name);
    if (!object) object = context_[static_cast<size_t>(target.name)];
    auto* space = object ? object->object_as<Namespace>() : nullptr;
    if (!space) throw Failure("cannot assign attribute on non-namespace object");
    return space->set(target.attribute, value);
  }
  const Items items = collect(value, budget_);
  if (items.size() != target.parts.size())
    throw Failure(items.size() < target.parts.size()
                      ? "not enough values to unpack (expected " + std::to_string(target.parts.size()) + ", got " +
                            std::to_string(items.size()) + ")"
                      : "too many values to unpack (expected " + std::to_string(target.parts.size()) + ")");
  for (size_t k = 0; k < items.size(); ++k) assign(target.parts[k], items[k], scope);
}

}  // namespace nibble::jinja
