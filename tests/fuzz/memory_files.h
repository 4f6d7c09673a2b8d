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

 private:
  std::filesystem::path path_;
};

/// A file of such a directory, held open: an input costs one write.
class MemoryFile {
 public:
  MemoryFile(const MemoryDirectory& directory, const char* name, std::string_view bytes = "")
      : path_((directory.path() / name).string()), file_(open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)) {
    if (file_ < 0) std::abort();
    write(bytes);
  }
  ~MemoryFile() { close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const { return path_; }

  /// Makes the file hold exactly `bytes`.
  void write(std::string_view bytes) {
    if (pwrite(file_, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
    if (bytes.size() < size_ && ftruncate(file_, static_cast<off_t>(bytes.size())) != 0) std::abort();
    size_ = bytes.size();
  }

 private:
  std::string path_;
  int file_;
  size_t size_ = 0;
};

}  // namespace nibble::fuzz
