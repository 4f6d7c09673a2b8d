// str.format: replacement fields and Python's format specifications.

#include <algorithm>
#include <cmath>

#include "nibble/core/text/chat/jinja/arguments.h"
#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/filters/filters.h"
#include "nibble/core/text/chat/jinja/values/print_value.h"
#include "nibble/core/text/chat/jinja/values/unicode_text.h"

namespace nibble::jinja {

namespace {

struct Spec {
  std::string fill = " ";
  char align = '\0', sign = '-', grouping = '\0', type = '\0';
  bool alternate = false;
  int64_t width = 0, precision = -1;
};

int64_t read_number(std::string_view& text, int64_t otherwise) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return otherwise;
  int64_t number = 0;
  for (; !text.empty() && text[0] >= '0' && text[0] <= '9'; text.remove_prefix(1)) {
    number = number * 10 + (text[0] - '0');
    if (number > 100'000'000) throw Failure("Too many decimal digits in format string");
  }
  return number;
}

// [[fill]align][sign][#][0][width][grouping][.precision][type]
Spec parse_spec(std::string_view text) {
  Spec spec;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '=' || c == '^'; };
  if (!text.empty()) {
    const size_t first = utf8_length(text[0]);
    if (text.size() > first && is_align(text[first])) {
      spec.fill = std::string(text.substr(0, first));
      spec.align = text[first];
      text.remove_prefix(first + 1);
    } else if (is_align(text[0])) {
      spec.align = text[0];
      text.remove_prefix(1);
    }
  }
  const auto take = [&](std::string_view any) {
    if (text.empty() || any.find(text[0]) == std::string_view::npos) return '\0';
    const char c = text[0];
    text.remove_prefix(1);
    return c;
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != '\0';
  if (take("0") != '\0' && spec.align == '\0') {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = read_number(text, 0);
  spec.grouping = take(",_");
  if (take(".") != '\0') {
    spec.precision = read_number(text, -1);
    if (spec.precision < 0) throw Failure("Format specifier missing precision");
  }
  if (!text.empty()) spec.type = take(text.substr(0, 1));
  if (!text.empty()) throw Failure("Invalid format specifier");
  return spec;
}

std::string padded(std::string_view sign, std::string_view body, const Spec& spec, char align, Budget& budget) {
  const auto size = static_cast<int64_t>(sign.size() + count_code_points(body));
  const auto padding = static_cast<size_t>(std::max<int64_t>(0, spec.width - size));
  budget.take(padding * spec.fill.size() + body.size());
  const size_t left = align == '<' ? 0 : align == '^' ? padding / 2 : padding;
  std::string before, after;
  for (size_t k = 0; k < left; ++k) before += spec.fill;
  for (size_t k = left; k < padding; ++k) after += spec.fill;
  return align == '=' ? std::string(sign) + before + std::string(body) + after
                      : before + std::string(sign) + std::string(body) + after;
}

// Separators between groups of digits; zeros that fill the width are grouped too.
std::string grouped(std::string digits, const std::string& rest, size_t sign_size, const Spec& spec) {
  const size_t every = spec.type == 'x' || spec.type == 'X' || spec.type == 'b' || spec.type == 'o' ? 4 : 3;
  const auto with_marks = [&](const std::string& plain) {
    std::string text;
    for (size_t k = 0; k < plain.size(); ++k) {
      if (k > 0 && (plain.size() - k) % every == 0) text += spec.grouping;
      text += plain[k];
    }
    return text;
  };
  if (spec.grouping == '\0') return digits + rest;
  if (spec.fill == "0" && spec.align == '=') {
    while (static_cast<int64_t>(sign_size + with_marks(digits).size() + rest.size()) < spec.width &&
           static_cast<int64_t>(sign_size + with_marks("0" + digits).size() + rest.size()) <= spec.width + 1)
      digits.insert(0, 1, '0');
  }
  return with_marks(digits) + rest;
}

std::string number_text(bool is_negative, std::string digits, const std::string& rest, const std::string& prefix,
                        const Spec& spec, Budget& budget) {
  const std::string sign = (is_negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign)) + prefix;
  if (spec.width > 10000 && spec.grouping != '\0') throw Failure("width too big");
  return padded(sign, grouped(std::move(digits), rest, sign.size(), spec), spec, spec.align == '\0' ? '>' : spec.align,
                budget);
}

std::string format_floating(double value, Spec spec, Budget& budget) {
  const char type = spec.type;
  std::string text;
  if (type == '\0' && spec.precision < 0) {
    text = float_text(std::fabs(value));
  } else {
    const bool percent = type == '%';
    const int precision = static_cast<int>(std::min<int64_t>(spec.precision < 0 ? 6 : spec.precision, 100000));
    const double shown = std::fabs(percent ? value * 100 : value);
    if (type == '\0') {  // like g, with a digit after the point at least
      text = format_float(shown, 'g', std::max(precision, 1), spec.alternate);
      if (text.find_first_of(".en") == std::string::npos) text += ".0";
    } else {
      text = format_float(shown, percent ? 'f' : type == 'n' ? 'g' : type, precision, spec.alternate);
    }
    if (percent) text += '%';
  }
  const size_t digits = text.find_first_not_of("0123456789");
  const size_t end = digits == std::string::npos ? text.size() : digits;
  return number_text(std::signbit(value) && !std::isnan(value), text.substr(0, end), text.substr(end), "", spec,
                     budget);
}

std::string format_integer(const Integer& value, const Spec& spec, Budget& budget) {
  if (spec.precision >= 0) throw Failure("Precision not allowed in integer format specifier");
  const Integer size = value.is_negative() ? value.negated() : value;
  std::string digits, prefix;
  switch (spec.type) {
    case '\0':
    case 'd':
    case 'n':
      digits = size.decimal();
      break;
    case 'b':
    case 'o':
    case 'x':
    case 'X':
      if (spec.grouping == ',') throw Failure("Cannot specify ',' with '" + std::string(1, spec.type) + "'.");
      digits = size.digits(spec.type == 'b' ? 2 : spec.type == 'o' ? 8 : 16);
      if (spec.alternate) prefix = std::string("0") + spec.type;
      if (spec.type == 'X') digits = to_upper(digits);
      break;
    case 'c': {
      const int64_t code = value.small().value_or(-1);
      if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        throw Failure("%c arg not in range(0x110000)");
      append_utf8(digits, static_cast<char32_t>(code));
      return padded("", digits, spec, spec.align == '\0' ? '<' : spec.align, budget);
    }
    default:
      throw Failure("Unknown format code '" + std::string(1, spec.type) + "' for object of type 'int'");
  }
  return number_text(value.is_negative(), std::move(digits), "", prefix, spec, budget);
}

bool is_float_type(char type) {
  return type != '\0' && std::string_view("eEfFgG%").find(type) != std::string_view::npos;
}

class Formatter {
 public:
  Formatter(Interpreter& interpreter, const Arguments& arguments) : interpreter_(interpreter), arguments_(arguments) {}

