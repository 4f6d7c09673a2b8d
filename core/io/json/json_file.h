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
  /// Read NaN, Infinity and -Infinity, which are no JSON but what Python writes for such numbers, as {"__float__":
  /// "Infinity"}, which is what Transformers 5 writes for them.
  bool python_numbers = false;
  /// Make ["a", "b"] in "merges" the "a b" of older tokenizers, where no blank is in either: a third of the memory.
  bool join_merges = false;
};

/// Of a model's config.json.
inline constexpr JsonLimits kModelConfigJson{.python_numbers = true};

/// The whole file as bytes. IoError when it cannot be read or is no regular file, InputError when it is larger than
/// `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, size_t max_bytes = size_t{64} << 20);

/// Parses `text`; `place` is the file (or other place) that errors name: InputError "place:line:column: reason".
nlohmann::json parse_json(std::string_view text, const std::string& place, const JsonLimits& limits = {});

/// Reads and parses a file.
nlohmann::json read_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

/// Whether a file holds a JSON object, with a field `key` where one is named; false where it cannot be read, too.
bool holds_json_object(const std::filesystem::path& path, const std::string& key = "");

/// As Python's json.dumps(value, indent=2, sort_keys=True) + "\n" writes it, atomically; what Hugging Face does with
/// config.json.
void write_json_file(const std::filesystem::path& path, const nlohmann::json& value);

}  // namespace nibble
