#pragma once
// Python's textwrap.wrap and markupsafe's striptags, for filters. For .cpp files of jinja/.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::jinja {

/// textwrap.wrap(line, width, expand_tabs=False, replace_whitespace=False, ...).
std::vector<std::string> wrap_text(std::string_view line, int64_t width, bool break_long_words, bool break_on_hyphens);

/// Markup(text).striptags(): no tags and comments, white space as single blanks, character references resolved.
std::string strip_markup(std::string text);

}  // namespace nibble::jinja
