// Filters on text.

#include <algorithm>

#include "nibble/core/formatting/readable.h"
#include "nibble/core/text/chat/jinja/arguments.h"
#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/filters/filters.h"
#include "nibble/core/text/chat/jinja/filters/wrap_text.h"
#include "nibble/core/text/chat/jinja/operators.h"
#include "nibble/core/text/chat/jinja/values/print_value.h"
#include "nibble/core/text/chat/jinja/values/split_lines.h"
#include "nibble/core/text/chat/jinja/values/unicode_text.h"

namespace nibble::jinja {

namespace {

Value built(Interpreter& interpreter, std::string text, bool markup = false) {
  interpreter.budget().take(text.size());
  return Value::text(std::move(text), markup);
}

// soft_str: text as it is, anything else by str().
Value soft(Interpreter& interpreter, const Value& value) {
  return value.is_text() ? value : Value::text(str(value, interpreter.budget()));
}

// The method of the same name on soft_str(value).
template <const char* const& name>
Value by_method(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  return interpreter.call(*text_method(soft(interpreter, value), name), std::move(arguments));
}
constexpr const char* kUpper = "upper";
constexpr const char* kLower = "lower";
constexpr const char* kCapitalize = "capitalize";

Value trim(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("trim", arguments, {"chars"});
  const Value text = soft(interpreter, value);
  if (bound[0].is_none())
    return built(interpreter, std::string(stripped(text.as_text(), true, true)), text.is_markup());
  const std::u32string characters = code_points(bound.text(0));
  return built(interpreter, std::string(stripped(text.as_text(), true, true, &characters)), text.is_markup());
}

// Words begin after blanks, hyphens and opening brackets; not str.title().
Value title(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("title", arguments, {});
  const std::u32string points = code_points(str(value, interpreter.budget()));
  const auto separates = [](char32_t c) {
    return is_space(c) || std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos;
  };
  std::string text;
  for (size_t begin = 0; begin < points.size();) {
    size_t end = begin;
    while (end < points.size() && separates(points[end]) == separates(points[begin])) ++end;
    text += to_upper(to_utf8({&points[begin], 1})) + to_lower(to_utf8({&points[begin] + 1, end - begin - 1}));
    begin = end;
  }
  return built(interpreter, std::move(text));
}

Value replace(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  const int64_t limit = bound[2].is_none() ? -1 : to_index(bound[2]);
  return built(interpreter, replace_all(str(value, interpreter.budget()), str(bound[0], interpreter.budget()),
                                        str(bound[1], interpreter.budget()), limit, interpreter.budget()));
}

Value string(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("string", arguments, {});
  return soft(interpreter, value);
}

Value center(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("center", arguments, {"width"});
  return interpreter.call(*text_method(soft(interpreter, value), "center"),
                          {{bound.has(0) ? bound[0] : Value::integer(Integer(80))}, {}});
}

Value escape(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("escape", arguments, {});
  return value.is_markup() ? value : built(interpreter, escape_html(str(value, interpreter.budget())), true);
}

Value force_escape(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("forceescape", arguments, {});
  return built(interpreter, escape_html(str(value, interpreter.budget())), true);
}

Value safe(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("safe", arguments, {});
  return Value::text(str(value, interpreter.budget()), true);
}

Value indent(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("indent", arguments, {"width", "first", "blank"});
  if (!value.is_text()) throw Failure("unsupported operand type(s) for +=: '" + value.type() + "' and 'str'");
  const bool markup = value.is_markup();
  std::string indention;
  if (bound.has(0) && bound[0].is_text()) {
    indention = markup && !bound[0].is_markup() ? escape_html(bound[0].as_text()) : bound[0].as_text();
  } else {
    const int64_t width = std::max<int64_t>(0, bound.integer(0, 4));
    interpreter.budget().take(static_cast<size_t>(width));
    indention.assign(static_cast<size_t>(width), ' ');
  }
  std::string text;
  const std::string whole = value.as_text() + "\n";
  const std::vector<std::string_view> lines = split_lines(whole, false);
  for (size_t k = 0; k < lines.size(); ++k) {
    interpreter.budget().grow(text, indention.size() + lines[k].size());
    if (k > 0) text += '\n';
    if (k == 0 ? bound.truth(1, false) : bound.truth(2, false) || !lines[k].empty()) text += indention;
    text += lines[k];
  }
  return built(interpreter, std::move(text), markup);
}

Value truncate(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const std::u32string end = code_points(bound.text(2, "..."));
  const int64_t length = bound.integer(0, 255), leeway = bound[3].is_none() ? 5 : to_index(bound[3]);
  const auto cut = length - static_cast<int64_t>(end.size());
  if (cut < 0) throw Failure("expected length >= " + std::to_string(end.size()) + ", got " + std::to_string(length));
  if (leeway < 0) throw Failure("expected leeway >= 0, got " + std::to_string(leeway));
  if (!value.is_text()) {  // len(s) of a short list is enough for it to come back
    const std::optional<size_t> size = length_of(value);
    if (size && static_cast<int64_t>(*size) <= length + leeway) return value;
    throw Failure("truncate wants text, not " + value.type());
  }
  const std::u32string points = code_points(value.as_text());
  if (static_cast<int64_t>(points.size()) <= length + leeway) return value;
  std::u32string kept = points.substr(0, static_cast<size_t>(cut));
  if (!bound.truth(1, false)) {
    const size_t blank = kept.rfind(U' ');
    if (blank != std::u32string::npos) kept.resize(blank);
  }
  const std::string tail = to_utf8(end);
  return built(interpreter, to_utf8(kept) + (value.is_markup() && !bound[2].is_markup() ? escape_html(tail) : tail),
               value.is_markup());
}

Value word_wrap(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("wordwrap", arguments, {"width", "break_long_words", "wrapstring", "break_on_hyphens"});
  const std::string end = bound[2].is_none() ? "\n" : bound.text(2);
  std::string text;
  bool first = true;
  for (const std::string_view line : split_lines(to_text(value), false)) {
    const std::vector<std::string> wrapped =
        wrap_text(line, bound.integer(0, 79), bound.truth(1, true), bound.truth(3, true));
    for (size_t k = 0; k < std::max<size_t>(1, wrapped.size()); ++k) {
      interpreter.budget().grow(text, end.size());
      if (!first) text += end;
      first = false;
      if (k < wrapped.size()) text += wrapped[k];
    }
  }
  return built(interpreter, std::move(text));
}

Value word_count(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("wordcount", arguments, {});
  size_t words = 0;
  bool inside = false;
  for (const char32_t c : code_points(str(value, interpreter.budget()))) {
    const bool word = c == '_' || is_alphabetic(c) || is_numeric_character(c);
    words += word && !inside;
    inside = word;
  }
  return Value::integer(words);
}

Value format(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  if (!arguments.named.empty() && !arguments.positional.empty())
    throw Failure("can't handle positional and keyword arguments at the same time");
  const Value text = soft(interpreter, value);
  if (arguments.named.empty())
    return arithmetic("%", text, Value::tuple(std::move(arguments.positional)), interpreter.budget());
  Dict named;
  for (auto& [name, argument] : arguments.named) named.set(name, std::move(argument));
  return arithmetic("%", text, Value::dict(std::move(named)), interpreter.budget());
}

Value strip_tags(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("striptags", arguments, {});
  return built(interpreter, strip_markup(str(value, interpreter.budget())));
}

std::string quoted(std::string_view text, bool query) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (byte < 0x80 && std::isalnum(byte)) ||
                       std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !query);
    result += plain ? std::string(1, c) : query && c == ' ' ? "+" : formatted("%%%02X", byte);
  }
  return result;
}