  std::string run(std::string_view format, int level) {
    if (level > 2) throw Failure("Max string recursion exceeded");
    std::string text;
    for (size_t k = 0; k < format.size();) {
      const char c = format[k];
      if ((c == '{' || c == '}') && k + 1 < format.size() && format[k + 1] == c) {
        text += c;
        k += 2;
      } else if (c == '}') {
        throw Failure("Single '}' encountered in format string");
      } else if (c == '{') {
        const size_t end = field_end(format, k + 1);
        text += field(format.substr(k + 1, end - k - 1), level);
        k = end + 1;
      } else {
        text += c;
        ++k;
      }
    }
    return text;
  }

 private:
  static size_t field_end(std::string_view format, size_t from) {
    int depth = 1;
    for (size_t k = from; k < format.size(); ++k) {
      depth += format[k] == '{' ? 1 : format[k] == '}' ? -1 : 0;
      if (depth == 0) return k;
    }
    throw Failure(from >= format.size() ? "Single '{' encountered in format string"
                                        : "expected '}' before end of string");
  }

  std::string field(std::string_view text, int level) {
    size_t end = 0;  // of the name: "[...]" may hold anything
    while (end < text.size() && text[end] != '!' && text[end] != ':')
      end = text[end] == '[' ? std::min(text.find(']', end), text.size() - 1) + 1 : end + 1;
    Value value = look_up(text.substr(0, end));
    std::string_view rest = text.substr(std::min(end, text.size()));
    if (rest.starts_with('!')) {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':'))
        throw Failure("expected ':' after conversion specifier");
      value = converted(value, rest[1]);
      rest.remove_prefix(2);
    }
    if (rest.starts_with(':')) rest.remove_prefix(1);
    return format_value(value, run(rest, level + 1), interpreter_.budget());
  }

  Value converted(const Value& value, char conversion) {
    if (conversion == 's') return Value::text(str(value, interpreter_.budget()));
    if (conversion == 'r') return Value::text(repr(value, interpreter_.budget()));
    if (conversion == 'a') return Value::text(ascii_repr(value, interpreter_.budget()));
    throw Failure("Unknown conversion specifier '" + std::string(1, conversion) + "'");
  }

  Value look_up(std::string_view name) {
    const size_t first = name.find_first_of(".[");
    Value value = argument(name.substr(0, first), first == std::string_view::npos);
    name.remove_prefix(std::min(first, name.size()));
    while (!name.empty()) {
      interpreter_.budget().step();
      if (name[0] == '.') {
        const size_t end = std::min(name.find_first_of(".[", 1), name.size());
        value = interpreter_.attribute(value, name.substr(1, end - 1));
        name.remove_prefix(end);
      } else {
        const size_t end = name.find(']');
        if (name[0] != '[' || end == std::string_view::npos) throw Failure("Missing ']' in format string");
        const std::string_view index = name.substr(1, end - 1);
        const std::optional<Integer> number = Integer::parse(index);
        value = interpreter_.item(value, number ? Value::integer(*number) : Value::text(std::string(index)));
        name.remove_prefix(end + 1);
      }
    }
    return value;
  }

  // As string.Formatter: only a name that stands alone is numbered, or counts as a number that was given.
  Value argument(std::string_view name, bool alone) {
    const std::optional<Integer> number = Integer::parse(name);
    if ((name.empty() && alone) || number) {
      if (alone && (name.empty() ? used_numbers_ : next_ > 0))
        throw Failure("cannot switch between manual field specification and automatic field numbering");
      used_numbers_ |= alone && !name.empty();
      const auto k = static_cast<size_t>(name.empty() ? next_++ : number->small().value_or(INT32_MAX));
      if (k >= arguments_.positional.size()) throw Failure("Replacement index out of range for positional args tuple");
      return arguments_.positional[k];
    }
    interpreter_.budget().read(arguments_.named.size() * sizeof(Value));
    for (const auto& [known, value] : arguments_.named) {
      if (known == name) return value;
    }
    throw Failure(repr_text(name));
  }

  Interpreter& interpreter_;
  const Arguments& arguments_;
  int64_t next_ = 0;
  bool used_numbers_ = false;
};

}  // namespace

