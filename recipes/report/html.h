#pragma once
// Pages that need nothing beside themselves. Internal to recipes/report.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// `text` with & < > " as entities, and as visible_text() shows it.
std::string escape_html(std::string_view text);

/// A whole page, which begins with kPageMark (own_contents.h): title, style for light and dark screens, and `body`.
std::string html_page(std::string_view title, const std::string& body);

enum class Columns : uint8_t { by_content, even };

/// A table; the first row is its head. Cells are escaped. Where the screen is too narrow for it, it is scrolled alone.
std::string html_table(const std::vector<std::vector<std::string>>& rows, Columns columns = Columns::by_content);

}  // namespace nibble
