// The table of filters, and what several of them share.

#include "nibble/core/text/chat/jinja/filters/filters.h"

#include <algorithm>
#include <map>

#include "nibble/core/text/chat/jinja/values/split_lines.h"
#include "nibble/core/text/chat/jinja/values/unicode_text.h"

namespace nibble::jinja {

namespace {

std::map<std::string_view, Filter> make_table() {
  std::map<std::string_view, Filter> table;
  for (const std::vector<NamedFilter>& part : {text_filters(), item_filters(), lazy_filters(), number_filters()}) {
    for (const NamedFilter& filter : part) table.emplace(filter.name, filter.filter);
  }
  return table;
}

}  // namespace

Filter find_filter(std::string_view name) {
  static const std::map<std::string_view, Filter> table = make_table();
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

AttributePath::AttributePath(const Value& attribute) {
  if (attribute.is_none()) return;
  if (!attribute.is_text()) {
    parts_.push_back(attribute);
    return;
  }
  for (const std::string_view part : split_left(attribute.as_text(), ".", -1)) {
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    const std::optional<Integer> index = number ? Integer::parse(part) : std::nullopt;
    parts_.push_back(index ? Value::integer(*index) : Value::text(std::string(part)));
  }
}

Value AttributePath::get(Interpreter& interpreter, Value value) const {
  return get_or(interpreter, std::move(value), {});
}

Value AttributePath::get_or(Interpreter& interpreter, Value value, const Value& otherwise) const {
  for (const Value& part : parts_) {
    interpreter.budget().step();
    value = interpreter.item(value, part);
    if (!otherwise.is_none() && value.is_undefined()) value = otherwise;
  }
  return value;
}

Value ignoring_case(const Value& value) { return value.is_text() ? Value::text(to_lower(value.as_text())) : value; }

void sort_by_keys(std::vector<std::pair<Value, Value>>& keyed, bool reverse, Interpreter& interpreter) {
  // An order that fails or is none (NaN) must not reach std::stable_sort: merge by hand.
  std::vector<std::pair<Value, Value>> other(keyed.size());
  const auto before = [&](const Value& a, const Value& b) {
    interpreter.budget().step();
    return compare(a, b, interpreter.budget()) == -1;
  };
  if (reverse) std::reverse(keyed.begin(), keyed.end());
  for (size_t width = 1; width < keyed.size(); width *= 2) {
    for (size_t begin = 0; begin < keyed.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, keyed.size()), end = std::min(begin + 2 * width, keyed.size());
      for (size_t k = begin, left = begin, right = middle; k < end; ++k) {
        const bool take_right = left >= middle || (right < end && before(keyed[right].first, keyed[left].first));
        other[k] = std::move(keyed[take_right ? right++ : left++]);
      }
    }
    keyed.swap(other);
  }
  if (reverse) std::reverse(keyed.begin(), keyed.end());
}

int depth_of(const Value& value, const Arguments& arguments) {
  int depth = value.depth();
  for (const Value& argument : arguments.positional) depth = std::max(depth, argument.depth());
  for (const auto& [name, argument] : arguments.named) depth = std::max(depth, argument.depth());
  return depth;
}

}  // namespace nibble::jinja
