#include "nibble/core/io/files/open_file.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace nibble {

namespace {

bool is_named(int descriptor, const std::filesystem::path& path) {
  struct stat held {};
  struct stat named {};
  return fstat(descriptor, &held) == 0 && stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

}  // namespace

int open_file(const std::filesystem::path& path, int flags, mode_t mode) {
  int descriptor = -1;
  for (int wait_ms = 50; wait_ms <= 800; wait_ms *= 2) {
    descriptor = uninterrupted([&] { return open(path.c_str(), flags | O_CLOEXEC, mode); });
    if (descriptor >= 0 || errno != ESTALE) return descriptor;
    std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
    errno = ESTALE;
  }
  return descriptor;
}

LockedFile open_and_lock(const std::filesystem::path& path, int flags, mode_t mode) {
  for (;;) {
    LockedFile file;
    file.descriptor = open_file(path, flags, mode);
    const bool locked =
        file.descriptor >= 0 && uninterrupted([&] { return flock(file.descriptor, LOCK_EX | LOCK_NB); }) == 0;
    if (!locked) file.error = errno;
    if (!locked || is_named(file.descriptor, path)) return file;
    close(file.descriptor);  // who had the lock before took the name away
  }
}

int sync_file(int descriptor) {
  return uninterrupted([&] { return fsync(descriptor); });
}

}  // namespace nibble
