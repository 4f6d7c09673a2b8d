#include "nibble/core/text/jinja/print_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "nibble/core/text/jinja/failure.h"
#include "nibble/core/text/jinja/unicode_text.h"

namespace nibble::jinja {

namespace {

void append_hex(std::string& text, char32_t value, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) text.push_back("0123456789abcdef"[value >> shift & 15]);
}

// "\\xe9"
void append_escape(std::string& text, char32_t c) {
  text += c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
  append_hex(text, c, c < 0x100 ? 2 : c < 0x10000 ? 4 : 8);
}

std::string join_reprs(const Items& items) {
  std::string text;
  for (const Value& item : items) text += (text.empty() ? "" : ", ") + repr(item);
  return text;
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonForm& form) : form_(form) {}

  void write(const Value& value, int level) {
    switch (value.kind()) {
      case Kind::none:
        text_ += "null";
        return;
      case Kind::boolean:
        text_ += value.as_boolean() ? "true" : "false";
        return;
      case Kind::integer:
        text_ += value.as_integer().decimal();
        return;
      case Kind::floating:
        text_ += number(value.as_floating());
        return;
      case Kind::text:
        write_text(value.as_text());
        return;
      case Kind::list:
      case Kind::tuple:
        write_list(value.items(), level);
        return;
      case Kind::dict:
        write_dict(value.as_dict(), level);
        return;
      default:
        throw Failure("Object of type " + value.type() + " is not JSON serializable");
    }
  }

  std::string take() { return std::move(text_); }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_text(value);
  }

  void write_text(const std::string& bytes) {
    text_ += '"';
    for (size_t position = 0; position < bytes.size(); position += utf8_length(bytes[position]))
      write_character(utf8_at(bytes, position));
    text_ += '"';
  }

  void write_character(char32_t c) {
    constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
    if (const size_t k = c < 0x80 ? kShort.find(static_cast<char>(c)) : std::string_view::npos;
        k != std::string_view::npos) {
      text_ += '\\';
      text_ += kLetters[k];
    } else if (c < 0x20 || (form_.ensure_ascii && c > 0x7E)) {
      for (const char32_t unit : {c > 0xFFFF ? 0xD800 + ((c - 0x10000) >> 10) : c, 0xDC00 + ((c - 0x10000) & 0x3FF)}) {
        text_ += "\\u";
        append_hex(text_, unit, 4);
        if (c <= 0xFFFF) break;
      }
    } else {
      append_utf8(text_, c);
    }
  }

  void write_list(const Items& items, int level) {
    text_ += '[';
    for (size_t k = 0; k < items.size(); ++k) {
      if (k > 0) text_ += form_.item_separator;
      new_line(level + 1);
      write(items[k], level + 1);
    }
    if (!items.empty()) new_line(level);
    text_ += ']';
  }

  void write_dict(const Dict& dict, int level) {
    std::vector<std::pair<Value, Value>> items = dict.items();
    if (form_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [](const auto& a, const auto& b) { return compare(a.first, b.first) == -1; });
    }
    text_ += '{';
    for (size_t k = 0; k < items.size(); ++k) {
      if (k > 0) text_ += form_.item_separator;
      new_line(level + 1);
      write_key(items[k].first);
      text_ += form_.key_separator;
      write(items[k].second, level + 1);
    }
    if (!items.empty()) new_line(level);
    text_ += '}';
  }

  void write_key(const Value& key) {
    if (key.is_text()) {
      write_text(key.as_text());
    } else if (key.is_number() || key.is_none()) {
      text_ += '"';
      write(key, 0);
      text_ += '"';
    } else {
      throw Failure("keys must be str, int, float, bool or None, not " + key.type());
    }
  }

  void new_line(int level) {
    if (!form_.indent) return;
    text_ += '\n';
    for (int k = 0; k < level; ++k) text_ += *form_.indent;
  }

  const JsonForm& form_;
  std::string text_;
};

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string sign;
  if (text.starts_with('-')) {
    sign = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  std::string digits(text.substr(0, 1));
  if (e > 2) digits += text.substr(2, e - 2);
  const auto count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    const std::string mantissa = count == 1 ? digits : digits.substr(0, 1) + "." + digits.substr(1);
    const std::string power = std::to_string(std::abs(exponent));
    return sign + mantissa + (exponent < 0 ? "e-" : "e+") + (power.size() < 2 ? "0" : "") + power;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) return sign + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  const auto whole = static_cast<size_t>(exponent + 1);
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string repr_text(std::string_view text) {
  const bool doubled = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = doubled ? '"' : '\'';
  std::string result(1, quote);
  for (const char32_t c : code_points(text)) {
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      result += '\\';
      result += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      result += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      append_utf8(result, c);
    } else {
      append_escape(result, c);
    }
  }
  return result + quote;
}

std::string repr(const Value& value) {
  switch (value.kind()) {
    case Kind::none:
      return "None";
    case Kind::undefined:
      return "Undefined";
    case Kind::boolean:
      return value.as_boolean() ? "True" : "False";
    case Kind::integer:
      return value.as_integer().decimal();
    case Kind::floating:
      return float_text(value.as_floating());
    case Kind::text:
      return value.is_markup() ? "Markup(" + repr_text(value.as_text()) + ")" : repr_text(value.as_text());
    case Kind::list:
      return "[" + join_reprs(value.items()) + "]";
    case Kind::tuple:
      return "(" + join_reprs(value.items()) + (value.items().size() == 1 ? ",)" : ")");
    case Kind::dict: {
      std::string text;
      for (const auto& [key, item] : value.as_dict().items())
        text += (text.empty() ? "" : ", ") + repr(key) + ": " + repr(item);
      return "{" + text + "}";
    }
    default:
      return value.as_object()->print();
  }
}

std::string ascii_repr(const Value& value) {
  std::string text;
  for (const char32_t c : code_points(repr(value))) {
    if (c < 0x80) {
      text += static_cast<char>(c);
    } else {
      append_escape(text, c);
    }
  }
  return text;
}

std::string str(const Value& value) {
  if (value.is_text()) return value.as_text();
  if (value.is_undefined()) return "";
  return repr(value);
}

std::string to_json(const Value& value, const JsonForm& form) {
  JsonWriter writer(form);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace nibble::jinja
