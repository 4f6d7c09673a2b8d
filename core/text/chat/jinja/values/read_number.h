#pragma once
// Text as numbers, as Python's int() and float() read it. For .cpp files of jinja/.

#include <optional>
#include <string_view>

#include "nibble/core/text/chat/jinja/values/integer.h"

namespace nibble::jinja {

/// int(text, base): blanks around, a sign, single underscores between digits, a prefix where the base has one.
std::optional<Integer> read_integer(std::string_view text, unsigned base);
/// float(text), with inf and nan.
std::optional<double> read_float(std::string_view text);

}  // namespace nibble::jinja
