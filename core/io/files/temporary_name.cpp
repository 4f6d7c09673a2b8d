#include "nibble/core/io/files/temporary_name.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string_view>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/directory_lock.h"
#include "nibble/core/io/files/list_directory.h"
#include "nibble/core/io/files/open_file.h"

namespace nibble {
namespace fs = std::filesystem;

namespace {

constexpr size_t kLongestTarget = 200;  // bytes: the temporary name must fit the file system too

fs::path temporary_name(const fs::path& directory, const char* kind) {
  static std::atomic<uint64_t> counter{0};
  return directory /
         (std::string(kTemporaryPrefix) + std::to_string(getpid()) + "-" + kind + std::to_string(counter.fetch_add(1)));
}

bool take_digits(std::string_view& text) {
  size_t count = 0;
  while (count < text.size() && text[count] >= '0' && text[count] <= '9') ++count;
  text.remove_prefix(count);
  return count > 0;
}

struct TemporaryName {
  bool ours = false;
  bool directory = false;
  std::string_view target;  // where the name has it
};

TemporaryName parse(std::string_view name) {
  TemporaryName parsed;
  if (!name.starts_with(kTemporaryPrefix)) return parsed;
  name.remove_prefix(kTemporaryPrefix.size());
  if (!take_digits(name) || !name.starts_with('-')) return parsed;
  name.remove_prefix(1);
  parsed.directory = name.starts_with('d');
  if (parsed.directory) name.remove_prefix(1);
  parsed.ours = take_digits(name) && (name.empty() || name.starts_with('-'));
  if (parsed.ours && !name.empty()) parsed.target = name.substr(1);
  return parsed;
}

// Whether the directory would have become `target`, or had nothing in it yet.
bool is_for(const fs::path& directory, const std::string& target) {
  for (const fs::directory_entry& entry : list_directory(directory)) {
    const fs::path name = entry.path().filename();
    if (name != kLockFile && name != target) return false;
  }
  return true;
}

bool sweep(const fs::directory_entry& entry, const std::string& target) {
  const std::string name = entry.path().filename().string();
  const TemporaryName parsed = parse(name);
  const fs::file_type type = entry.symlink_status().type();
  if (!parsed.ours || type != (parsed.directory ? fs::file_type::directory : fs::file_type::regular)) return false;
  if (!target.empty() && !(parsed.directory ? is_for(entry.path(), target) : parsed.target == target)) return false;
  const LockedFile owner = parsed.directory
                               ? open_and_lock(entry.path() / kLockFile, O_RDWR | O_CREAT | O_NOFOLLOW, 0666)
                               : open_and_lock(entry.path(), O_RDWR | O_NOFOLLOW | O_NONBLOCK);
  std::error_code error;
  if (owner.descriptor >= 0 && owner.error == 0) fs::remove_all(entry.path(), error);
  if (owner.descriptor >= 0) close(owner.descriptor);
  return owner.descriptor >= 0 && owner.error == 0 && !error;
}

}  // namespace

fs::path temporary_file_name(const fs::path& directory, const std::string& target) {
  fs::path name = temporary_name(directory, "");
  if (!target.empty() && target.size() <= kLongestTarget) name += "-" + target;
  return name;
}

fs::path temporary_directory_name(const fs::path& directory) { return temporary_name(directory, "d"); }

int sweep_leftovers(const fs::path& directory, const std::string& target) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) return 0;
  std::vector<fs::directory_entry> entries;
  try {
    entries = list_directory(directory);
  } catch (const IoError&) {  // what cannot be listed is not swept
    return 0;
  }
  int swept = 0;
  for (const fs::directory_entry& entry : entries) {
    try {
      swept += sweep(entry, target);
    } catch (const std::exception&) {  // another process was faster
    }
  }
  return swept;
}

}  // namespace nibble
