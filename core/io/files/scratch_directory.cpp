#include "nibble/core/io/files/scratch_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <system_error>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/directory_lock.h"
#include "nibble/core/io/files/open_file.h"
#include "nibble/core/io/files/unfinished.h"

namespace nibble {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kName = "nibble-scratch-XXXXXX", kRandom = "XXXXXX";

// Removes what processes of this user that are gone left; what has no lock file is not ours, or is being made.
void sweep(const fs::path& temporary) {
  std::error_code error;
  for (fs::directory_iterator entry(temporary, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    struct stat status {};
    const bool ours = name.size() == kName.size() && name.starts_with(kName.substr(0, kName.size() - kRandom.size())) &&
                      lstat(entry->path().c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                      status.st_uid == geteuid();
    if (!ours) continue;
    const LockedFile owner = open_and_lock(entry->path() / kLockFile, O_RDWR | O_NOFOLLOW);
    std::error_code ignored;
    if (owner.descriptor >= 0 && owner.error == 0) fs::remove_all(entry->path(), ignored);
    if (owner.descriptor >= 0) close(owner.descriptor);
  }
}

}  // namespace

ScratchDirectory::ScratchDirectory() {
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  if (error) throw IoError("TMPDIR", "names no directory", "set it to a directory with space");
  sweep(temporary);
  const auto held = hold_unfinished();
  for (;;) {
    std::string name = (temporary / kName).string();
    if (mkdtemp(name.data()) == nullptr) throw IoError(name, "cannot be made", "set TMPDIR to a directory with space");
    path_ = name;
    const LockedFile lock = open_and_lock(path_ / kLockFile, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    lock_ = lock.descriptor;
    if (lock_ >= 0 && lock.error != EWOULDBLOCK) break;
    if (lock_ >= 0) {
      close(lock_);  // a sweep found it in the moment before: it is left to that
    } else if (lock.error != ENOENT) {
      rmdir(path_.c_str());
      throw IoError(name, "cannot be made", "set TMPDIR to a directory with space");
    }
  }
  note_unfinished(path_);
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  close(lock_);
  forget_unfinished(path_);
}

}  // namespace nibble
