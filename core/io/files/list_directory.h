#pragma once
#include <filesystem>
#include <vector>

namespace nibble {

/// What is in `directory`, in the order of the names. Throws IoError, also where it fails half way.
std::vector<std::filesystem::directory_entry> list_directory(const std::filesystem::path& directory);

/// `path`, or the nearest above it that exists: where what is to be made at `path` will lie.
std::filesystem::path nearest_existing(const std::filesystem::path& path);

}  // namespace nibble
