#include "nibble/core/formatting/readable.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

namespace nibble {

std::string formatted_list(const char* pattern, va_list values) {
  va_list again;
  va_copy(again, values);
  std::string text(static_cast<size_t>(std::max(0, std::vsnprintf(nullptr, 0, pattern, values))), '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

std::string formatted(const char* pattern, ...) {
  va_list values;
  va_start(values, pattern);
  std::string text = formatted_list(pattern, values);
  va_end(values);
  return text;
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  for (; bytes >= 1023.5 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  const int digits = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  return formatted("%.*f %s", digits, bytes, kUnits[unit]);
}

std::string seconds_text(double seconds) {
  const long whole = std::lround(std::clamp(seconds, 0.0, 1e12));
  if (whole < 60) return formatted("%lds", whole);
  if (whole < 3600) return formatted("%ldm %02lds", whole / 60, whole % 60);
  if (whole < 2 * 86400) return formatted("%ldh %02ldm", whole / 3600, whole / 60 % 60);
  return formatted("%ldd %02ldh", whole / 86400, whole / 3600 % 24);
}

std::string precise_seconds_text(double seconds) {
  if (!(seconds < 59.95)) return seconds_text(seconds);
  if (seconds > 0 && seconds < 1e-4) return "under 0.1 ms";
  return formatted("%.3g s", seconds);
}

std::string count_text(int64_t count, const std::string& word) { return count_text(count, word, word + "s"); }

std::string count_text(int64_t count, const std::string& one, const std::string& many) {
  return grouped_text(count) + " " + (count == 1 ? one : many);
}

std::string grouped_text(int64_t count) {
  std::string text = std::to_string(count);
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > (count < 0 ? 1 : 0); at -= 3) {
    text.insert(static_cast<size_t>(at), ",");
  }
  return text;
}

}  // namespace nibble
