// Python's two ways to format text: "%5.1f" % x, and "{:>5}".format(x).

#include <cmath>
#include <cstdio>

#include "nibble/core/text/chat/jinja/arguments.h"
#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/filters/filters.h"
#include "nibble/core/text/chat/jinja/operators.h"
#include "nibble/core/text/chat/jinja/values/print_value.h"
#include "nibble/core/text/chat/jinja/values/unicode_text.h"

namespace nibble::jinja {

namespace {

constexpr int64_t kMaxWidth = 100'000'000;
constexpr int kMaxPrecision = 1000;

bool is_one_of(std::string_view characters, char c) { return characters.find(c) != std::string_view::npos; }

std::string first_code_points(const std::string& text, int64_t count) {
  size_t position = 0;
  for (int64_t k = 0; k < count && position < text.size(); ++k) position += utf8_length(text[position]);
  return text.substr(0, position);
}

struct PercentSpec {
  std::string flags;
  int64_t width = 0, precision = -1;
  bool has(char flag) const { return flags.find(flag) != std::string::npos; }
};

class PercentFormat {
 public:
  PercentFormat(const std::string& format, const Value& arguments, Budget& budget)
      : format_(format), arguments_(arguments), budget_(budget), tuple_(arguments.is(Kind::tuple)) {}

  std::string run() {
    while (at_ < format_.size()) {
      const size_t percent = format_.find('%', at_);
      text_ += format_.substr(at_, percent - at_);
      if (percent == std::string::npos) break;
      at_ = percent + 1;
      convert();
    }
    // Lists, dicts and objects with items may go unused: they could have been a mapping.
    const bool mapping = arguments_.is(Kind::dict) || arguments_.is(Kind::list) || arguments_.is_undefined() ||
                         (arguments_.is(Kind::object) && arguments_.as_object()->is_sequence());
    if (tuple_ ? used_ < arguments_.items().size() : used_ == 0 && !named_ && !mapping)
      throw Failure("not all arguments converted during string formatting");
    return std::move(text_);
  }

 private:
  char peek() const {
    if (at_ >= format_.size()) throw Failure("incomplete format");
    return format_[at_];
  }

  const Value& next_argument() {
    if (tuple_ ? used_ >= arguments_.items().size() : used_ > 0)
      throw Failure("not enough arguments for format string");
    ++used_;
    return tuple_ ? arguments_.items()[used_ - 1] : arguments_;
  }

  int64_t read_number() {
    if (peek() == '*') {
      ++at_;
      return to_index(next_argument());
    }
    int64_t number = 0;
    while (peek() >= '0' && peek() <= '9') {
      number = number * 10 + (format_[at_++] - '0');
      if (number > kMaxWidth) throw Failure("width too big");
    }
    return number;
  }

  void convert() {
    std::optional<Value> named;
    if (peek() == '(') {
      if (!arguments_.is(Kind::dict)) throw Failure("format requires a mapping");
      size_t end = at_ + 1;
      for (int depth = 1; depth > 0; ++end) {
        if (end >= format_.size()) throw Failure("incomplete format key");
        depth += format_[end] == '(' ? 1 : format_[end] == ')' ? -1 : 0;
      }
      const std::string key = format_.substr(at_ + 1, end - at_ - 2);
      const Value* found = arguments_.as_dict().find(key);
      if (!found) throw Failure(repr_text(key));
      named = *found;
      named_ = true;
      at_ = end;
    }
    PercentSpec spec;
    while (is_one_of("-0+ #", peek())) spec.flags += format_[at_++];
    spec.width = read_number();
    if (spec.width < 0) {
      spec.flags += '-';
      spec.width = -spec.width;
    }
    if (peek() == '.') {
      ++at_;
      spec.precision = std::max<int64_t>(0, read_number());
    }
    while (is_one_of("lhL", peek())) ++at_;
    const char conversion = peek();
    ++at_;
    if (conversion == '%') {
      text_ += '%';
    } else {
      const Value value = named ? *named : next_argument();
      append(value, conversion, spec);
    }
  }

