// Filters on lists, dicts and other iterables that give their result at once.

#include <algorithm>

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

Value attr(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("attr", arguments, {"name"}, 1);
  if (value.is_undefined()) throw Failure(value.undefined_message());
  if (std::optional<Value> found = python_attribute(value, bound.text(0))) return std::move(*found);
  (void)interpreter;
  return Value::undefined("'" + value.type() + " object' has no attribute '" + bound.text(0) + "'");
}

Value otherwise(Interpreter&, const Value& value, Arguments& arguments) {
  const Bound bound("default", arguments, {"default_value", "boolean"});
  if (value.is_undefined() || (bound.truth(1, false) && !value.truth()))
    return bound.has(0) ? bound[0] : Value::text("");
  return value;
}

Value length(Interpreter&, const Value& value, Arguments& arguments) {
  const Bound bound("length", arguments, {});
  const std::optional<size_t> size = length_of(value);
  if (!size) throw Failure("object of type '" + value.type() + "' has no len()");
  return Value::integer(*size);
}

Value list(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("list", arguments, {});
  return Value::list(collect(value, interpreter.budget()));
}

Value first(Interpreter&, const Value& value, Arguments& arguments) {
  const Bound bound("first", arguments, {});
  Value element;
  return iterate(value)(element) ? element : Value::undefined("No first item, sequence was empty.");
}

// reversed(value) as a list; TypeError where Python cannot reverse.
Items reversed(const Value& value, Budget& budget) {
  const bool views = value.object_as<DictView>() != nullptr;
  if (value.is(Kind::object) && !views && !value.as_object()->is_sequence())
    throw Failure("'" + value.type() + "' object is not reversible");
  if (value.is_undefined()) return {};
  Items items = collect(value, budget);
  std::reverse(items.begin(), items.end());
  return items;
}

Value last(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("last", arguments, {});
  const Items items = reversed(value, interpreter.budget());
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.front();
}

Value reverse(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("reverse", arguments, {});
  if (value.is_text()) {
    std::u32string points = code_points(value.as_text());
    std::reverse(points.begin(), points.end());
    return Value::text(to_utf8(points), value.is_markup());
  }
  Items items = collect(value, interpreter.budget());
  std::reverse(items.begin(), items.end());
  if (value.is(Kind::object) && value.object_as<Iterator>()) return Value::list(std::move(items));
  const Value held = Value::list(std::move(items));
  return Iterator::make(held.depth(), iterate(held), "list_reverseiterator");
}

Value join(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("join", arguments, {"d", "attribute"});
  const AttributePath path(bound[1]);
  const std::string separator = bound.has(0) ? str(bound[0], interpreter.budget()) : "";
  std::string text;
  bool first_one = true;
  const Next next = iterate(value);
  for (Value element; next(element); first_one = false) {
    interpreter.budget().step();
    const std::string one = str(path.get(interpreter, element), interpreter.budget());
    interpreter.budget().grow(text, separator.size() + one.size());
    if (!first_one) text += separator;
    text += one;
  }
  return Value::text(std::move(text));
}

Value dict_sort(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = bound.text(1, "key");
  if (by != "key" && by != "value") throw Failure("You can only sort by either \"key\" or \"value\"");
  if (!value.is(Kind::dict)) throw Failure("dictsort wants a dict, not " + value.type());
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, item] : value.as_dict().items()) {
    const Value& chosen = by == "key" ? key : item;
    keyed.emplace_back(bound.truth(0, false) ? chosen : ignoring_case(chosen), Value::tuple({key, item}));
  }
  sort_by_keys(keyed, bound.truth(2, false), interpreter);
  Items items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return Value::list(std::move(items));
}

Value sort(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<AttributePath> paths;
  if (bound[2].is_text()) {
    for (const std::string_view part : split_left(bound[2].as_text(), ",", -1))
      paths.emplace_back(Value::text(std::string(part)));
  } else {
    paths.emplace_back(bound[2]);
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : collect(value, interpreter.budget())) {
    Items keys;
    for (const AttributePath& path : paths) {
      const Value key = path.get(interpreter, item);
      keys.push_back(bound.truth(1, false) ? key : ignoring_case(key));
    }
    keyed.emplace_back(Value::list(std::move(keys)), item);
  }
  sort_by_keys(keyed, bound.truth(0, false), interpreter);
  Items items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return Value::list(std::move(items));
}

template <bool largest>
Value extreme(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("min", arguments, {"case_sensitive", "attribute"});
  const AttributePath path(bound[1]);
  Value best, best_key;
  bool any = false;
  for (const Value& item : collect(value, interpreter.budget())) {
    const Value own = path.get(interpreter, item);
    const Value key = bound.truth(0, false) ? own : ignoring_case(own);
    if (any && !(largest ? compare(key, best_key, interpreter.budget(), ">") == 1
                         : compare(key, best_key, interpreter.budget(), "<") == -1))
      continue;
    best = item;
    best_key = key;
    any = true;
  }
  return any ? best : Value::undefined("No aggregated item, sequence was empty.");
}

Value sum(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("sum", arguments, {"attribute", "start"});
  const AttributePath path(bound[0]);
  Value total = bound.has(1) ? bound[1] : Value::integer(Integer(0));
  if (total.is_text()) throw Failure("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : collect(value, interpreter.budget()))
    total = arithmetic("+", total, path.get(interpreter, item), interpreter.budget());
  return total;
}

Value group_by(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const AttributePath path(bound[0]);
  const bool exact = bound.truth(2, false);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : collect(value, interpreter.budget())) {
    const Value key = path.get_or(interpreter, item, bound[1]);
    keyed.emplace_back(exact ? key : ignoring_case(key), item);
  }
  sort_by_keys(keyed, false, interpreter);
  Items groups;
  for (size_t begin = 0; begin < keyed.size();) {
    size_t end = begin;
    Items members;
    while (end < keyed.size() && equal(keyed[end].first, keyed[begin].first, interpreter.budget()))
      members.push_back(keyed[end++].second);
    const Value grouper = exact ? keyed[begin].first : path.get_or(interpreter, keyed[begin].second, bound[1]);
    groups.push_back(Value::tuple({grouper, Value::list(std::move(members))}, true));
    begin = end;
  }
  return Value::list(std::move(groups));
}

}  // namespace

std::vector<NamedFilter> item_filters() {
  return {{"attr", attr},          {"count", length},    {"d", otherwise},      {"default", otherwise},
          {"dictsort", dict_sort}, {"first", first},     {"groupby", group_by}, {"join", join},
          {"last", last},          {"length", length},   {"list", list},        {"max", extreme<true>},
          {"min", extreme<false>}, {"reverse", reverse}, {"sort", sort},        {"sum", sum}};
}

}  // namespace nibble::jinja
