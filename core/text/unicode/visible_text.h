#pragma once
// Text of others for people: what would steer a terminal or turn the order of letters is shown, not obeyed.

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

enum class Lines : uint8_t {
  one,   ///< a line break is shown too
  many,  ///< line breaks stay
};

/// `text` with control characters (C0 but tab, DEL) and bytes that are no UTF-8 as \x1b, and C1 controls, marks of
/// direction (U+202E and the like) and Unicode's line separators as <U+202E>.
std::string visible_text(std::string_view text, Lines lines = Lines::one);

}  // namespace nibble
