#include "nibble/core/io/files/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/no_space_error.h"
#include "nibble/core/io/files/open_file.h"
#include "nibble/core/io/files/system_error.h"
#include "nibble/core/io/files/temporary_name.h"
#include "nibble/core/io/files/unfinished.h"

namespace nibble {
namespace fs = std::filesystem;

namespace {

fs::path directory_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

[[noreturn]] void throw_write_error(const fs::path& target, const fs::path& directory, int error, uint64_t needed) {
  if (error != ENOSPC) throw_system_error(target, "cannot be written", error);
  uint64_t free = 0;  // where there is more than needed (a quota, a device) it tells nothing
  try {
    free = free_bytes(directory);
  } catch (const IoError&) {  // the first failure is the one to report
  }
  throw NoSpaceError(IoError(shown_path(target).string(),
                             "no space left on the device: " + bytes_text(static_cast<double>(needed)) + " are needed" +
                                 (free < needed ? ", " + bytes_text(static_cast<double>(free)) + " are free" : ""),
                             "free space in " + shown_path(directory).string() + " or write elsewhere"));
}

// Gives `temporary` the name `target`, where nothing may be; EEXIST where something is.
int rename_to_new(const fs::path& temporary, const fs::path& target) {
  const int renamed = renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE);
  if (renamed == 0 || (errno != EINVAL && errno != ENOSYS)) return renamed;
  // A file system without that flag: a second name can only be given where there is none.
  if (link(temporary.c_str(), target.c_str()) != 0) return -1;
  unlink(temporary.c_str());
  return 0;
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& path, Replace replace) : path_(path), replace_(replace) {
  struct stat status {};
  const bool exists = stat(path.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) throw system_error(path, "cannot be written", EISDIR);
  if (exists && S_ISBLK(status.st_mode)) {
    throw UsageError("is a block device", "name a file, a pipe or a character device", path.string());
  }
  if (exists && !S_ISREG(status.st_mode)) {
    descriptor_ = open_file(path, O_WRONLY | O_NOCTTY);
    if (descriptor_ < 0) throw system_error(path, "cannot be written", errno);
    return;
  }
  path_ = follow_links(path);
  if (exists && replace == Replace::nothing) throw exists_already(path_);
  const fs::path directory = directory_of(path_);
  const auto held = hold_unfinished();
  LockedFile file;
  do {
    if (file.descriptor >= 0) close(file.descriptor);  // swept in the moment before the lock was there
    temporary_ = temporary_file_name(directory, path_.filename().string());
    file = open_and_lock(temporary_, O_WRONLY | O_CREAT | O_EXCL, 0666);
  } while (file.error == (file.descriptor < 0 ? EEXIST : EWOULDBLOCK));
  descriptor_ = file.descriptor;
  if (descriptor_ >= 0) {
    note_unfinished(temporary_);
    return;
  }
  temporary_.clear();
  throw_write_error(path_, directory, file.error, 0);
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) {
    unlink(temporary_.c_str());
    forget_unfinished(temporary_);
  }
  if (descriptor_ >= 0) close(descriptor_);
}

