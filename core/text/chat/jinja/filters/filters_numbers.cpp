// Filters on numbers.

#include <array>
#include <cmath>

#include "nibble/core/text/chat/jinja/arguments.h"
#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/filters/filters.h"
#include "nibble/core/text/chat/jinja/operators.h"
#include "nibble/core/text/chat/jinja/values/print_value.h"
#include "nibble/core/text/chat/jinja/values/read_number.h"

namespace nibble::jinja {

namespace {

Value absolute(Interpreter&, const Value& value, Arguments& arguments) {
  const Bound bound("abs", arguments, {});
  if (value.is_index()) {
    const Integer number = value.as_integer();
    return Value::integer(number.is_negative() ? number.negated() : number);
  }
  if (value.is(Kind::floating)) return Value::floating(std::fabs(value.as_floating()));
  if (value.is_undefined()) throw Failure(value.undefined_message());
  throw Failure("bad operand type for abs(): '" + value.type() + "'");
}

Value whole(Interpreter&, const Value& value, Arguments& arguments) {
  const Bound bound("int", arguments, {"default", "base"});
  const Value otherwise = bound.has(0) ? bound[0] : Value::integer(Integer(0));
  if (value.is_undefined()) throw Failure(value.undefined_message());
  if (value.is_index()) return Value::integer(value.as_integer());
  double number = 0;
  if (value.is_text()) {
    const int64_t base = bound.integer(1, 10);
    if (base != 0 && (base < 2 || base > 36)) throw Failure("int() base must be >= 2 and <= 36, or 0");
    if (const std::optional<Integer> read = read_integer(value.as_text(), static_cast<unsigned>(base)))
      return Value::integer(*read);
    const std::optional<double> read = read_float(value.as_text());
    if (!read) return otherwise;
    number = *read;
  } else if (value.is(Kind::floating)) {
    number = value.as_floating();
    if (std::isinf(number)) throw Failure("cannot convert float infinity to integer");
  } else {
    return otherwise;
  }
  return std::isfinite(number) ? Value::integer(Integer::truncated(number)) : otherwise;
}

Value floating(Interpreter&, const Value& value, Arguments& arguments) {
  const Bound bound("float", arguments, {"default"});
  if (value.is_undefined()) throw Failure(value.undefined_message());
  if (value.is_number()) return Value::floating(to_double(value));
  if (value.is_text()) {
    if (const std::optional<double> number = read_float(value.as_text())) return Value::floating(*number);
  }
  return bound.has(0) ? bound[0] : Value::floating(0.0);
}

// round(value, digits) of a float: to the nearest of its decimal digits, as CPython does by way of text.
double rounded(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 323) return value;
  if (digits >= 0) return std::strtod(format_float(value, 'f', static_cast<int>(digits), false).c_str(), nullptr);
  if (digits < -308) return 0.0 * value;
  const double scale = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / scale) * scale;
}

// round(value, digits) of an integer, half to even.
Integer rounded(const Integer& value, int64_t digits) {
  if (digits >= 0) return value;
  const Integer scale = Integer(10).power(Integer(-digits));
  Integer quotient, rest;
  Integer::divide(value, scale, quotient, rest);
  const int half = Integer::compare(rest + rest, scale);
  Integer two, odd;
  Integer::divide(quotient, 2, two, odd);
  if (half > 0 || (half == 0 && !odd.is_zero())) quotient = quotient + Integer(1);
  return quotient * scale;
}

Value round(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("round", arguments, {"precision", "method"});
  const std::string method = bound.text(1, "common");
  if (method != "common" && method != "ceil" && method != "floor")
    throw Failure("method must be common, ceil or floor");
  if (value.is_undefined()) throw Failure(value.undefined_message());
  if (!value.is_number()) throw Failure("type " + value.type() + " doesn't define __round__ method");
  const int64_t digits = bound.integer(0, 0);
  if (method == "common") {
    if (value.is_index()) return Value::integer(rounded(value.as_integer(), digits));
    return Value::floating(rounded(value.as_floating(), digits));
  }
  const Value scale =
      arithmetic("**", Value::integer(Integer(10)), Value::integer(Integer(digits)), interpreter.budget());
  const double scaled = to_double(arithmetic("*", value, scale, interpreter.budget()));
  if (!std::isfinite(scaled)) throw Failure("cannot convert float to integer");
  const Integer turned = Integer::truncated(method == "ceil" ? std::ceil(scaled) : std::floor(scaled));
  return arithmetic("/", Value::integer(turned), scale, interpreter.budget());
}

Value file_size(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("filesizeformat", arguments, {"binary"});
  const bool binary = bound.truth(0, false);
  double bytes = 0;
  if (value.is_number()) {
    bytes = to_double(value);
  } else {
    const std::optional<double> read = value.is_text() ? read_float(value.as_text()) : std::nullopt;
    if (!read) throw Failure("could not convert to float: " + repr(value, interpreter.budget()));
    bytes = *read;
  }
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return Value::text("1 Byte");
  if (bytes < base) return Value::text(Integer::truncated(bytes).decimal() + " Bytes");
  constexpr std::array<std::string_view, 8> kPrefixes = {"k", "M", "G", "T", "P", "E", "Z", "Y"};
  double unit = base;
  for (size_t k = 0;; ++k) {
    unit *= base;
    if (bytes < unit || k + 1 == kPrefixes.size()) {
      const std::string prefix = binary && k == 0 ? "K" : std::string(kPrefixes[k]);
      return Value::text(format_float(base * bytes / unit, 'f', 1, false) + " " + prefix + (binary ? "iB" : "B"));
    }
  }
}

Value random(Interpreter&, const Value& value, Arguments& arguments) {
  const Bound bound("random", arguments, {});
  if (length_of(value).value_or(1) == 0) return Value::undefined("No random item, sequence was empty.");
  throw Failure("random is refused: a conversation must give the same text every time");
}

}  // namespace

std::vector<NamedFilter> number_filters() {
  return {{"abs", absolute}, {"filesizeformat", file_size}, {"float", floating}, {"int", whole}, {"random", random},
          {"round", round}};
}

}  // namespace nibble::jinja
