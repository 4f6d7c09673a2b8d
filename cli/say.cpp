#include "nibble/cli/say.h"

#include <unistd.h>

#include "nibble/core/text/visible_text.h"

namespace nibble::cli {

void say(std::FILE* stream, const std::string& line) { std::fprintf(stream, "%s\n", visible_text(line).c_str()); }

void say_error(const std::string& what) { say(stderr, "error: " + what); }

std::string for_stream(std::FILE* stream, const std::string& piece) {
  return isatty(fileno(stream)) == 1 ? visible_text(piece, Lines::many) : piece;
}

}  // namespace nibble::cli
