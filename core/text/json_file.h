#pragma once
// Small JSON files beside a model, read whole. For .cpp files of this folder; nlohmann::json stays out of the public
// headers.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace nibble {

/// Largest tokenizer or configuration file that is read.
inline constexpr uint64_t kMaxTokenizerBytes = uint64_t{256} << 20;

/// The bytes of a file. Throws IoError when it cannot be read, InputError when it is larger than max_bytes.
std::string read_whole_file(const std::filesystem::path& path, uint64_t max_bytes);

/// The JSON value in a file; throws InputError with line and column where it is not JSON.
nlohmann::json read_json_file(const std::filesystem::path& path);

/// The JSON value in `text`, `place` names it in errors.
nlohmann::json parse_json(const std::string& text, const std::string& place);

}  // namespace nibble
