#pragma once
// Files for readers that want a path, kept in memory: a fuzzer writes hundreds of thousands of them.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "nibble/tests/fuzz/targets.h"

namespace nibble::fuzz {

inline std::string_view as_text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

/// A directory in memory, removed at exit.
class MemoryDirectory {
 public:
  MemoryDirectory() {
    std::string name = "/dev/shm/nibble-fuzz-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~MemoryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const char* name) const { return path_ / name; }

  /// Makes `name` hold exactly `bytes`.
  void write(const char* name, std::string_view bytes) const {
    const int file = open((path_ / name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    const bool written = file >= 0 && pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
    if (!written || ftruncate(file, static_cast<off_t>(bytes.size())) != 0) std::abort();
    close(file);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace nibble::fuzz
