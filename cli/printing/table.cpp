#include "nibble/cli/printing/table.h"

#include <algorithm>
#include <cstdio>

#include "nibble/cli/printing/wrap.h"
#include "nibble/core/text/unicode/visible_text.h"

namespace nibble::cli {

void print_table(std::vector<std::vector<std::string>> rows) {
  std::vector<size_t> widths;
  for (auto& row : rows) {
    for (std::string& cell : row) cell = visible_text(cell);
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  const size_t columns = terminal_columns(stdout);
  size_t begin = 1, end = 1;
  do {
    size_t width = widths.empty() ? 0 : widths[0];
    const auto fits = [&] { return end == begin || columns == 0 || width + 2 + widths[end] <= columns; };
    while (end < widths.size() && fits()) width += 2 + widths[end++];
    if (begin > 1) std::printf("\n");
    for (const auto& row : rows) {
      std::string line = row.at(0);
      for (size_t i = begin, before = 0; i < std::min(end, row.size()); before = i++) {
        line += std::string(widths[before] - row[before].size() + 2, ' ') + row[i];
      }
      std::printf("%s\n", wrapped(line, columns).c_str());
    }
    begin = end;
  } while (begin < widths.size());
}

}  // namespace nibble::cli
