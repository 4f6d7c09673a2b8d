#pragma once
// Jinja2's filters, tests and global functions by name, with Transformers' own. For .cpp files of jinja/.

#include <string_view>

#include "nibble/core/text/chat/jinja/interpreter.h"

namespace nibble::jinja {

using Filter = Value (*)(Interpreter&, const Value& value, Arguments& arguments);
using Test = bool (*)(Interpreter&, const Value& value, Arguments& arguments);

struct NamedFilter {
  std::string_view name;
  Filter filter;
};
struct NamedTest {
  std::string_view name;
  Test test;
};

/// Null for an unknown name.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);

/// The parts of find_filter's table.
std::vector<NamedFilter> text_filters();
std::vector<NamedFilter> item_filters();
std::vector<NamedFilter> lazy_filters();
std::vector<NamedFilter> number_filters();

/// raise_exception, strftime_now, namespace, dict, range, cycler, joiner, lipsum: the same for every rendering.
const Dict& globals();

/// A method or attribute that Python's value has: "strip" of text, "items" of a dict; nullopt where there is none.
/// Methods that change a list or dict come as an undefined value that says so.
std::optional<Value> python_attribute(const Value& value, std::string_view name);

/// Methods of text.
std::optional<Value> text_method(const Value& text, std::string_view name);

/// text.format(...) and format(value, spec).
std::string format_text(Interpreter& interpreter, const std::string& format, const Arguments& arguments);
std::string format_value(const Value& value, std::string_view spec, Budget& budget);

/// printf's floats: conversion one of eEfFgG%.
std::string format_float(double value, char conversion, int precision, bool alternate);

/// A getter for attribute="a.b.0", as map, sort and the like take it.
class AttributePath {
 public:
  /// None: the value itself.
  explicit AttributePath(const Value& attribute);
  Value get(Interpreter& interpreter, Value value) const;
  Value get_or(Interpreter& interpreter, Value value, const Value& otherwise) const;

 private:
  std::vector<Value> parts_;
};

/// Lower case of text, other values as they are.
Value ignoring_case(const Value& value);

/// Stable sort by key; Python's order, which Failure reports for types without one.
void sort_by_keys(std::vector<std::pair<Value, Value>>& keyed, bool reverse, Interpreter& interpreter);

int depth_of(const Value& value, const Arguments& arguments);

}  // namespace nibble::jinja
