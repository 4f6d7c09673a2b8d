#pragma once
// JSON files of any origin, read with limits; errors say file, line and column.

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace nibble {

/// What a JSON file may be.
struct JsonLimits {
  size_t max_bytes = size_t{64} << 20;
  int max_depth = 64;
  bool comments = false;     ///< allow // and /* */ (recipes)
  bool unique_keys = false;  ///< refuse an object with the same key twice (otherwise the last one counts, as in Python)
};

/// The whole file as bytes. IoError when it cannot be read or is no regular file, InputError when it is larger than
/// `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, size_t max_bytes = size_t{64} << 20);

/// Parses `text`; `place` is the file (or other place) that errors name: InputError "place:line:column: reason".
nlohmann::json parse_json(std::string_view text, const std::string& place, const JsonLimits& limits = {});

/// Reads and parses a file.
nlohmann::json read_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

/// As Python's json.dumps(value, indent=2, sort_keys=True) + "\n" writes it, atomically; what Hugging Face does with
/// config.json.
void write_json_file(const std::filesystem::path& path, const nlohmann::json& value);

}  // namespace nibble
