#pragma once
// Compressed bytes: files of gzip and Zstandard as streams, and blocks inside of other files.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace nibble {

/// Unpacks one file from begin to end: gzip members (RFC 1952) or Zstandard frames (RFC 8878), one after another.
class StreamUnpacker {
 public:
  /// For a file that begins with `begin` (4 bytes or more, where it has them); null where it is of neither kind. `path`
  /// is for errors.
  static std::unique_ptr<StreamUnpacker> open(std::string_view begin, const std::string& path);
  virtual ~StreamUnpacker() = default;

  /// Takes bytes from the front of `packed` and writes to `out`, until one of them is empty. Returns the bytes written.
  /// Throws InputError for bytes that are no such stream or break its check sum.
  virtual size_t unpack(std::span<const char>& packed, std::span<char> out) = 0;
  /// Whether what was taken so far ends with a whole member or frame.
  virtual bool is_whole() const = 0;
};

enum class BlockCodec : unsigned char { none, snappy, gzip, zstd };

/// Unpacks a block that becomes exactly out.size() bytes; false where it does not.
bool unpack_block(BlockCodec codec, std::span<const std::byte> packed, std::span<std::byte> out);

}  // namespace nibble