Value url_encode(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("urlencode", arguments, {});
  if (value.is_text() || !is_iterable(value))
    return built(interpreter, quoted(str(value, interpreter.budget()), false));
  std::string text;
  const auto add = [&](const Value& key, const Value& item) {
    const std::string one =
        quoted(str(key, interpreter.budget()), true) + "=" + quoted(str(item, interpreter.budget()), true);
    interpreter.budget().grow(text, one.size() + 1);
    text += (text.empty() ? "" : "&") + one;
  };
  if (value.is(Kind::dict)) {
    for (const auto& [key, item] : value.as_dict().items()) add(key, item);
    return built(interpreter, std::move(text));
  }
  for (const Value& pair : collect(value, interpreter.budget())) {
    const Items items = collect(pair, interpreter.budget());
    if (items.size() != 2) throw Failure("not enough values to unpack (expected 2)");
    add(items[0], items[1]);
  }
  return built(interpreter, std::move(text));
}

Value xml_attributes(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("xmlattr", arguments, {"autospace"});
  if (!value.is(Kind::dict)) throw Failure("xmlattr wants a dict");
  std::string text;
  for (const auto& [key, item] : value.as_dict().items()) {
    if (item.is_none() || item.is_undefined()) continue;
    if (to_text(key).find_first_of(" \t\n\r\f\v/>=") != std::string::npos)
      throw Failure("Invalid character in attribute name: " + repr(key, interpreter.budget()));
    const auto escaped = [&](const Value& v) {
      return v.is_markup() ? v.as_text() : escape_html(str(v, interpreter.budget()));
    };
    const std::string one = escaped(key) + "=\"" + escaped(item) + "\"";
    interpreter.budget().grow(text, one.size() + 1);
    text += (text.empty() ? "" : " ") + one;
  }
  if (bound.truth(0, true) && !text.empty()) text.insert(0, " ");
  return built(interpreter, std::move(text), interpreter.autoescape());
}