  void append(const Value& value, char conversion, PercentSpec spec) {
    std::string body, sign;
    const bool number = !is_one_of("srac", conversion);
    if (is_one_of("sra", conversion)) {
      body = conversion == 's'   ? str(value, budget_)
             : conversion == 'r' ? repr(value, budget_)
                                 : ascii_repr(value, budget_);
      if (spec.precision >= 0) body = first_code_points(body, spec.precision);
    } else if (conversion == 'c') {
      body = character(value);
    } else if (is_one_of("diuoxX", conversion)) {
      body = whole(value, conversion, spec);
    } else if (is_one_of("eEfFgG", conversion)) {
      if (value.is_undefined()) throw Failure(value.undefined_message());
      if (!value.is_number()) throw Failure("must be real number, not " + value.type());
      if (spec.precision > kMaxPrecision) throw Failure("precision too big");
      body = format_float(to_double(value), conversion, spec.precision < 0 ? 6 : static_cast<int>(spec.precision),
                          spec.has('#'));
    } else {
      throw Failure("unsupported format character '" + std::string(1, conversion) + "'");
    }
    if (number && body.starts_with('-')) {
      sign = "-";
      body.erase(0, 1);
    } else if (number && (spec.has('+') || spec.has(' '))) {
      sign = spec.has('+') ? "+" : " ";
    }
    if (number && (body.starts_with("0x") || body.starts_with("0X") || body.starts_with("0o"))) {
      sign += body.substr(0, 2);
      body.erase(0, 2);
    }
    const auto size = static_cast<int64_t>(sign.size() + count_code_points(body));
    const auto padding = static_cast<size_t>(std::max<int64_t>(0, spec.width - size));
    budget_.take(padding + body.size());
    if (spec.has('-')) {
      text_ += sign + body + std::string(padding, ' ');
    } else if (number && spec.has('0')) {
      text_ += sign + std::string(padding, '0') + body;
    } else {
      text_ += std::string(padding, ' ') + sign + body;
    }
  }

  static std::string character(const Value& value) {
    if (value.is_text() && count_code_points(value.as_text()) == 1) return value.as_text();
    if (!value.is_index()) throw Failure("%c requires int or char");
    const int64_t code = value.as_integer().small().value_or(-1);
    if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      throw Failure("%c arg not in range(0x110000)");
    std::string text;
    append_utf8(text, static_cast<char32_t>(code));
    return text;
  }

  static std::string whole(const Value& value, char conversion, const PercentSpec& spec) {
    const bool decimal = is_one_of("diu", conversion);
    if (value.is_undefined()) throw Failure(value.undefined_message());
    if (!value.is_index() && !(decimal && value.is(Kind::floating)))
      throw Failure("%" + std::string(1, conversion) + " format: " + (decimal ? "a real number" : "an integer") +
                    " is required, not " + value.type());
    if (value.is(Kind::floating) && !std::isfinite(value.as_floating()))
      throw Failure("cannot convert float to integer");
    const Integer number = value.is_index() ? value.as_integer() : Integer::truncated(value.as_floating());
    std::string digits = decimal ? number.decimal() : number.digits(conversion == 'o' ? 8 : 16);
    const bool negative = digits.starts_with('-');
    if (negative) digits.erase(0, 1);
    if (spec.precision > kMaxWidth) throw Failure("precision too big");
    if (static_cast<int64_t>(digits.size()) < spec.precision)
      digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
    if (spec.has('#') && !decimal) digits.insert(0, conversion == 'o' ? "0o" : "0x");
    if (conversion == 'X') digits = to_upper(digits);
    return (negative ? "-" : "") + digits;
  }

  const std::string& format_;
  const Value& arguments_;
  Budget& budget_;
  const bool tuple_;
  bool named_ = false;
  size_t used_ = 0, at_ = 0;
  std::string text_;
};

}  // namespace

std::string format_percent(const std::string& format, const Value& arguments, Budget& budget) {
  return PercentFormat(format, arguments, budget).run();
}

std::string format_float(double value, char conversion, int precision, bool alternate) {
  const bool upper = is_one_of("EFG", conversion);
  if (!std::isfinite(value)) {
    const std::string text = std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
    return upper ? to_upper(text) : text;
  }
  if (precision > kMaxPrecision) throw Failure("precision too big");
  const char pattern[] = {
      '%', alternate ? '#' : '.', alternate ? '.' : '*', alternate ? '*' : conversion, alternate ? conversion : '\0',
      '\0'};
  std::string text(static_cast<size_t>(precision) + 400, '\0');
  text.resize(static_cast<size_t>(std::snprintf(text.data(), text.size(), pattern, precision, value)));
  return text;
}

}  // namespace nibble::jinja
