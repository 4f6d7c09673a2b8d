#include "nibble/core/io/hub/hub_cache.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json/json_file.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestRevision = 256;

fs::path path_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Letters that repositories' names have: no patterns, no ~.
bool is_name(const std::string& part) {
  return part.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
             std::string::npos &&
         !part.empty() && part != "." && part != "..";
}

// The snapshot of a repository; empty where it has none.
fs::path snapshot_of(const fs::path& repository) {
  std::error_code failure;
  const fs::path main = repository / "refs/main";
  if (fs::is_regular_file(main, failure)) {
    std::string revision = read_text_file(main.string(), kLongestRevision);
    revision.erase(revision.find_last_not_of(" \r\n") + 1);
    if (!is_name(revision)) throw InputError(main.string(), "names no revision", "download the repository again");
    fs::path snapshot = repository / "snapshots" / revision;
    if (!fs::is_directory(snapshot, failure)) {
      throw InputError(main.string(), "names a snapshot that is not there", "download the repository again");
    }
    return snapshot;
  }
  std::vector<fs::path> snapshots;
  for (fs::directory_iterator entry(repository / "snapshots", failure), end; !failure && entry != end;
       entry.increment(failure)) {
    if (entry->is_directory(failure)) snapshots.push_back(entry->path());
  }
  if (snapshots.size() > 1) {
    throw InputError(repository.string(), "has several snapshots and no refs/main",
                     "name one, such as " + std::min_element(snapshots.begin(), snapshots.end())->string());
  }
  return snapshots.empty() ? fs::path() : snapshots.front();
}

}  // namespace

fs::path hub_cache() {
  if (fs::path cache = path_variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const fs::path home = path_variable("HF_HOME"); !home.empty()) return home / "hub";
  if (const fs::path cache = path_variable("XDG_CACHE_HOME"); !cache.empty()) return cache / "huggingface/hub";
  const fs::path home = path_variable("HOME");
  return home.empty() ? fs::path() : home / ".cache/huggingface/hub";
}

fs::path find_in_hub(const fs::path& named, std::string_view kind) {
  const std::string prefix = std::string(kind) + "--";
  std::error_code failure;
  if (fs::exists(named, failure)) {
    const fs::path folder = named.has_filename() ? named : named.parent_path();
    const bool repository = folder.filename().string().starts_with(prefix) && fs::is_directory(folder / "snapshots");
    const fs::path snapshot = repository ? snapshot_of(folder) : fs::path();
    return snapshot.empty() ? named : snapshot;
  }
  const fs::path cache = hub_cache();
  if (cache.empty() || named.empty() || named.is_absolute()) return named;
  std::vector<std::string> parts;
  for (const fs::path& part : named) parts.push_back(part.string());
  for (size_t count = std::min<size_t>(2, parts.size()); count > 0; --count) {
    std::string folder = prefix + parts[0];
    if (!is_name(parts[0]) || !is_name(parts[count - 1])) continue;
    if (count == 2) folder += "--" + parts[1];
    if (!fs::is_directory(cache / folder, failure)) continue;
    fs::path found = snapshot_of(cache / folder);
    if (found.empty()) return named;
    for (size_t i = count; i < parts.size(); ++i) found /= parts[i];
    return found;
  }
  return named;
}

std::string hub_id(const fs::path& snapshot) {
  const fs::path folder = snapshot.has_filename() ? snapshot : snapshot.parent_path();
  const fs::path snapshots = folder.parent_path();
  const std::string name = snapshots.parent_path().filename().string(), prefix = std::string(kHubModels) + "--";
  if (snapshots.filename() != "snapshots" || !name.starts_with(prefix)) return "";
  std::string id = name.substr(prefix.size());
  if (const size_t owner = id.find("--"); owner != std::string::npos) id.replace(owner, 2, "/");
  return id;
}

}  // namespace nibble
