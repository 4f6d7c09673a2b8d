#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "nibble/core/base/error.h"
#include "nibble/core/io/atomic_file.h"
#include "nibble/core/io/list_directory.h"
#include "nibble/core/io/open_file.h"
#include "nibble/core/io/system_error.h"
#include "nibble/core/io/unfinished.h"

namespace nibble {
namespace fs = std::filesystem;

namespace {

fs::path parent_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

// Trailing slashes would make the parent the directory itself.
fs::path without_trailing_slash(fs::path path) {
  path = path.lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

bool exists_without_following(const fs::path& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0;
}

void sync_tree(const fs::path& directory) {
  for (const fs::directory_entry& entry : list_directory(directory)) {
    if (entry.is_directory() && !entry.is_symlink()) {
      sync_tree(entry.path());
    } else if (entry.is_regular_file() && !entry.is_symlink()) {
      const int descriptor = open_file(entry.path(), O_RDONLY);
      if (descriptor < 0) throw system_error(entry.path(), "cannot be opened", errno);
      const int result = sync_file(descriptor);
      const int error = errno;
      close(descriptor);
      if (result != 0) throw system_error(entry.path(), "cannot be synced", error);
    }
  }
  sync_directory(directory);
}

int exchange(const fs::path& a, const fs::path& b) {
  return renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE);
}

constexpr size_t kLongestShown = 200;  // of a target's name: the temporary one must fit the file system too

// ".tmp-nibble-PID-dN-TARGET", or without the target where that is long.
fs::path make_temporary_directory(const fs::path& parent, const fs::path& target) {
  static std::atomic<uint64_t> counter{0};
  const std::string shown = target.filename().string();
  const std::string end = shown.size() <= kLongestShown ? "-" + shown : "";
  for (;;) {
    fs::path name = parent / (std::string(kTemporaryPrefix) + std::to_string(getpid()) + "-d" +
                              std::to_string(counter.fetch_add(1)) + end);
    if (mkdir(name.c_str(), 0777) == 0) return name;
    if (errno != EEXIST) throw system_error(target, "cannot be made", errno);
  }
}

// TARGET of such a name; empty where there is none.
std::string target_in(std::string_view name) {
  name.remove_prefix(kTemporaryPrefix.size());
  for (int dashes = 0; dashes < 2; ++dashes) {
    const size_t dash = name.find('-');
    if (dash == std::string_view::npos) return "";
    name.remove_prefix(dash + 1);
  }
  return std::string(name);
}

// Directories that were made on the way; what has something in it stays.
void take_back(const std::vector<fs::path>& made) {
  for (auto p = made.rbegin(); p != made.rend(); ++p) {
    rmdir(p->c_str());
    forget_unfinished(*p);
  }
}

}  // namespace

fs::path shown_path(const fs::path& path) {
  fs::path shown;
  for (const fs::path& part : path) {
    const std::string name = part.string();
    if (!name.starts_with(kTemporaryPrefix)) {
      shown /= part;
    } else if (const std::string target = target_in(name); !target.empty()) {
      shown /= target;
    }
  }
  return shown;
}

AtomicDirectory::AtomicDirectory(const fs::path& target, bool force)
    : target_(without_trailing_slash(target)), force_(force) {
  std::error_code ignored;
  if (exists_without_following(target_) && !force_ && !(fs::is_directory(target_) && fs::is_empty(target_, ignored))) {
    throw UsageError("exists already", "choose another name, or replace it with --force", target_.string());
  }
  const fs::path parent = parent_of(target_);
  std::vector<fs::path> missing;
  for (fs::path p = parent; !exists_without_following(p); p = parent_of(p)) missing.insert(missing.begin(), p);
  const auto held = hold_unfinished();
  try {
    for (const fs::path& p : missing) {
      if (mkdir(p.c_str(), 0777) == 0) {
        made_parents_.push_back(p);
        note_unfinished(p, Leftover::empty_directory);
      } else if (errno != EEXIST) {
        throw system_error(p, "cannot be made", errno);
      }
    }
    temporary_ = make_temporary_directory(parent, target_);
    note_unfinished(temporary_);
  } catch (...) {
    take_back(made_parents_);
    throw;
  }
}

AtomicDirectory::~AtomicDirectory() {
  if (committed_) return;
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
  forget_unfinished(temporary_);
  take_back(made_parents_);
}

void AtomicDirectory::commit() {
  NIBBLE_CHECK(!committed_, "directory is already committed");
  sync_tree(temporary_);
  auto held = hold_unfinished();
  const bool replace = force_ && exists_without_following(target_);
  if (!replace) {
    if (rename(temporary_.c_str(), target_.c_str()) != 0) throw system_error(target_, "cannot be made", errno);
    committed_ = true;
  } else if (exchange(temporary_, target_) == 0) {
    committed_ = true;
    std::error_code ignored;  // the new content stands; an old file that cannot be removed does not undo that
    fs::remove_all(temporary_, ignored);
  } else if (errno == EINVAL || errno == ENOSYS) {  // a file system that cannot swap
    // Not a temporary name: a run killed between the two renames leaves the old content where it is found again.
    const fs::path old = target_.string() + ".replaced-" + std::to_string(getpid());
    if (rename(target_.c_str(), old.c_str()) != 0) throw system_error(target_, "cannot be moved away", errno);
    if (rename(temporary_.c_str(), target_.c_str()) != 0) {
      const int error = errno;
      rename(old.c_str(), target_.c_str());
      throw system_error(target_, "cannot be made", error);
    }
    committed_ = true;
    std::error_code ignored;
    fs::remove_all(old, ignored);
  } else {
    throw system_error(target_, "cannot be replaced", errno);
  }
  forget_unfinished(temporary_);
  for (const fs::path& p : made_parents_) forget_unfinished(p);
  held.unlock();
  for (const fs::path& p : made_parents_) sync_directory(parent_of(p));
  sync_directory(parent_of(target_));
}

}  // namespace nibble
