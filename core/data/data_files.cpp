#include <glob.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "nibble/core/base/error.h"
#include "nibble/core/data/record_reader.h"
#include "nibble/core/io/mistaken_file.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 4> kExtensions = {".jsonl", ".ndjson", ".json", ".txt"};

bool is_readable_type(const fs::path& path) {
  return std::find(kExtensions.begin(), kExtensions.end(), path.extension().string()) != kExtensions.end();
}

std::vector<std::string> files_in_directory(const fs::path& directory) {
  std::vector<std::string> files;
  std::error_code failure;
  fs::directory_iterator entries(directory, failure);
  if (failure) throw IoError(directory.string(), "cannot be listed: " + failure.message(), "check its permissions");
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with('.') && is_readable_type(entry.path()) && entry.is_regular_file(failure)) {
      files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    throw InputError(directory.string(), "holds no .jsonl, .json or .txt file", "name the data files");
  }
  return files;
}

std::vector<std::string> matches_of(const std::string& pattern) {
  glob_t found{};
  const int result = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> files;
  if (result == 0) files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return files;
}

std::vector<std::string> files_of_pattern(const std::string& pattern) {
  std::vector<std::string> files = matches_of(pattern);
  if (files.empty()) {
    throw InputError(pattern, "no such file, and no file matches it as a pattern",
                     missing_path_remedy(pattern, " --repo-type dataset --local-dir DIR"));
  }
  return files;
}

void check_file(const std::string& path) {
  std::error_code failure;
  const fs::file_status status = fs::status(path, failure);
  if (!fs::is_regular_file(status)) {
    throw InputError(path, fs::is_directory(status) ? "is a directory" : "is not a regular file", "give a data file");
  }
  if (!is_readable_type(path)) {
    throw InputError(path, "has a type that is not read", "convert it to .jsonl, .json or .txt (UTF-8, uncompressed)");
  }
}

}  // namespace

std::vector<fs::path> data_paths(const std::vector<DataSource>& sources) {
  std::vector<fs::path> paths;
  for (const DataSource& source : sources) {
    std::error_code failure;
    if (fs::exists(source.path, failure)) {
      paths.emplace_back(source.path);
    } else {
      for (const std::string& file : matches_of(source.path)) paths.emplace_back(file);
    }
  }
  return paths;
}

std::vector<DataFile> find_data_files(const std::vector<DataSource>& sources) {
  std::vector<DataFile> files;
  for (size_t source = 0; source < sources.size(); ++source) {
    const std::string& path = sources[source].path;
    std::error_code failure;
    std::vector<std::string> found;
    if (fs::is_directory(path, failure)) {
      found = files_in_directory(path);
    } else if (fs::exists(path, failure)) {
      found = {path};
    } else {
      found = files_of_pattern(path);
    }
    for (std::string& file : found) {
      check_file(file);
      files.push_back({std::move(file), static_cast<uint32_t>(source)});
    }
  }
  return files;
}

}  // namespace nibble
