#pragma once
// Values as text: Python's str() and repr(), and json.dumps(). What they make is charged. For .cpp files of
// jinja/.

#include <optional>
#include <string>

#include "nibble/core/text/chat/jinja/values/value.h"

namespace nibble::jinja {

/// str(value).
std::string str(const Value& value, Budget& budget);
/// repr(value).
std::string repr(const Value& value, Budget& budget);
/// ascii() of it: repr() with escapes for all that is not ASCII.
std::string ascii_repr(const Value& value, Budget& budget);
std::string repr_text(std::string_view text);
/// repr() of a float: the shortest digits that give it back, 1.0, 1e-07, 1e+16, nan, inf.
std::string float_text(double value);

/// json.dumps' arguments.
struct JsonForm {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  ///< one level of it; nullopt: all on one line
  std::string item_separator = ", ", key_separator = ": ";
};
/// Throws Failure for what JSON has no form for.
std::string to_json(const Value& value, const JsonForm& form, Budget& budget);

}  // namespace nibble::jinja
