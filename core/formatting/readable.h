#pragma once
// Numbers as people read them.

#include <cstdarg>
#include <cstdint>
#include <string>

namespace nibble {

/// What printf prints.
[[gnu::format(printf, 1, 2)]] std::string formatted(const char* pattern, ...);
std::string formatted_list(const char* pattern, va_list values);
/// "512 B", "13.0 MiB", "2.31 GiB": three digits, units of 1024.
std::string bytes_text(double bytes);
/// "12s", "3m 20s", "2h 05m", "3d 04h".
std::string seconds_text(double seconds);
/// With the fraction that seconds_text leaves out, where there is less than a minute: "0.0123 s", "12.3 s".
std::string precise_seconds_text(double seconds);
/// "1 thread", "4 threads", "135,000 threads": the word with an s behind all numbers but one.
std::string count_text(int64_t count, const std::string& word);
/// Where the number decides more than an s: "1 record is", "3 records are".
std::string count_text(int64_t count, const std::string& one, const std::string& many);
/// "135,000,000".
std::string grouped_text(int64_t count);

}  // namespace nibble