std::string format_text(Interpreter& interpreter, const std::string& format, const Arguments& arguments) {
  return Formatter(interpreter, arguments).run(format, 0);
}

std::string format_value(const Value& value, std::string_view text, Budget& budget) {
  if (text.empty()) return str(value, budget);
  const Spec spec = parse_spec(text);
  if (value.is_text()) {
    if (spec.type != '\0' && spec.type != 's')
      throw Failure("Unknown format code '" + std::string(1, spec.type) + "' for object of type 'str'");
    if (spec.sign != '-' || spec.align == '=' || spec.alternate || spec.grouping != '\0')
      throw Failure("format specifier not allowed for text");
    size_t end = 0;
    for (int64_t k = 0; (spec.precision < 0 || k < spec.precision) && end < value.as_text().size(); ++k)
      end += utf8_length(value.as_text()[end]);
    return padded("", std::string_view(value.as_text()).substr(0, end), spec, spec.align == '\0' ? '<' : spec.align,
                  budget);
  }
  if (value.is_number()) {
    if (value.is(Kind::floating) || is_float_type(spec.type)) {
      if (spec.type != '\0' && spec.type != 'n' && !is_float_type(spec.type))
        throw Failure("Unknown format code '" + std::string(1, spec.type) + "' for object of type 'float'");
      return format_floating(to_double(value), spec, budget);
    }
    return format_integer(value.as_integer(), spec, budget);
  }
  throw Failure("unsupported format string passed to " + value.type() + ".__format__");
}

}  // namespace nibble::jinja
