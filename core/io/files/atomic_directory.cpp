#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <set>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/directory_lock.h"
#include "nibble/core/io/files/list_directory.h"
#include "nibble/core/io/files/no_space_error.h"
#include "nibble/core/io/files/open_file.h"
#include "nibble/core/io/files/system_error.h"
#include "nibble/core/io/files/temporary_name.h"
#include "nibble/core/io/files/unfinished.h"

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
  if (path == "." || path.filename() == "..") path = fs::weakly_canonical(path);
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
      if (result != 0) throw_system_error(entry.path(), "cannot be synced", error);
    }
  }
  sync_directory(directory);
}

int exchange(const fs::path& a, const fs::path& b) {
  return renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE);
}

struct LockedDirectory {
  fs::path path;
  int lock = -1;
};

// One that a sweep found in the moment before its lock was there is left to it.
LockedDirectory make_locked_directory(const fs::path& parent, const fs::path& target) {
  for (;;) {
    const fs::path path = temporary_directory_name(parent);
    if (mkdir(path.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;
      throw_system_error(target, "cannot be made", errno);
    }
    const LockedFile lock = open_and_lock(path / kLockFile, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
    if (lock.descriptor >= 0 && lock.error != EWOULDBLOCK) return {path, lock.descriptor};
    if (lock.descriptor >= 0) close(lock.descriptor);
    if (lock.descriptor >= 0 || lock.error == ENOENT) continue;
    rmdir(path.c_str());
    throw_system_error(target, "cannot be made", lock.error);
  }
}

// Whether nothing is there, or an empty directory.
bool is_free(const fs::path& target) {
  return !fs::exists(target) || (fs::is_directory(target) && list_directory(target).empty());
}

// The files below `directory`, relative to it.
std::set<std::string> files_below(const fs::path& directory, const fs::path& place = "") {
  std::set<std::string> files;
  for (const fs::directory_entry& entry : list_directory(directory / place)) {
    const fs::path name = place / entry.path().filename();
    if (entry.is_directory() && !entry.is_symlink()) {
      files.merge(files_below(directory, name));
    } else {
      files.insert(name.string());
    }
  }
  return files;
}

// A file of a directory that is not in its list; the list itself where there is none.
std::string file_not_listed(const fs::path& directory) {
  if (!fs::is_regular_file(directory / kFileList)) return std::string(kFileList);
  std::ifstream list(directory / kFileList);
  std::set<std::string> files = files_below(directory);
  files.erase(std::string(kFileList));
  for (std::string name; std::getline(list, name);) files.erase(name);
  return files.empty() ? "" : *files.begin();
}

// Directories that were made on the way; what has something in it stays.
void take_back(const std::vector<fs::path>& built) {
  for (auto p = built.rbegin(); p != built.rend(); ++p) {
    rmdir(p->c_str());
    forget_unfinished(*p);
  }
}

}  // namespace

fs::path shown_path(const fs::path& path) {
  fs::path shown;
  for (const fs::path& part : path) {
    if (!part.string().starts_with(kTemporaryPrefix)) shown /= part;
  }
  return shown;
}

std::string why_not_own(const fs::path& target) {
  if (is_free(target)) return "";
  if (!fs::is_directory(target)) return "is no directory";
  const std::string other = file_not_listed(target);
  if (other.empty()) return "";
  return other == kFileList ? "is not a directory that nibble wrote (it has no " + other + ")"
                            : "holds " + other + ", which nibble did not write";
}

void require_replaceable(const fs::path& given, Replace replace) {
  const fs::path target = follow_links(given);
  if (is_free(target)) return;
  if (replace == Replace::nothing) throw exists_already(target);
  const bool may_go = fs::is_directory(target) || fs::is_regular_file(target);
  const std::string reason = replace == Replace::anything && may_go ? "" : why_not_own(target);
  if (reason.empty()) return;
  const std::string remedy = may_go ? ", or replace all that is there with --force=anything" : "";
  throw UsageError(reason, "choose another name" + remedy, target.string());
}

AtomicDirectory::AtomicDirectory(const fs::path& target, Replace replace)
    : target_(follow_links(without_trailing_slash(target))), replace_(replace) {
  require_replaceable(target_, replace);
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
        throw_system_error(p, "cannot be made", errno);
      }
    }
    const LockedDirectory built = make_locked_directory(parent, target_);
    temporary_ = built.path;
    lock_ = built.lock;
    note_unfinished(temporary_);
    content_ = temporary_ / target_.filename();
    if (mkdir(content_.c_str(), 0777) != 0) throw_system_error(target_, "cannot be made", errno);
  } catch (...) {
    remove_temporary();
    throw;
  }
}

AtomicDirectory::~AtomicDirectory() { remove_temporary(); }

void AtomicDirectory::remove_temporary() {
  if (!temporary_.empty()) {
    std::error_code ignored;  // after commit the new content stands: what is left over here does not undo that
    fs::remove_all(temporary_, ignored);
    forget_unfinished(temporary_);
  }
  if (lock_ >= 0) close(lock_);
  take_back(made_parents_);
  temporary_.clear();
  made_parents_.clear();
  lock_ = -1;
}

void AtomicDirectory::list_files() {
  std::string list;
  for (const std::string& name : files_below(content_)) list += name + "\n";
  write_file_atomically(content_ / kFileList, list);
}

void AtomicDirectory::commit() {
  NIBBLE_CHECK(!temporary_.empty(), "directory is already committed");
  sync_tree(content_);
  auto held = hold_unfinished();
  require_replaceable(target_, replace_);  // what came there meanwhile
  const bool exchanges = !is_free(target_);
  if (!exchanges && rename(content_.c_str(), target_.c_str()) != 0) {
    if (errno == ENOTEMPTY || errno == EEXIST) throw exists_already(target_);
    throw_system_error(target_, "cannot be made", errno);
  }
  if (exchanges && exchange(content_, target_) != 0) {
    if (errno != EINVAL && errno != ENOSYS) throw system_error(target_, "cannot be replaced", errno);
    // A file system that cannot swap. Not a temporary name: a run killed between the two renames leaves the old content
    // where it is found again.
    const fs::path old = target_.string() + ".replaced-" + std::to_string(getpid());
    if (rename(target_.c_str(), old.c_str()) != 0) throw system_error(target_, "cannot be moved away", errno);
    if (rename(content_.c_str(), target_.c_str()) != 0) {
      const int error = errno;
      rename(old.c_str(), target_.c_str());
      throw_system_error(target_, "cannot be made", error);
    }
    std::error_code ignored;
    fs::remove_all(old, ignored);
  }
  for (const fs::path& p : made_parents_) forget_unfinished(p);
  held.unlock();
  for (const fs::path& p : made_parents_) sync_directory(parent_of(p));
  made_parents_.clear();
  sync_directory(parent_of(target_));
  remove_temporary();
}

}  // namespace nibble
