#include "nibble/cli/printing/table.h"

#include <algorithm>
#include <cstdio>

#include "nibble/cli/printing/wrap.h"
#include "nibble/core/text/unicode/visible_text.h"

namespace nibble::cli {

namespace {

std::vector<std::string> lines_of(std::vector<std::vector<std::string>> rows) {
  std::vector<size_t> widths;
  for (auto& row : rows) {
    for (std::string& cell : row) cell = visible_text(cell);
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::vector<std::string> lines;
  for (const auto& row : rows) {
    std::string& line = lines.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i] + (i + 1 < row.size() ? std::string(widths[i] - row[i].size() + 2, ' ') : "");
    }
  }
  return lines;
}

}  // namespace

void print_table(const std::vector<std::vector<std::string>>& rows) {
  for (const std::string& line : lines_of(rows)) std::printf("%s\n", line.c_str());
}

bool table_fits(const std::vector<std::vector<std::string>>& rows) {
  const size_t columns = terminal_columns(stdout);
  return columns == 0 ||
         std::ranges::all_of(lines_of(rows), [&](const std::string& line) { return line.size() <= columns; });
}

}  // namespace nibble::cli