void AtomicFile::reserve(uint64_t bytes) {
  NIBBLE_CHECK(descriptor_ >= 0, "file is already committed");
  if (temporary_.empty()) return;
  require_free_bytes(directory_of(path_), bytes, shown_path(path_).string());
  if (bytes == 0) return;
  const int result =
      uninterrupted([&] { return fallocate(descriptor_, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)); });
  // A file system that cannot reserve is written to without: what it lacks shows later.
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) {
    throw_write_error(path_, directory_of(path_), errno, bytes);
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  const uint64_t begin = end_;
  write_at(begin, bytes);
  end_ = begin + bytes.size();
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  NIBBLE_CHECK(descriptor_ >= 0, "file is already committed");
  constexpr uint64_t kSendBytes = uint64_t{32} << 20;
  const uint64_t begin = offset;
  constexpr size_t kLargestWrite = size_t{1} << 30;  // Linux writes at most 2^31 - 4096 bytes in one call
  const bool streams = temporary_.empty();
  if (streams && offset != end_) {
    if (offset < end_) throw IoError(path_.string(), "can only be written from front to back", "name a file");
    const std::vector<std::byte> gap(offset - end_);
    write_at(end_, gap);
  }
  while (!bytes.empty()) {
    const size_t size = std::min(bytes.size(), kLargestWrite);
    const ssize_t written = uninterrupted([&] {
      return streams ? ::write(descriptor_, bytes.data(), size)
                     : pwrite(descriptor_, bytes.data(), size, static_cast<off_t>(offset));
    });
    if (written <= 0) throw_write_error(path_, directory_of(path_), written < 0 ? errno : EIO, bytes.size());
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  if (streams) end_ = offset;
  if (streams || begin / kSendBytes == offset / kSendBytes) return;
  // The disk begins now, beside whatever makes the next bytes, instead of when the file is committed, which also says
  // whether it failed.
  (void)sync_file_range(descriptor_, 0, 0, SYNC_FILE_RANGE_WRITE);
}

void AtomicFile::commit() {
  NIBBLE_CHECK(descriptor_ >= 0, "file is already committed");
  const bool streams = temporary_.empty();
  if (!streams && sync_file(descriptor_) != 0) throw_write_error(path_, directory_of(path_), errno, 0);
  const int written = descriptor_;
  descriptor_ = fcntl(written, F_DUPFD_CLOEXEC, 0);  // keeps the lock until the temporary name is gone
  if (close(written) != 0 && errno != EINTR) throw_write_error(path_, directory_of(path_), errno, 0);
  if (!streams) {
    auto held = hold_unfinished();
    const int renamed =
        replace_ == Replace::nothing ? rename_to_new(temporary_, path_) : rename(temporary_.c_str(), path_.c_str());
    if (renamed != 0 && errno == EEXIST) throw exists_already(path_);
    if (renamed != 0) throw_write_error(path_, directory_of(path_), errno, 0);
    forget_unfinished(temporary_);
    held.unlock();
    temporary_.clear();
    sync_directory(directory_of(path_));
  }
  if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
}

fs::path follow_links(const fs::path& path) {
  fs::path at = path;
  std::error_code error;
  for (int links = 0; fs::is_symlink(at, error); ++links) {
    if (links == 40) throw system_error(path, "cannot be followed", ELOOP);
    const fs::path next = fs::read_symlink(at, error);
    if (error) throw system_error(at, "cannot be followed", error.value());
    at = at.parent_path() / next;  // an absolute one stands for itself
  }
  return at;
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

void copy_file_atomically(const fs::path& from, const fs::path& to) {
  const int descriptor = open_file(from, O_RDONLY | O_NONBLOCK);
  if (descriptor < 0) throw system_error(from, "cannot be opened", errno);
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor);
    throw IoError(from.string(), "is not a regular file", "give the path of a file");
  }
  try {
    AtomicFile file(to);
    std::vector<std::byte> buffer(size_t{1} << 20);
    for (;;) {
      const ssize_t count = uninterrupted([&] { return read(descriptor, buffer.data(), buffer.size()); });
      if (count < 0) throw system_error(from, "cannot be read", errno);
      if (count == 0) break;
      file.write(std::span<const std::byte>(buffer.data(), static_cast<size_t>(count)));
    }
    file.commit();
  } catch (...) {
    close(descriptor);
    throw;
  }
  close(descriptor);
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  do {
    fs::remove_all(path, error);
  } while (error == std::errc::interrupted);
  if (error) throw IoError(path.string(), "cannot be removed: " + error.message(), "remove it by hand");
}

void sync_directory(const fs::path& directory) {
  const int descriptor = open_file(directory, O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) throw system_error(directory, "cannot be opened", errno);
  const int result = sync_file(descriptor);
  const int error = errno;
  close(descriptor);
  // Some network file systems cannot sync a directory and say so; there is nothing more to do there.
  if (result != 0 && error != EINVAL) throw_system_error(directory, "cannot be synced", error);
}

void write_probe(const fs::path& directory) {
  const fs::path name = temporary_file_name(directory);
  note_unfinished(name);
  const int descriptor = open_file(name, O_WRONLY | O_CREAT | O_EXCL, 0666);
  if (descriptor < 0) {
    const int error = errno;
    forget_unfinished(name);
    throw system_error(directory, "cannot be written to", error);
  }
  const std::array<char, 4096> block{};
  size_t written = 0;
  int error = 0;
  while (error == 0 && written < block.size()) {
    const ssize_t count = uninterrupted([&] { return ::write(descriptor, &block[written], block.size() - written); });
    if (count <= 0) error = count < 0 ? errno : ENOSPC;
    if (count > 0) written += static_cast<size_t>(count);
  }
  if (error == 0 && sync_file(descriptor) != 0) error = errno;
  if (close(descriptor) != 0 && errno != EINTR && error == 0) error = errno;
  unlink(name.c_str());
  forget_unfinished(name);
  if (error != 0) throw_write_error(directory, directory, error, block.size());
}

uint64_t free_bytes(const fs::path& directory) {
  struct statvfs status {};
  if (statvfs(directory.c_str(), &status) != 0) throw system_error(directory, "has no file system to ask", errno);
  return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
}

void require_free_bytes(const fs::path& directory, uint64_t bytes, const std::string& what) {
  const uint64_t free = free_bytes(directory);
  if (bytes <= free) return;
  throw NoSpaceError(IoError(what,
                             "needs " + bytes_text(static_cast<double>(bytes)) + ", " +
                                 bytes_text(static_cast<double>(free)) + " are free on its device",
                             "free space in " + shown_path(directory).string() + " or write elsewhere"));
}

}  // namespace nibble
