#pragma once
// The one way anything is written: under a temporary name beside the target, synced, then renamed. A reader (or a run
// that was killed) sees the old file or the new one, never a part.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// Names of unfinished files and directories start with this, see temporary_name.h.
inline constexpr std::string_view kTemporaryPrefix = ".tmp-nibble-";

/// What may be replaced where something is to be written.
enum class Replace : uint8_t {
  nothing,   ///< a target that exists is a UsageError
  own,       ///< what nibble wrote itself: see AtomicDirectory
  anything,  ///< whatever it is
};

/// `path` as messages give it: without the temporary directory that it is built in.
std::filesystem::path shown_path(const std::filesystem::path& path);

/// `path`, or where it leads where it is a link, which need not exist. Throws IoError for links that lead in a circle.
std::filesystem::path follow_links(const std::filesystem::path& path);

/// A file that appears whole under its name at commit(), or not at all: the destructor removes what was not committed.
/// A link stays and what it leads to is written; a character device or a FIFO is written to from front to back as the
/// bytes come. All errors are IoError with the system's text; a full disk also says how many bytes were needed and are
/// free.
class AtomicFile {
 public:
  /// Opens a temporary file in the directory of `path`, which must exist. Throws UsageError for a block device, and
  /// where `path` exists and may not be replaced; a file has no mark of its maker, so that `own` is as `anything`.
  explicit AtomicFile(const std::filesystem::path& path, Replace replace = Replace::anything);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// Sets `bytes` bytes of the file system aside for this file, so that a disk that is too full is known before the
  /// writing begins. Throws IoError naming both numbers. File systems that cannot reserve only check.
  void reserve(uint64_t bytes);
  /// Appends; short writes and interruptions are retried.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Writes at `offset` without moving the end of what write() appended.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);

  /// fsync, close, rename to path(), fsync of the directory. A target that exists is replaced in one step, or with
  /// Replace::nothing a UsageError also where it came while this was written.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty: path_ is no regular file and written to itself
  Replace replace_;
  int descriptor_ = -1;
  uint64_t end_ = 0;
};

/// Writes `content` as the whole file `path`.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// A directory that appears whole under its name at commit(), or not at all. A link stays and what it leads to is
/// written.
class AtomicDirectory {
 public:
  /// Makes a temporary directory beside `target`, and the parents of `target` where they are missing. A target that
  /// exists and is not an empty directory is a UsageError unless it may be replaced: see require_replaceable.
  explicit AtomicDirectory(const std::filesystem::path& target, Replace replace = Replace::nothing);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  const std::filesystem::path& target() const { return target_; }
  /// Where the content is to be built until commit().
  const std::filesystem::path& path() const { return content_; }

  /// Writes the list of the files (kFileList) by which Replace::own knows a directory again.
  void list_files();
  /// Syncs every file and directory inside, renames to target() (or swaps with the old one, which is then removed),
  /// syncs the parent.
  void commit();

 private:
  void remove_temporary();

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  std::filesystem::path content_;                    // in temporary_
  std::vector<std::filesystem::path> made_parents_;  // outermost first
  Replace replace_;
  int lock_ = -1;
};

/// In a directory that nibble wrote for people: the names of the files it wrote there, one a line.
inline constexpr std::string_view kFileList = ".nibble.files";

/// Throws UsageError unless a directory may be written at `target` (links followed): nothing or an empty directory is
/// there; with Replace::own also a directory that has a kFileList and nothing that is not listed there; with
/// Replace::anything also any other directory, or a regular file.
void require_replaceable(const std::filesystem::path& target, Replace replace);

/// Why Replace::own keeps what is at `target`; empty where it may be replaced.
std::string why_not_own(const std::filesystem::path& target);

/// Copies a regular file (links are followed), whole and synced.
void copy_file_atomically(const std::filesystem::path& from, const std::filesystem::path& to);

/// Removes `path` and, of a directory, all that is in it; nothing where it is not there. Interruptions are retried.
/// Throws IoError.
void remove_tree(const std::filesystem::path& path);

/// fsync of a directory, so that names made or removed in it survive a loss of power.
void sync_directory(const std::filesystem::path& directory);

/// Throws IoError unless a file can be made, written and removed in `directory`: ask before hours of work.
void write_probe(const std::filesystem::path& directory);

/// Bytes that an ordinary user may still write on the file system of `directory`.
uint64_t free_bytes(const std::filesystem::path& directory);

/// Throws IoError, naming both numbers, unless `bytes` are free on the file system of `directory`.
void require_free_bytes(const std::filesystem::path& directory, uint64_t bytes, const std::string& what);

}  // namespace nibble
