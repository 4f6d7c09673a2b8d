#include "nibble/core/io/content_hash.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/open_file.h"
#include "nibble/core/io/files/system_error.h"
#include "nibble/core/io/hash.h"
#include "nibble/core/io/json/json_file.h"

namespace nibble {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kPiece = int64_t{16} << 20;  // what one thread hashes; the hash depends on it
constexpr size_t kBuffer = size_t{256} << 10;  // stays in the second cache level
constexpr time_t kSettled = 2;                 // seconds: the coarsest clock of a file system
constexpr size_t kLongestEntry = size_t{1} << 10;

class OpenFile {
 public:
  explicit OpenFile(const fs::path& path) : path_(path), descriptor_(open_file(path, O_RDONLY | O_NONBLOCK)) {
    if (descriptor_ < 0) throw system_error(path, "cannot be opened", errno);
  }
  ~OpenFile() { close(descriptor_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  struct stat facts() const {
    struct stat found {};
    if (fstat(descriptor_, &found) != 0) throw system_error(path_, "cannot be read", errno);
    if (!S_ISREG(found.st_mode)) throw IoError(path_.string(), "is not a regular file", "give the path of a file");
    return found;
  }
  /// The hash of bytes [begin, end).
  std::string hash(int64_t begin, int64_t end) const {
    const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kBuffer);
    Hasher hasher;
    while (begin < end) {
      const size_t wanted = std::min(kBuffer, static_cast<size_t>(end - begin));
      const ssize_t count = uninterrupted([&] { return pread(descriptor_, buffer.get(), wanted, begin); });
      if (count < 0) throw system_error(path_, "cannot be read", errno);
      if (count == 0) changed();
      hasher.update(std::span(buffer.get(), static_cast<size_t>(count)));
      begin += count;
    }
    return hasher.hex();
  }
  [[noreturn]] void changed() const {
    throw IoError(path_.string(), "changes while it is read", "end what writes it, then run again");
  }

 private:
  fs::path path_;
  int descriptor_;
};

// All that a write changes, in one line.
std::string version_of(const struct stat& facts) {
  std::string line;
  for (const long long number :
       {static_cast<long long>(facts.st_dev), static_cast<long long>(facts.st_ino),
        static_cast<long long>(facts.st_size), static_cast<long long>(facts.st_mtim.tv_sec),
        static_cast<long long>(facts.st_mtim.tv_nsec), static_cast<long long>(facts.st_ctim.tv_sec),
        static_cast<long long>(facts.st_ctim.tv_nsec)}) {
    line += std::to_string(number) + " ";
  }
  return line;
}

std::string hash_of_text(const std::string& text) { return hash_bytes(std::as_bytes(std::span(text))); }

// The entries of files that were read.
class Entries {
 public:
  Entries() {
    const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
    if (cache && *cache == '/') {
      directory_ = cache;
    } else if (home && *home == '/') {
      directory_ = fs::path(home) / ".cache";
    } else {
      return;
    }
    directory_ /= "nibble/content";
    std::error_code ignored;
    fs::create_directories(directory_.parent_path(), ignored);
    mkdir(directory_.c_str(), 0700);
    struct stat found {};
    const bool ours = stat(directory_.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid() &&
                      (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
    if (!ours) directory_.clear();
  }

  std::optional<std::string> find(const struct stat& facts) const {
    std::error_code ignored;
    if (directory_.empty() || !fs::is_regular_file(place(facts), ignored)) return std::nullopt;
    try {
      const std::string text = read_text_file(place(facts), kLongestEntry), version = version_of(facts);
      if (!text.starts_with(version)) return std::nullopt;
      const std::string hash = text.substr(version.size(), 32);
      return text == entry(version, hash) ? std::optional(hash) : std::nullopt;
    } catch (const Error&) {  // then the file is read
      return std::nullopt;
    }
  }

  void add(const struct stat& facts, const std::string& hash) const {
    if (directory_.empty()) return;
    try {
      write_file_atomically(place(facts), entry(version_of(facts), hash));
    } catch (const Error&) {  // then the next start reads the file again
    }
  }

 private:
  // One file, one entry: a newer version of the file replaces it.
  fs::path place(const struct stat& facts) const {
    return directory_ / (std::to_string(facts.st_dev) + "-" + std::to_string(facts.st_ino));
  }
  static std::string entry(const std::string& version, const std::string& hash) {
    return version + hash + " " + hash_of_text(version + hash) + "\n";
  }

  fs::path directory_;  // empty: nothing is remembered
};

bool settled(const struct stat& facts, time_t now) {
  return facts.st_ctim.tv_sec + kSettled < now && facts.st_mtim.tv_sec + kSettled < now;
}

}  // namespace

std::string content_hash(const fs::path& path) {
  const OpenFile file(path);
  const struct stat before = file.facts();
  const Entries entries;
  if (const auto known = entries.find(before)) return *known;
  const time_t now = std::time(nullptr);
  std::vector<std::string> pieces(static_cast<size_t>((before.st_size + kPiece - 1) / kPiece));
  parallel_for(before.st_size, kPiece, [&](int64_t begin, int64_t end) {
    pieces[static_cast<size_t>(begin / kPiece)] = file.hash(begin, end);
  });
  if (version_of(file.facts()) != version_of(before)) file.changed();
  std::string all = std::to_string(before.st_size);
  for (const std::string& piece : pieces) all += piece;
  const std::string hash = hash_of_text(all);
  if (settled(before, now)) entries.add(before, hash);
  return hash;
}

}  // namespace nibble
