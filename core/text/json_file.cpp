#include "nibble/core/text/json_file.h"

#include <algorithm>
#include <fstream>

#include "nibble/core/base/error.h"

namespace nibble {

std::string read_whole_file(const std::filesystem::path& path, uint64_t max_bytes) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  if (size < 0) throw IoError(path.string(), "cannot be read", "check the path and its permissions");
  if (static_cast<uint64_t>(size) > max_bytes)
    throw InputError(path.string(), "is larger than " + std::to_string(max_bytes >> 20) + " MiB");
  std::string bytes(static_cast<size_t>(size), '\0');
  file.seekg(0);
  file.read(bytes.data(), size);
  if (file.gcount() != size) throw IoError(path.string(), "cannot be read to its end");
  return bytes;
}

nlohmann::json parse_json(const std::string& text, const std::string& place) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const size_t at = std::min(error.byte == 0 ? 0 : error.byte - 1, text.size());
    const auto line = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n') + 1;
    const size_t before = text.rfind('\n', at == 0 ? 0 : at - 1);
    const size_t column = at - (before == std::string::npos || at == 0 ? 0 : before + 1) + 1;
    throw InputError(place + ":" + std::to_string(line) + ":" + std::to_string(column), "is not JSON");
  }
}

nlohmann::json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_whole_file(path, kMaxTokenizerBytes), path.string());
}

}  // namespace nibble
