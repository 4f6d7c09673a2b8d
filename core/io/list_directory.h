#pragma once
#include <filesystem>
#include <vector>

namespace nibble {

/// What is in `directory`, in the order of the names. Throws IoError, also where it fails half way.
std::vector<std::filesystem::directory_entry> list_directory(const std::filesystem::path& directory);

}  // namespace nibble
