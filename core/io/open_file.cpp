#include "nibble/core/io/open_file.h"

#include <unistd.h>

#include <chrono>
#include <thread>

namespace nibble {

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

int sync_file(int descriptor) {
  return uninterrupted([&] { return fsync(descriptor); });
}

}  // namespace nibble
