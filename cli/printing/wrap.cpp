#include "nibble/cli/printing/wrap.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace nibble::cli {

namespace {

// Characters of UTF-8 text, each taken to fill one column.
size_t width(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

// Columns before what follows a break.
size_t indentation(const std::string& line, size_t columns) {
  const size_t begin = std::min(line.find_first_not_of(' '), line.size()), gap = line.find("  ", begin);
  const size_t listed = gap == std::string::npos ? gap : line.find_first_not_of(' ', gap);
  return listed <= columns / 2 ? listed : begin + 2;
}

std::string broken(const std::string& line, size_t columns) {
  if (width(line) <= columns || line.starts_with("  nibble ") || line.starts_with("Example: ")) return line;
  const size_t indent = indentation(line, columns);
  std::string output, row;
  for (size_t at = 0, end = 0; at < line.size(); at = end) {  // blanks and the word behind them
    const size_t word = std::min(line.find_first_not_of(' ', at), line.size());
    end = std::min(line.find(' ', word), line.size());
    if (at > 0 && width(row) + width(line.substr(at, end - at)) > columns) {
      output += row + "\n";
      row = std::string(indent, ' ') + line.substr(word, end - word);
    } else {
      row += line.substr(at, end - at);
    }
  }
  return output + row;
}

}  // namespace

size_t terminal_columns(std::FILE* stream) {
  if (isatty(fileno(stream)) != 1) return 0;
  winsize size{};
  return ioctl(fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0 ? 80 : size.ws_col;
}

std::string wrapped(const std::string& text, size_t columns) {
  if (columns == 0) return text;
  std::string output;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    output += broken(text.substr(at, end - at), columns) + (end < text.size() ? "\n" : "");
    at = end + 1;
  }
  return output;
}

}  // namespace nibble::cli
