// The methods of Python's str.

#include <algorithm>
#include <array>

#include "nibble/core/text/chat/jinja/arguments.h"
#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/filters/filters.h"
#include "nibble/core/text/chat/jinja/operators.h"
#include "nibble/core/text/chat/jinja/values/objects.h"
#include "nibble/core/text/chat/jinja/values/print_value.h"
#include "nibble/core/text/chat/jinja/values/split_lines.h"
#include "nibble/core/text/chat/jinja/values/unicode_text.h"

namespace nibble::jinja {

namespace {

using Method = Value (*)(Interpreter&, const Value& self, Arguments& arguments);

Value same_kind(Interpreter& interpreter, const Value& self, std::string text) {
  interpreter.budget().take(text.size());
  return Value::text(std::move(text), self.is_markup());
}

void no_names(std::string_view method, const Arguments& arguments) {
  if (!arguments.named.empty()) throw Failure("str." + std::string(method) + "() takes no keyword arguments");
}

template <std::string (*change)(std::string_view)>
Value changed(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("str method", arguments, {});
  return same_kind(interpreter, self, change(self.as_text()));
}

template <bool left, bool right>
Value strip(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  no_names("strip", arguments);
  const Bound bound("strip", arguments, {"chars"});
  if (bound[0].is_none()) return same_kind(interpreter, self, std::string(stripped(self.as_text(), left, right)));
  const std::u32string characters = code_points(bound.text(0));
  return same_kind(interpreter, self, std::string(stripped(self.as_text(), left, right, &characters)));
}

// The bytes of `self` between code points start and stop, as find() and its relatives take them; `first` is the code
// point at which they begin. False when there is no such place.
bool cut(const std::string& self, const Bound& bound, size_t& first, std::string_view& text) {
  text = self;
  first = 0;
  if (bound[1].is_none() && bound[2].is_none()) return true;
  const auto size = static_cast<int64_t>(count_code_points(self));
  const auto place = [&](size_t k, int64_t otherwise) {
    if (bound[k].is_none()) return otherwise;
    const int64_t index = to_index(bound[k]);
    return index < 0 ? std::max<int64_t>(0, index + size) : index;
  };
  const int64_t start = place(1, 0), stop = std::min(place(2, size), size);
  if (start > stop) return false;
  const auto offset = [&](int64_t point) {
    size_t position = 0;
    for (int64_t k = 0; k < point; ++k) position += utf8_length(self[position]);
    return position;
  };
  const size_t begin = offset(start);
  text = std::string_view(self).substr(begin, offset(stop) - begin);
  first = static_cast<size_t>(start);
  return true;
}

template <bool last, bool required>
Value find(Interpreter&, const Value& self, Arguments& arguments) {
  no_names("find", arguments);
  const Bound bound("find", arguments, {"sub", "start", "end"}, 1);
  const std::string& sub = bound.text(0);
  size_t first = 0;
  std::string_view text;
  if (cut(self.as_text(), bound, first, text)) {
    const size_t found = last ? find_last_text(text, sub) : find_text(text, sub);
    if (found != std::string_view::npos) return Value::integer(first + count_code_points(text.substr(0, found)));
  }
  if (required) throw Failure("substring not found");
  return Value::integer(Integer(-1));
}

Value count(Interpreter&, const Value& self, Arguments& arguments) {
  no_names("count", arguments);
  const Bound bound("count", arguments, {"sub", "start", "end"}, 1);
  const std::string& sub = bound.text(0);
  size_t first = 0, times = 0;
  std::string_view text;
  if (!cut(self.as_text(), bound, first, text)) return Value::integer(size_t{0});
  if (sub.empty()) return Value::integer(count_code_points(text) + 1);
  for (size_t at = find_text(text, sub); at != std::string_view::npos; at = find_text(text, sub, at + sub.size()))
    ++times;
  return Value::integer(times);
}

template <bool at_end>
Value has_affix(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  no_names(at_end ? "endswith" : "startswith", arguments);
  const Bound bound(at_end ? "endswith" : "startswith", arguments, {"affix", "start", "end"}, 1);
  size_t first = 0;
  std::string_view text;
  const bool there = cut(self.as_text(), bound, first, text);
  const auto matches = [&](const Value& affix) {
    const std::string& wanted = to_text(affix);
    interpreter.budget().step();
    interpreter.budget().read(std::min(wanted.size(), text.size()));
    return there && (at_end ? text.ends_with(wanted) : text.starts_with(wanted));
  };
  if (!bound[0].is(Kind::tuple)) return Value::boolean(matches(bound[0]));
  return Value::boolean(std::any_of(bound[0].items().begin(), bound[0].items().end(), matches));
}

template <bool at_end>
Value without_affix(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("removeaffix", arguments, {"affix"}, 1);
  const std::string &text = self.as_text(), &affix = bound.text(0);
  const bool has = at_end ? text.ends_with(affix) : text.starts_with(affix);
  if (!has) return self;
  return same_kind(interpreter, self, at_end ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size()));
}

Value replace_text(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  no_names("replace", arguments);
  const Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  const auto escaped = [&](const Value& text) {
    return self.is_markup() && !text.is_markup() ? escape_html(to_text(text)) : to_text(text);
  };
  return same_kind(
      interpreter, self,
      replace_all(self.as_text(), escaped(bound[0]), escaped(bound[1]), bound.integer(2, -1), interpreter.budget()));
}

Value list_of(Interpreter& interpreter, const Value& self, const std::vector<std::string_view>& pieces) {
  interpreter.budget().take(self.as_text().size() + pieces.size() * sizeof(Value));
  Items items;
  for (const std::string_view piece : pieces) items.push_back(Value::text(std::string(piece), self.is_markup()));
  return Value::list(std::move(items));
}

template <bool from_right>
Value split(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("split", arguments, {"sep", "maxsplit"});
  const int64_t limit = bound.integer(1, -1);
  const std::string& text = self.as_text();
  if (bound[0].is_none())
    return list_of(interpreter, self, from_right ? split_words_right(text, limit) : split_words(text, limit));
  const std::string& separator = bound.text(0);
  if (separator.empty()) throw Failure("empty separator");
  return list_of(interpreter, self,
                 from_right ? split_right(text, separator, limit) : split_left(text, separator, limit));
}

Value splitlines(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("splitlines", arguments, {"keepends"});
  return list_of(interpreter, self, split_lines(self.as_text(), bound.truth(0, false)));
}

template <bool last>
Value partition(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("partition", arguments, {"sep"}, 1);
  const std::string &text = self.as_text(), &separator = bound.text(0);
  if (separator.empty()) throw Failure("empty separator");
  const auto piece = [&](std::string part) { return Value::text(std::move(part), self.is_markup()); };
  const size_t at = last ? find_last_text(text, separator) : find_text(text, separator);
  interpreter.budget().take(text.size());
  if (at == std::string::npos)
    return last ? Value::tuple({piece(""), piece(""), self}) : Value::tuple({self, piece(""), piece("")});
  return Value::tuple({piece(text.substr(0, at)), piece(separator), piece(text.substr(at + separator.size()))});
}

Value join_texts(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  no_names("join", arguments);
  const Bound bound("join", arguments, {"iterable"}, 1);
  std::string text;
  const Items items = collect(bound[0], interpreter.budget());
  for (size_t k = 0; k < items.size(); ++k) {
    if (!items[k].is_text())
      throw Failure("sequence item " + std::to_string(k) + ": expected str instance, " + items[k].type() + " found");
    interpreter.budget().grow(text, self.as_text().size() + items[k].as_text().size());
    if (k > 0) text += self.as_text();
    text += self.is_markup() && !items[k].is_markup() ? escape_html(items[k].as_text()) : items[k].as_text();
  }
  return Value::text(std::move(text), self.is_markup());
}

enum class Side : uint8_t { left, right, both };

template <Side side>
Value justify(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("justify", arguments, {"width", "fillchar"}, 1);
  const std::string fill = bound.text(1, " ");
  if (count_code_points(fill) != 1) throw Failure("The fill character must be exactly one character long");
  const auto size = static_cast<int64_t>(count_code_points(self.as_text()));
  const int64_t width = to_index(bound[0]), padding = std::max<int64_t>(0, width - size);
  interpreter.budget().take(static_cast<size_t>(padding) * fill.size());
  // CPython's str.center gives the odd one to the left when the width is odd.
  const int64_t left = side == Side::left ? 0 : side == Side::right ? padding : padding / 2 + (padding & width & 1);
  std::string text;
  for (int64_t k = 0; k < left; ++k) text += fill;
  text += self.as_text();
  for (int64_t k = left; k < padding; ++k) text += fill;
  return same_kind(interpreter, self, std::move(text));
}

Value zfill(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("zfill", arguments, {"width"}, 1);
  const std::string& text = self.as_text();
  const int64_t missing = to_index(bound[0]) - static_cast<int64_t>(count_code_points(text));
  if (missing <= 0) return self;
  interpreter.budget().take(static_cast<size_t>(missing));
  const size_t sign = !text.empty() && (text[0] == '+' || text[0] == '-') ? 1 : 0;
  return same_kind(interpreter, self,
                   text.substr(0, sign) + std::string(static_cast<size_t>(missing), '0') + text.substr(sign));
}

Value expandtabs(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("expandtabs", arguments, {"tabsize"});
  const int64_t size = bound.integer(0, 8);
  std::string text;
  int64_t column = 0;
  for (const char32_t c : code_points(self.as_text())) {
    if (c == '\t') {
      const int64_t blanks = size > 0 ? size - column % size : 0;
      interpreter.budget().grow(text, static_cast<size_t>(blanks));
      text.append(static_cast<size_t>(blanks), ' ');
      column += blanks;
    } else {
      append_utf8(text, c);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return same_kind(interpreter, self, std::move(text));
}

// All characters of a class, and at least one.
template <bool (*is_one)(char32_t)>
Value all_are(Interpreter&, const Value& self, Arguments& arguments) {
  const Bound bound("str method", arguments, {});
  const std::u32string points = code_points(self.as_text());
  return Value::boolean(!points.empty() && std::all_of(points.begin(), points.end(), is_one));
}

bool is_alphanumeric(char32_t c) { return is_alphabetic(c) || is_numeric_character(c) || is_decimal(c) || is_digit(c); }

// islower and isupper: some cased character, and none of the other case.
template <bool lower>
Value has_case(Interpreter&, const Value& self, Arguments& arguments) {
  const Bound bound("str method", arguments, {});
  return Value::boolean(is_in_case(self.as_text(), lower));
}

Value istitle(Interpreter&, const Value& self, Arguments&) {
  bool cased = false, previous = false;
  for (const char32_t c : code_points(self.as_text())) {
    const bool upper = is_upper(c) || is_titlecase(c);
    if (upper ? previous : is_lower(c) && !previous) return Value::boolean(false);
    previous = upper || is_lower(c);
    cased |= previous;
  }
  return Value::boolean(cased);
}

Value isascii(Interpreter&, const Value& self, Arguments&) {
  const std::string& text = self.as_text();
  return Value::boolean(
      std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
}

Value isprintable(Interpreter&, const Value& self, Arguments&) {
  const std::u32string points = code_points(self.as_text());
  return Value::boolean(std::all_of(points.begin(), points.end(), is_printable));
}

Value isidentifier(Interpreter&, const Value& self, Arguments&) {
  const std::u32string points = code_points(self.as_text());
  return Value::boolean(!points.empty() && starts_identifier(points[0]) &&
                        std::all_of(points.begin(), points.end(), continues_identifier));
}

Value format_braces(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return same_kind(interpreter, self, format_text(interpreter, self.as_text(), arguments));
}

Value format_map(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("format_map", arguments, {"mapping"}, 1);
  if (!bound[0].is(Kind::dict)) throw Failure("format_map() takes a dict");
  Arguments named;
  for (const auto& [name, value] : bound[0].as_dict().items()) {
    if (name.is_text()) named.named.emplace_back(name.as_text(), value);
  }
  return same_kind(interpreter, self, format_text(interpreter, self.as_text(), named));
}

Value unknown_method(Interpreter&, const Value&, Arguments&) {
  throw Failure("bytes and translation tables are not known here");
}

struct NamedMethod {
  std::string_view name;
  Method method;
};

constexpr std::array kMethods = {NamedMethod{"capitalize", changed<capitalized>},
                                 NamedMethod{"casefold", changed<fold_case>},
                                 NamedMethod{"center", justify<Side::both>},
                                 NamedMethod{"count", count},
                                 NamedMethod{"encode", unknown_method},
                                 NamedMethod{"endswith", has_affix<true>},
                                 NamedMethod{"expandtabs", expandtabs},
                                 NamedMethod{"find", find<false, false>},
                                 NamedMethod{"format", format_braces},
                                 NamedMethod{"format_map", format_map},
                                 NamedMethod{"index", find<false, true>},
                                 NamedMethod{"isalnum", all_are<is_alphanumeric>},
                                 NamedMethod{"isalpha", all_are<is_alphabetic>},
                                 NamedMethod{"isascii", isascii},
                                 NamedMethod{"isdecimal", all_are<is_decimal>},
                                 NamedMethod{"isdigit", all_are<is_digit>},
                                 NamedMethod{"isidentifier", isidentifier},
                                 NamedMethod{"islower", has_case<true>},
                                 NamedMethod{"isnumeric", all_are<is_numeric_character>},
                                 NamedMethod{"isprintable", isprintable},
                                 NamedMethod{"isspace", all_are<is_space>},
                                 NamedMethod{"istitle", istitle},
                                 NamedMethod{"isupper", has_case<false>},
                                 NamedMethod{"join", join_texts},
                                 NamedMethod{"ljust", justify<Side::left>},
                                 NamedMethod{"lower", changed<to_lower>},
                                 NamedMethod{"lstrip", strip<true, false>},
                                 NamedMethod{"maketrans", unknown_method},
                                 NamedMethod{"partition", partition<false>},
                                 NamedMethod{"removeprefix", without_affix<false>},
                                 NamedMethod{"removesuffix", without_affix<true>},
                                 NamedMethod{"replace", replace_text},
                                 NamedMethod{"rfind", find<true, false>},
                                 NamedMethod{"rindex", find<true, true>},
                                 NamedMethod{"rjust", justify<Side::right>},
                                 NamedMethod{"rpartition", partition<true>},
                                 NamedMethod{"rsplit", split<true>},
                                 NamedMethod{"rstrip", strip<false, true>},
                                 NamedMethod{"split", split<false>},
                                 NamedMethod{"splitlines", splitlines},
                                 NamedMethod{"startswith", has_affix<false>},
                                 NamedMethod{"strip", strip<true, true>},
                                 NamedMethod{"swapcase", changed<swap_case>},
                                 NamedMethod{"title", changed<to_title>},
                                 NamedMethod{"translate", unknown_method},
                                 NamedMethod{"upper", changed<to_upper>},
                                 NamedMethod{"zfill", zfill}};

}  // namespace

std::optional<Value> text_method(const Value& text, std::string_view name) {
  const auto* found = std::find_if(kMethods.begin(), kMethods.end(), [&](const auto& m) { return m.name == name; });
  if (found == kMethods.end()) return std::nullopt;
  return Function::make(std::string(name),
                        [text, method = found->method](Interpreter& interpreter, Arguments& arguments) {
                          interpreter.budget().read(text.as_text().size());
                          return method(interpreter, text, arguments);
                        });
}

}  // namespace nibble::jinja
