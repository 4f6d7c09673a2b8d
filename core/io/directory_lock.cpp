#include "nibble/core/io/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <string>

#include "nibble/core/base/error.h"
#include "nibble/core/io/open_file.h"
#include "nibble/core/io/system_error.h"

namespace nibble {

namespace {

// A run that ends before it begins takes its lock file away: the name may belong to another file by now.
bool is_named(int descriptor, const std::filesystem::path& path) {
  struct stat held {};
  struct stat named {};
  return fstat(descriptor, &held) == 0 && stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

}  // namespace

DirectoryLock::DirectoryLock(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / ".nibble.lock";
  int locked = 0;
  do {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
    if (descriptor_ < 0) throw system_error(path, "cannot be opened", errno);
    locked = uninterrupted([&] { return flock(descriptor_, LOCK_EX | LOCK_NB); });
  } while (locked == 0 && !is_named(descriptor_, path));
  if (locked != 0) {
    const int error = errno;
    std::array<char, 256> holder{};
    const ssize_t count = pread(descriptor_, holder.data(), holder.size() - 1, 0);
    close(descriptor_);
    if (error != EWOULDBLOCK) throw system_error(path, "cannot be locked", error);
    std::string who(holder.data(), count > 0 ? static_cast<size_t>(count) : 0);
    if (const size_t end = who.find('\n'); end != std::string::npos) who.resize(end);
    throw IoError(directory.string(), "is in use by another run (" + who + ")",
                  "wait for it, stop it, or choose another output directory");
  }
  std::array<char, 128> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string line = "process " + std::to_string(getpid()) + " on " + host.data() + "\n";
  // The line is for people only: that it cannot be written does not weaken the lock.
  if (ftruncate(descriptor_, 0) == 0) {
    [[maybe_unused]] const ssize_t written = pwrite(descriptor_, line.data(), line.size(), 0);
  }
}

DirectoryLock::~DirectoryLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace nibble
