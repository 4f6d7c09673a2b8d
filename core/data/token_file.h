#pragma once
// Encoded data on disk: blocks of token codes in a mapped file, so that data larger than memory need none of it.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

namespace nibble {

/// A file of int32 codes that grows by blocks. Blocks that are full are given back to the system, which writes them out
/// and keeps as many as it has room for.
class TokenFile {
 public:
  /// Makes the file. Throws IoError when it cannot be written.
  explicit TokenFile(const std::filesystem::path& path);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  struct Block {
    std::shared_ptr<int32_t[]> codes;
    uint64_t first = 0;  ///< number of its first code in the file
  };
  /// A further block with room for `count` codes; those before it are released. Throws IoError without space.
  Block grow(size_t count);
  /// Cuts the file behind code `count` and writes it out.
  void finish(uint64_t count);

 private:
  std::filesystem::path path_;
  int file_ = -1;
  uint64_t codes_ = 0;
  std::weak_ptr<int32_t[]> last_;
  size_t last_count_ = 0;
};

/// Gives the pages that codes of a mapped file lie on back to the system: they no longer count as this process's, and
/// are read again when they are used. Others may be reading there at the same time.
void release_codes(const int32_t* begin, const int32_t* end);

}  // namespace nibble
