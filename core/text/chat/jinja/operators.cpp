#include "nibble/core/text/chat/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/text/chat/jinja/arguments.h"
#include "nibble/core/text/chat/jinja/values/objects.h"
#include "nibble/core/text/chat/jinja/values/print_value.h"
#include "nibble/core/text/chat/jinja/values/split_lines.h"
#include "nibble/core/text/chat/jinja/values/unicode_text.h"

namespace nibble::jinja {

namespace {

[[noreturn]] void unsupported(std::string_view symbol, const Value& a, const Value& b) {
  throw Failure("unsupported operand type(s) for " + std::string(symbol) + ": '" + a.type() + "' and '" + b.type() +
                "'");
}

Value float_result(double value) { return Value::floating(value); }

Value float_modulo(double a, double b) {
  if (b == 0) throw Failure("float modulo");
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (rest == 0) rest = std::copysign(0.0, b);
  return float_result(rest);
}

// As CPython's float_floor_div.
Value float_floor_divide(double a, double b) {
  if (b == 0) throw Failure("float floor division by zero");
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return float_result(std::copysign(0.0, a / b));
  double floor = std::floor(quotient);
  if (quotient - floor > 0.5) floor += 1;
  return float_result(floor);
}

Value power(const Value& a, const Value& b) {
  if (a.is_index() && b.is_index() && !b.as_integer().is_negative())
    return Value::integer(a.as_integer().power(b.as_integer()));
  const double x = to_double(a), y = to_double(b);
  if (x == 0 && y < 0) throw Failure("0.0 cannot be raised to a negative power");
  if (x < 0 && std::isfinite(x) && std::isfinite(y) && y != std::trunc(y))
    throw Failure("complex numbers are not known here");
  const double result = std::pow(x, y);
  if (std::isinf(result) && std::isfinite(x) && std::isfinite(y)) throw Failure("Numerical result out of range");
  return float_result(result);
}

double checked_double(const Value& value) {
  const double number = to_double(value);
  if (value.is_index() && std::isinf(number)) throw Failure("int too large to convert to float");
  return number;
}

Value divide_numbers(const Value& a, const Value& b) {
  const double divisor = checked_double(b);
  if (divisor == 0) throw Failure("division by zero");
  return float_result(checked_double(a) / divisor);
}

Value on_numbers(std::string_view symbol, const Value& a, const Value& b) {
  if (symbol == "/") return divide_numbers(a, b);
  if (symbol == "**") return power(a, b);
  if (a.is_index() && b.is_index()) {
    const Integer x = a.as_integer(), y = b.as_integer();
    if (symbol == "+") return Value::integer(x + y);
    if (symbol == "-") return Value::integer(x - y);
    if (symbol == "*") return Value::integer(x * y);
    Integer quotient, rest;
    Integer::divide(x, y, quotient, rest);
    return Value::integer(symbol == "//" ? quotient : rest);
  }
  const double x = checked_double(a), y = checked_double(b);
  if (symbol == "+") return float_result(x + y);
  if (symbol == "-") return float_result(x - y);
  if (symbol == "*") return float_result(x * y);
  return symbol == "//" ? float_floor_divide(x, y) : float_modulo(x, y);
}

Value add(const Value& a, const Value& b, Budget& budget) {
  if (a.is_text() && b.is_text()) {
    budget.take(a.as_text().size() + b.as_text().size());
    if (a.is_markup() == b.is_markup()) return Value::text(a.as_text() + b.as_text(), a.is_markup());
    return Value::text((a.is_markup() ? a.as_text() : escape_html(a.as_text())) +
                           (b.is_markup() ? b.as_text() : escape_html(b.as_text())),
                       true);
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    budget.take((a.items().size() + b.items().size()) * sizeof(Value));
    Items items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return a.is(Kind::list) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
  }
  if (a.is_text()) throw Failure("can only concatenate str (not \"" + b.type() + "\") to str");
  if (a.is_sequence()) throw Failure("can only concatenate " + a.type() + " (not \"" + b.type() + "\") to " + a.type());
  unsupported("+", a, b);
}

Value repeat(const Value& what, const Value& times, Budget& budget) {
  const auto count = static_cast<size_t>(std::max<int64_t>(0, to_index(times)));
  const size_t size = what.is_text() ? what.as_text().size() : what.items().size() * sizeof(Value);
  if (size > 0 && count > Budget::kLargest / size) budget.take(Budget::kLargest + 1);
  budget.take(size * count);
  if (what.is_text()) {
    std::string text;
    text.reserve(size * count);
    for (size_t k = 0; k < count && size > 0; ++k) text += what.as_text();
    return Value::text(std::move(text), what.is_markup());
  }
  Items items;
  for (size_t k = 0; k < count && size > 0; ++k) items.insert(items.end(), what.items().begin(), what.items().end());
  return what.is(Kind::list) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

// Python's PySlice_AdjustIndices.
struct Bounds {
  int64_t start = 0, stop = 0, step = 1;
  size_t count = 0;
};

Bounds adjust(const Value& begin, const Value& end, const Value& step_value, size_t size) {
  const auto length = static_cast<int64_t>(size);
  const auto clamped = [](const Value& value) {  // large numbers count as far outside
    const std::optional<int64_t> small = value.as_integer().small();
    return small ? *small : value.as_integer().is_negative() ? INT64_MIN / 2 : INT64_MAX / 2;
  };
  const int64_t step = step_value.is_none() ? 1 : std::clamp(clamped(step_value), -(INT64_MAX / 2), INT64_MAX / 2);
  if (step == 0) throw Failure("slice step cannot be zero");
  const auto place = [&](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    const int64_t index = std::clamp(clamped(value), INT64_MIN / 2, INT64_MAX / 2);
    if (index < 0) return std::max(index + length, step < 0 ? int64_t{-1} : int64_t{0});
    return std::min(index, step < 0 ? length - 1 : length);
  };
  const int64_t start = place(begin, step < 0 ? length - 1 : 0);
  const int64_t stop = place(end, step < 0 ? -1 : length);
  Bounds bounds{start, stop, step, 0};
  if (step > 0 && start < stop) bounds.count = static_cast<size_t>((stop - start - 1) / step + 1);
  if (step < 0 && stop < start) bounds.count = static_cast<size_t>((start - stop - 1) / -step + 1);
  return bounds;
}

template <typename Text>
Text picked(const Text& text, const Bounds& bounds) {
  if (bounds.step == 1) return text.substr(static_cast<size_t>(bounds.start), bounds.count);
  Text result;
  for (size_t k = 0; k < bounds.count; ++k)
    result += text[static_cast<size_t>(bounds.start + static_cast<int64_t>(k) * bounds.step)];
  return result;
}

}  // namespace

Value arithmetic(std::string_view symbol, const Value& a, const Value& b, Budget& budget) {
  if (a.is_undefined()) throw Failure(a.undefined_message());
  if (symbol == "%" && a.is_text()) return Value::text(format_percent(a.as_text(), b, budget), a.is_markup());
  if (b.is_undefined()) throw Failure(b.undefined_message());
  if (a.is_number() && b.is_number()) return on_numbers(symbol, a, b);
  if (symbol == "+") return add(a, b, budget);
  if (symbol == "*") {
    if ((a.is_text() || a.is_sequence()) && b.is_index()) return repeat(a, b, budget);
    if ((b.is_text() || b.is_sequence()) && a.is_index()) return repeat(b, a, budget);
    if (a.is_text() || a.is_sequence()) throw Failure("can't multiply sequence by non-int of type '" + b.type() + "'");
  }
  unsupported(symbol == "**" ? "** or pow()" : symbol, a, b);
}

Value negative(const Value& value) {
  if (value.is_index()) return Value::integer(value.as_integer().negated());
  if (value.is(Kind::floating)) return Value::floating(-value.as_floating());
  if (value.is_undefined()) throw Failure(value.undefined_message());
  throw Failure("bad operand type for unary -: '" + value.type() + "'");
}

Value positive(const Value& value) {
  if (value.is_index()) return Value::integer(value.as_integer());
  if (value.is(Kind::floating)) return value;
  if (value.is_undefined()) throw Failure(value.undefined_message());
  throw Failure("bad operand type for unary +: '" + value.type() + "'");
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  const auto is_item = [&](const Value& element) { return equal(element, item, budget); };
  switch (container.kind()) {
    case Kind::text:
      if (!item.is_text()) throw Failure("'in <string>' requires string as left operand, not " + item.type());
      budget.read(container.as_text().size());
      return find_text(container.as_text(), item.as_text()) != std::string::npos;
    case Kind::list:
    case Kind::tuple:
      return std::any_of(container.items().begin(), container.items().end(), is_item);
    case Kind::dict:
      return container.as_dict().find(item, budget) != nullptr;
    default:
      break;
  }
  if (const auto* view = container.object_as<DictView>(); view && view->part() == DictView::Part::keys)
    return view->dict().find(item, budget) != nullptr;
  if (!is_iterable(container)) throw Failure("argument of type '" + container.type() + "' is not iterable");
  const Next next = iterate(container);
  for (Value element; next(element);) {
    if (is_item(element)) return true;
  }
  return false;
}

std::optional<Value> subscript(const Value& object, const Value& index, Budget& budget) {
  if (object.is_undefined()) throw Failure(object.undefined_message());
  if (object.is(Kind::dict)) {
    if (index.is(Kind::list) || index.is(Kind::dict)) return std::nullopt;
    const Value* found = object.as_dict().find(index, budget);
    return found ? std::optional(*found) : std::nullopt;
  }
  const bool ranged = object.is(Kind::object) && object.as_object()->is_sequence();
  if ((!object.is_text() && !object.is_sequence() && !ranged) || !index.is_index()) return std::nullopt;
  if (object.is_text()) budget.read(object.as_text().size());
  const auto length = static_cast<int64_t>(*length_of(object));
  int64_t k = index.as_integer().small().value_or(length);
  if (k < 0) k += length;
  if (k < 0 || k >= length) return std::nullopt;
  if (object.is_sequence()) return object.items()[static_cast<size_t>(k)];
  if (ranged) return object.as_object()->element(static_cast<size_t>(k));
  return slice(object, Value::integer(Integer(k)), Value::integer(Integer(k + 1)), Value(), budget);
}

std::optional<Value> slice(const Value& object, const Value& begin, const Value& end, const Value& step,
                           Budget& budget) {
  if (object.is_undefined()) throw Failure(object.undefined_message());
  for (const Value* bound : {&begin, &end, &step}) {
    if (!bound->is_none() && !bound->is_index()) return std::nullopt;
  }
  if (object.is_text()) {
    const std::string& text = object.as_text();
    budget.read(text.size());
    if (is_ascii(text)) return Value::text(picked(text, adjust(begin, end, step, text.size())), object.is_markup());
    const std::u32string points = code_points(text);
    return Value::text(to_utf8(picked(points, adjust(begin, end, step, points.size()))), object.is_markup());
  }
  if (!object.is_sequence() && !object.object_as<Range>()) return std::nullopt;
  const Bounds bounds = adjust(begin, end, step, *length_of(object));
  if (const auto* range = object.object_as<Range>()) return range->slice(bounds.start, bounds.stop, bounds.step);
  Items items;
  items.reserve(bounds.count);
  for (size_t k = 0; k < bounds.count; ++k)
    items.push_back(object.items()[static_cast<size_t>(bounds.start + static_cast<int64_t>(k) * bounds.step)]);
  return object.is(Kind::list) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

Items collect(const Value& iterable, Budget& budget) {
  Items items;
  const Next next = iterate(iterable);
  for (Value element; next(element);) {
    budget.step();
    budget.take(sizeof(Value));
    items.push_back(std::move(element));
  }
  return items;
}

}  // namespace nibble::jinja
