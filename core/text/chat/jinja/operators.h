#pragma once
// Python's operators on values. For .cpp files of jinja/.

#include <optional>
#include <string_view>

#include "nibble/core/text/chat/jinja/budget.h"
#include "nibble/core/text/chat/jinja/values/value.h"

namespace nibble::jinja {

/// a + b, -, *, /, //, %, **. Throws Failure where Python raises.
Value arithmetic(std::string_view symbol, const Value& a, const Value& b, Budget& budget);
Value negative(const Value& value);
Value positive(const Value& value);

/// item in container.
bool contains(const Value& container, const Value& item, Budget& budget);

/// object[index] as Python's; nullopt for TypeError and LookupError, which templates turn into undefined.
std::optional<Value> subscript(const Value& object, const Value& index, Budget& budget);

/// object[begin:end:step]; each bound an integer or None. nullopt as above.
std::optional<Value> slice(const Value& object, const Value& begin, const Value& end, const Value& step,
                           Budget& budget);

/// text % arguments (printf's format with Python's conversions).
std::string format_percent(const std::string& format, const Value& arguments, Budget& budget);

/// The elements of an iterable, charged.
Items collect(const Value& iterable, Budget& budget);

}  // namespace nibble::jinja