Value to_json_filter(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonForm form;
  form.ensure_ascii = bound.truth(0, false);
  form.sort_keys = bound.truth(3, false);
  if (bound[1].is_text()) {
    form.indent = bound[1].as_text();
  } else if (!bound[1].is_none()) {
    const int64_t width = std::max<int64_t>(0, to_index(bound[1]));
    if (width > 1000) throw Failure("the indent is too large");
    form.indent = std::string(static_cast<size_t>(width), ' ');
  }
  if (form.indent) form.item_separator = ",";
  if (!bound[2].is_none()) {
    const Items separators = collect(bound[2], interpreter.budget());
    if (separators.size() != 2) throw Failure("separators are two texts");
    form.item_separator = to_text(separators[0]);
    form.key_separator = to_text(separators[1]);
  }
  return Value::text(to_json(value, form, interpreter.budget()));
}

Value pretty(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("pprint", arguments, {});
  const std::string text = repr(value, interpreter.budget());
  if (text.size() > 80) throw Failure("pprint of long values is not known here");
  return built(interpreter, text);
}

Value unknown_filter(Interpreter&, const Value&, Arguments&) { throw Failure("this filter is not known here"); }

}  // namespace

std::vector<NamedFilter> text_filters() {
  return {{"capitalize", by_method<kCapitalize>},
          {"center", center},
          {"e", escape},
          {"escape", escape},
          {"forceescape", force_escape},
          {"format", format},
          {"indent", indent},
          {"lower", by_method<kLower>},
          {"pprint", pretty},
          {"replace", replace},
          {"safe", safe},
          {"string", string},
          {"striptags", strip_tags},
          {"title", title},
          {"tojson", to_json_filter},
          {"trim", trim},
          {"truncate", truncate},
          {"upper", by_method<kUpper>},
          {"urlencode", url_encode},
          {"urlize", unknown_filter},
          {"wordcount", word_count},
          {"wordwrap", word_wrap},
          {"xmlattr", xml_attributes}};
}

}  // namespace nibble::jinja
