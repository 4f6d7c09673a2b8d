#include "nibble/core/io/files/directory_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/open_file.h"
#include "nibble/core/io/files/system_error.h"

namespace nibble {

DirectoryLock::DirectoryLock(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kLockFile;
  const LockedFile file = open_and_lock(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
  descriptor_ = file.descriptor;
  if (descriptor_ < 0) throw system_error(path, "cannot be opened", file.error);
  if (file.error != 0) {
    std::array<char, 256> holder{};
    const ssize_t count = pread(descriptor_, holder.data(), holder.size() - 1, 0);
    close(descriptor_);
    if (file.error != EWOULDBLOCK) throw system_error(path, "cannot be locked", file.error);
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
