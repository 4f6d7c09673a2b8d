#pragma once
// What commands say to people: every line may hold names and texts of others, and goes through visible_text().

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace nibble::cli {

/// A line, whose own breaks are shown; on a terminal it is broken at words, see wrapped().
void say(std::FILE* stream, const std::string& line);
/// The same, put together as printf does.
[[gnu::format(printf, 2, 3)]] void say(std::FILE* stream, const char* format, ...);
/// "error: ..." on standard error.
void say_error(const std::string& what);
/// A line of JSON on standard output; what is no UTF-8 is replaced.
void print_json(const nlohmann::ordered_json& value);
/// The same without its end: a line for stdout, in ASCII alone where that is a terminal.
std::string json_line(const nlohmann::ordered_json& value);

/// A piece of a text as it is shown on a terminal; exactly as it is where the stream is none.
std::string for_stream(std::FILE* stream, const std::string& piece);

}  // namespace nibble::cli
