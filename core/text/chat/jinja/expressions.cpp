#include <algorithm>

#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/filters/filters.h"
#include "nibble/core/text/chat/jinja/interpreter.h"
#include "nibble/core/text/chat/jinja/operators.h"
#include "nibble/core/text/chat/jinja/values/print_value.h"
#include "nibble/core/text/chat/jinja/values/unicode_text.h"

namespace nibble::jinja {

namespace {

bool holds(Comparison comparison, const Value& a, const Value& b, Budget& budget) {
  switch (comparison) {
    case Comparison::equal:
      return equal(a, b, budget);
    case Comparison::not_equal:
      return !equal(a, b, budget);
    case Comparison::less:
      return compare(a, b, budget, "<") == -1;
    case Comparison::less_equal: {
      const int order = compare(a, b, budget, "<=");
      return order == -1 || order == 0;
    }
    case Comparison::greater:
      return compare(a, b, budget, ">") == 1;
    case Comparison::greater_equal: {
      const int order = compare(a, b, budget, ">=");
      return order == 1 || order == 0;
    }
    case Comparison::in:
      return contains(b, a, budget);
    default:
      return !contains(b, a, budget);
  }
}

// Jinja computes constant expressions when it compiles, where a slice of what has none is undefined; at run time it
// leaves slices to Python, which raises.
bool is_constant(const Expression& expression) {
  switch (expression.kind) {
    case ExpressionKind::name:
    case ExpressionKind::attribute:
    case ExpressionKind::call:
    case ExpressionKind::filter:
    case ExpressionKind::test:
      return false;
    default:
      return std::all_of(expression.parts.begin(), expression.parts.end(),
                         [](const ExpressionPtr& part) { return !part || is_constant(*part); });
  }
}

}  // namespace

Value Interpreter::evaluate(const Expression& expression, const ScopePtr& scope) {
  budget_.step();
  budget_.check_stack();
  line_ = expression.line;
  const auto part = [&](size_t k) { return evaluate(*expression.parts[k], scope); };
  switch (expression.kind) {
    case ExpressionKind::constant:
      return expression.value;
    case ExpressionKind::name:
      return evaluate_name(expression, scope);
    case ExpressionKind::tuple:
    case ExpressionKind::list:
      return evaluate_items(expression, scope);
    case ExpressionKind::dict:
      return evaluate_dict(expression, scope);
    case ExpressionKind::negative:
      return negative(part(0));
    case ExpressionKind::positive:
      return positive(part(0));
    case ExpressionKind::arithmetic: {
      const Value left = part(0), right = part(1);
      return arithmetic(expression.text, left, right, budget_);
    }
    case ExpressionKind::concat:
      return evaluate_concat(expression, scope);
    case ExpressionKind::compare:
      return evaluate_compare(expression, scope);
    case ExpressionKind::conjunction: {
      Value left = part(0);
      return left.truth() ? part(1) : left;
    }
    case ExpressionKind::disjunction: {
      Value left = part(0);
      return left.truth() ? left : part(1);
    }
    case ExpressionKind::negation:
      return Value::boolean(!part(0).truth());
    case ExpressionKind::conditional:
      return evaluate_conditional(expression, scope);
    case ExpressionKind::attribute:
      return attribute(part(0), expression.text);
    case ExpressionKind::item:
      return evaluate_item(expression, scope);
    case ExpressionKind::slice:
      return Value::undefined("a slice by itself has no value");  // in a tuple of indices, which nothing here takes
    case ExpressionKind::call: {
      const Value callee = part(0);
      return call(callee, evaluate_arguments(expression.arguments, scope));
    }
    case ExpressionKind::filter:
      return evaluate_filter(expression, scope, nullptr);
    default: {
      const Value value = part(0);
      return Value::boolean(call_test(expression.text, value, evaluate_arguments(expression.arguments, scope)));
    }
  }
}

Value Interpreter::evaluate_name(const Expression& expression, const ScopePtr& scope) {
  if (const Value* value = scope->find(expression.name)) return *value;
  const auto name = static_cast<size_t>(expression.name);
  if (const Value* value = context_[name]) return *value;
  return Value::undefined("'" + syntax_.names[name] + "' is undefined");
}

Value Interpreter::evaluate_items(const Expression& expression, const ScopePtr& scope) {
  budget_.take(expression.parts.size() * sizeof(Value));
  Items items;
  items.reserve(expression.parts.size());
  for (const ExpressionPtr& part : expression.parts) items.push_back(evaluate(*part, scope));
  return expression.kind == ExpressionKind::list ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

Value Interpreter::evaluate_dict(const Expression& expression, const ScopePtr& scope) {
  budget_.take(expression.parts.size() * sizeof(Value));
  Dict dict;
  for (size_t k = 0; k + 1 < expression.parts.size(); k += 2) {
    Value key = evaluate(*expression.parts[k], scope);
    dict.set(std::move(key), evaluate(*expression.parts[k + 1], scope), budget_);
  }
  return Value::dict(std::move(dict));
}

Value Interpreter::evaluate_concat(const Expression& expression, const ScopePtr& scope) {
  Items items;
  bool markup = false;
  for (const ExpressionPtr& part : expression.parts) {
    items.push_back(evaluate(*part, scope));
    markup |= autoescape_ && items.back().is_markup();
  }
  std::string text;
  for (const Value& item : items) {
    const std::string one = str(item, budget_);
    budget_.grow(text, one.size());
    text += markup && !item.is_markup() ? escape_html(one) : one;
  }
  return Value::text(std::move(text), markup);
}

Value Interpreter::evaluate_compare(const Expression& expression, const ScopePtr& scope) {
  Value left = evaluate(*expression.parts[0], scope);
  for (size_t k = 0; k < expression.operators.size(); ++k) {
    Value right = evaluate(*expression.parts[k + 1], scope);
    if (!holds(expression.operators[k], left, right, budget_)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_conditional(const Expression& expression, const ScopePtr& scope) {
  if (evaluate(*expression.parts[0], scope).truth()) return evaluate(*expression.parts[1], scope);
  if (expression.parts[2]) return evaluate(*expression.parts[2], scope);
  return Value::undefined("the inline if-expression on line " + std::to_string(expression.line) +
                          " evaluated to false and no else section was defined.");
}

Value Interpreter::evaluate_item(const Expression& expression, const ScopePtr& scope) {
  const Value object = evaluate(*expression.parts[0], scope);
  const Expression& index = *expression.parts[1];
  if (index.kind != ExpressionKind::slice) return item(object, evaluate(index, scope));
  Value bounds[3];
  for (size_t k = 0; k < 3; ++k) {
    if (index.parts[k]) bounds[k] = evaluate(*index.parts[k], scope);
  }
  std::optional<Value> part = slice(object, bounds[0], bounds[1], bounds[2], budget_);
  if (!part && is_constant(expression)) return Value::undefined(object.type() + " object has no element slice");
  if (!part) {
    const bool bounds_are_wrong = object.is_text() || object.is_sequence();
    throw Failure(bounds_are_wrong ? "slice indices must be integers or None or have an __index__ method"
                                   : "'" + object.type() + "' object is not subscriptable");
  }
  budget_.take(part->is_text()       ? part->as_text().size()
               : part->is_sequence() ? part->items().size() * sizeof(Value)
                                     : 0);
  return std::move(*part);
}

Value Interpreter::evaluate_filter(const Expression& expression, const ScopePtr& scope, const Value* piped) {
  const Value value = expression.parts[0] ? expression.parts[0]->kind == ExpressionKind::filter
                                                ? evaluate_filter(*expression.parts[0], scope, piped)
                                                : evaluate(*expression.parts[0], scope)
                                          : *piped;
  budget_.check_stack();
  Arguments arguments = evaluate_arguments(expression.arguments, scope);
  line_ = expression.line;
  return call_filter(expression.text, value, std::move(arguments));
}

Arguments Interpreter::evaluate_arguments(const CallArguments& syntax, const ScopePtr& scope) {
  Arguments arguments;
  for (const ExpressionPtr& argument : syntax.positional) arguments.positional.push_back(evaluate(*argument, scope));
  for (const auto& [name, argument] : syntax.named) arguments.named.emplace_back(name, evaluate(*argument, scope));
  if (syntax.more_positional) {
    for (Value& value : collect(evaluate(*syntax.more_positional, scope), budget_))
      arguments.positional.push_back(std::move(value));
  }
  if (syntax.more_named) {
    const Value more = evaluate(*syntax.more_named, scope);
    if (!more.is(Kind::dict)) throw Failure("argument after ** must be a mapping, not " + more.type());
    for (const auto& [name, value] : more.as_dict().items()) {
      if (!name.is_text()) throw Failure("keywords must be strings");
      budget_.read(arguments.named.size() * sizeof(Value));
      for (const auto& [known, ignored] : arguments.named) {
        if (known == name.as_text()) throw Failure("got multiple values for keyword argument '" + known + "'");
      }
      arguments.named.emplace_back(name.as_text(), value);
    }
  }
  return arguments;
}

}  // namespace nibble::jinja
