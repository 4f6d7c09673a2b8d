#include "nibble/cli/printing/table.h"

#include <algorithm>
#include <cstdio>

#include "nibble/core/text/unicode/visible_text.h"

namespace nibble::cli {

void print_table(std::vector<std::vector<std::string>> rows) {
  std::vector<size_t> widths;
  for (auto& row : rows) {
    for (std::string& cell : row) cell = visible_text(cell);
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i] + (i + 1 < row.size() ? std::string(widths[i] - row[i].size() + 2, ' ') : "");
    }
    std::printf("%s\n", line.c_str());
  }
}

}  // namespace nibble::cli
