#pragma once
// Thrift's compact protocol, in which Parquet writes what it says about its pages. Read only, from bytes of any origin.
// https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string_view>

namespace nibble {

/// What the reader throws; who knows the file's name catches it.
struct BrokenThrift : std::runtime_error {
  BrokenThrift() : std::runtime_error("broken Thrift") {}
};

class ThriftReader {
 public:
  explicit ThriftReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  enum Type : uint8_t { stop, yes, no, i8, i16, i32, i64, f64, binary, list, set, map, structure };

  /// Calls `use` with the number and the type of each field of a struct; what it does not read is skipped.
  void read_struct(const std::function<void(int, Type)>& use);
  /// Calls `use` with the type of the elements for each element of a list, which it must read.
  void read_list(const std::function<void(Type)>& use);
  /// Of a field of type i8 to i64; i32 throws for a larger number.
  int64_t read_integer();
  int32_t read_i32();
  std::string_view read_text();
  /// What a field of type yes or no says.
  static bool truth(Type type) { return type == yes; }

  /// Bytes behind what was read.
  std::span<const std::byte> rest() const { return bytes_.subspan(next_); }

 private:
  uint8_t byte();
  uint64_t varint();
  void skip(Type type);
  struct Size {
    uint64_t count;
    Type type;
  };
  Size read_size();

  std::span<const std::byte> bytes_;
  size_t next_ = 0;
  bool taken_ = false;  // whether `use` read the field
  int depth_ = 0;
};

}  // namespace nibble
