#include "nibble/core/text/chat/jinja/values/print_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/values/unicode_text.h"

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

class JsonWriter {
 public:
  JsonWriter(const JsonForm& form, Budget& budget) : form_(form), budget_(budget) {}

  void write(const Value& value, int level) {
    budget_.visit();
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
    budget_.grow(text_, bytes.size() + 2);
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
    take_punctuation(items.size(), level);
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
                       [&](const auto& a, const auto& b) { return compare(a.first, b.first, budget_) == -1; });
    }
    take_punctuation(2 * items.size(), level);
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

  // What stands between `count` items, and around them.
  void take_punctuation(size_t count, int level) {
    const size_t each = std::max(form_.item_separator.size(), form_.key_separator.size()) +
                        (form_.indent ? 1 + form_.indent->size() * static_cast<size_t>(level + 1) : 0);
    if (count > 0 && each > Budget::kLargest / (count + 1)) budget_.take(Budget::kLargest + 1);
    budget_.grow(text_, each * (count + 1) + 2);
  }

  void new_line(int level) {
    if (!form_.indent) return;
    text_ += '\n';
    for (int k = 0; k < level; ++k) text_ += *form_.indent;
  }

  const JsonForm& form_;
  Budget& budget_;
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

namespace {

void append_repr(std::string& text, const Value& value, Budget& budget);

void append_items(std::string& text, const Items& items, Budget& budget) {
  for (size_t k = 0; k < items.size(); ++k) {
    if (k > 0) text += ", ";
    append_repr(text, items[k], budget);
  }
}

std::string scalar_repr(const Value& value, Budget& budget) {
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
      budget.read(value.as_text().size());
      return value.is_markup() ? "Markup(" + repr_text(value.as_text()) + ")" : repr_text(value.as_text());
    default:
      return value.as_object()->print(budget);
  }
}

void append_repr(std::string& text, const Value& value, Budget& budget) {
  budget.visit();
  if (value.is_sequence()) {
    budget.grow(text, 3 + 2 * value.items().size());
    text += value.is(Kind::list) ? '[' : '(';
    append_items(text, value.items(), budget);
    text += value.is(Kind::list) ? "]" : value.items().size() == 1 ? ",)" : ")";
  } else if (value.is(Kind::dict)) {
    budget.grow(text, 2 + 4 * value.as_dict().size());
    text += '{';
    for (const auto& item : value.as_dict().items()) {
      if (&item != value.as_dict().items().data()) text += ", ";
      append_repr(text, item.first, budget);
      text += ": ";
      append_repr(text, item.second, budget);
    }
    text += '}';
  } else {
    const std::string one = scalar_repr(value, budget);
    budget.grow(text, one.size());
    text += one;
  }
}

}  // namespace

std::string repr(const Value& value, Budget& budget) {
  std::string text;
  append_repr(text, value, budget);
  return text;
}

std::string ascii_repr(const Value& value, Budget& budget) {
  std::string text;
  for (const char32_t c : code_points(repr(value, budget))) {
    if (c < 0x80) {
      text += static_cast<char>(c);
    } else {
      append_escape(text, c);
    }
  }
  budget.take(text.size());
  return text;
}

std::string str(const Value& value, Budget& budget) {
  if (value.is_undefined()) return "";
  if (!value.is_text()) return repr(value, budget);
  budget.take(value.as_text().size());
  return value.as_text();
}

std::string to_json(const Value& value, const JsonForm& form, Budget& budget) {
  JsonWriter writer(form, budget);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace nibble::jinja
