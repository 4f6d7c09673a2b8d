#include <glob.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "nibble/core/base/error.h"
#include "nibble/core/data/records/directory_files.h"
#include "nibble/core/data/records/record_reader.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/hub/hub_cache.h"
#include "nibble/core/io/json/mistaken_file.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 7> kTypes = {".jsonl", ".ndjson", ".json", ".txt", ".csv", ".parquet", ".arrow"};

std::vector<std::string> matches_of(const std::string& pattern) {
  glob_t found{};
  const int result = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> files;
  if (result == 0) files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return files;
}

// What a source names: a path, what matches it as a pattern, or what is of that name in the Hugging Face cache.
std::vector<std::string> paths_of(const std::string& named) {
  std::error_code failure;
  const std::string found = find_in_hub(named, kHubDatasets).string();
  if (fs::exists(named, failure)) return {found};
  std::vector<std::string> matches = matches_of(named);
  if (!matches.empty() || found == named) return matches;
  if (fs::exists(found, failure)) return {found};
  return matches_of(found);
}

bool is_directory(const std::vector<std::string>& paths) {
  std::error_code failure;
  return paths.size() == 1 && fs::is_directory(paths.front(), failure);
}

void check_file(const std::string& path) {
  std::error_code failure;
  const fs::file_status status = fs::status(path, failure);
  if (!fs::is_regular_file(status)) {
    throw InputError(path,
                     fs::is_directory(status) ? "is a directory"
                     : fs::exists(status)     ? "is not a regular file"
                                              : "is a link to a file that is not there",
                     "give a data file");
  }
  if (data_type(path).empty()) {
    throw InputError(path, "has a type that is not read", std::string("convert it to ") + kDataTypes);
  }
}

}  // namespace

std::string data_type(const fs::path& named) {
  std::string name = named.filename().string();  // of other systems as DATA.CSV too
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  const fs::path path = name;
  const std::string packed = path.extension().string();
  const bool is_packed = packed == ".gz" || packed == ".zst";
  const std::string type = (is_packed ? path.stem() : path).extension().string();
  const bool known = std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end();
  return known && !(is_packed && (type == ".parquet" || type == ".arrow")) ? type : "";
}

std::vector<fs::path> data_paths(const std::vector<DataSource>& sources) {
  std::vector<fs::path> paths;
  for (const DataSource& source : sources) {
    for (const std::string& path : paths_of(source.path)) paths.emplace_back(path);
  }
  return paths;
}

std::vector<DataFile> find_data_files(const std::vector<DataSource>& sources, DataSplit wanted) {
  std::vector<DataFile> files;
  for (size_t source = 0; source < sources.size(); ++source) {
    const std::string& named = sources[source].path;
    std::vector<std::string> found = paths_of(named);
    if (found.empty()) {
      const bool is_list = named.find(',') != std::string::npos;
      throw InputError(named, "no such file, and no file matches it as a pattern",
                       is_list ? "write several files as a list in brackets, [" + named + "]"
                               : missing_path_remedy(named, " --repo-type dataset"));
    }
    if (is_directory(found)) found = files_of_directory(found.front(), wanted).files;
    for (std::string& file : found) {
      check_file(file);
      files.push_back({std::move(file), static_cast<uint32_t>(source)});
    }
  }
  return files;
}

std::vector<std::string> split_notes(const std::vector<DataSource>& sources, DataSplit wanted) {
  std::vector<std::string> notes;
  for (const DataSource& source : sources) {
    const std::vector<std::string> found = paths_of(source.path);
    if (!is_directory(found)) continue;
    const DirectoryFiles taken = files_of_directory(found.front(), wanted);
    if (taken.split.empty()) continue;
    notes.push_back("note: " + source.path + ": its split " + taken.split + " is taken (" +
                    count_text(std::ssize(taken.files), "file") + ")" +
                    (taken.rest.empty() ? "" : ", not " + joined(taken.rest)));
  }
  return notes;
}

}  // namespace nibble
