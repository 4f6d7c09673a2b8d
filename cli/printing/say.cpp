#include "nibble/cli/printing/say.h"

#include <unistd.h>

#include <algorithm>
#include <cstdarg>

#include "nibble/core/text/unicode/visible_text.h"

namespace nibble::cli {

void say(std::FILE* stream, const std::string& line) { std::fprintf(stream, "%s\n", visible_text(line).c_str()); }

void say(std::FILE* stream, const char* format, ...) {
  va_list values, again;
  va_start(values, format);
  va_copy(again, values);
  std::string line(static_cast<size_t>(std::max(0, std::vsnprintf(nullptr, 0, format, values))) + 1, '\0');
  std::vsnprintf(line.data(), line.size(), format, again);
  va_end(again);
  va_end(values);
  line.pop_back();
  say(stream, line);
}

void say_error(const std::string& what) { say(stderr, "error: " + what); }

std::string for_stream(std::FILE* stream, const std::string& piece) {
  return isatty(fileno(stream)) == 1 ? visible_text(piece, Lines::many) : piece;
}

}  // namespace nibble::cli
