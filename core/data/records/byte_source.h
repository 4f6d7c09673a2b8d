#pragma once
// The bytes of a file, one after another, unpacked where it is compressed, hashed on the way.

#include <cstdint>
#include <memory>
#include <string>

namespace nibble {

/// Reads a regular file once from begin to end through a small buffer, counting lines and characters. What begins as
/// gzip or Zstandard is unpacked, whatever its name.
class ByteSource {
 public:
  static constexpr int kEnd = -1;

  /// Throws InputError where `path` is no regular file, IoError where it cannot be opened.
  explicit ByteSource(std::string path);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  const std::string& path() const { return path_; }

  /// The next byte without taking it, or kEnd. Throws IoError when reading fails, InputError where compressed data is
  /// broken or ends too early.
  int peek() {
    if (next_ == size_ && !fill()) return kEnd;
    return static_cast<unsigned char>(buffer_[next_]);
  }
  /// Takes the byte that peek() showed; not at the end.
  void skip() {
    const unsigned char byte = static_cast<unsigned char>(buffer_[next_++]);
    if (byte == '\n') {
      ++line_;
      column_ = 1;
    } else {
      column_ += (byte & 0xC0) != 0x80;  // bytes inside a character do not count
    }
  }
  /// Appends bytes to `text` up to the next newline or the end of the buffer, and takes them; false at the end of the
  /// file. The newline itself stays.
  bool append_line_part(std::string& text);
  /// Starts counting columns again: what was read so far (a byte order mark) is no text.
  void restart_line() { column_ = 1; }

  int64_t line() const { return line_; }      ///< of the next byte, from 1
  int64_t column() const { return column_; }  ///< of the next byte, from 1, in characters
  uint64_t bytes() const { return bytes_; }   ///< read from the file so far
  /// XXH3 (64 bits) of the bytes read from the file so far.
  uint64_t hash() const;

 private:
  bool fill();
  bool read_file(std::string& buffer, size_t& size);

  struct State;
  std::string path_;
  std::unique_ptr<State> state_;
  std::string buffer_;
  size_t next_ = 0, size_ = 0;
  int64_t line_ = 1, column_ = 1;
  uint64_t bytes_ = 0;
};

}  // namespace nibble
