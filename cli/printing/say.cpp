#include "nibble/cli/printing/say.h"

#include <unistd.h>

#include <cstdarg>
#include <nlohmann/json.hpp>

#include "nibble/cli/printing/wrap.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/text/unicode/visible_text.h"

namespace nibble::cli {

void say(std::FILE* stream, const std::string& line) {
  std::fprintf(stream, "%s\n", wrapped(visible_text(line), terminal_columns(stream)).c_str());
}

void say(std::FILE* stream, const char* format, ...) {
  va_list values;
  va_start(values, format);
  say(stream, formatted_list(format, values));
  va_end(values);
}

void say_error(const std::string& what) { say(stderr, "error: " + what); }

std::string json_line(const nlohmann::ordered_json& value) {
  const bool escapes = isatty(STDOUT_FILENO) == 1;  // marks in texts of others would steer it
  return value.dump(-1, ' ', escapes, nlohmann::json::error_handler_t::replace);
}

void print_json(const nlohmann::ordered_json& value) { std::printf("%s\n", json_line(value).c_str()); }

std::string for_stream(std::FILE* stream, const std::string& piece) {
  return isatty(fileno(stream)) == 1 ? visible_text(piece, Lines::many) : piece;
}

}  // namespace nibble::cli
