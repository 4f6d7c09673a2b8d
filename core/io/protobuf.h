#pragma once
// Protocol buffers as far as they are written here: a message is fields one after another, each a tag
// (number << 3 | wire type) and a value.

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace nibble {

class ProtoWriter {
 public:
  std::string bytes;

  void integer(uint32_t field, uint64_t value) {
    varint(field << 3);
    varint(value);
  }
  /// A text, or another message.
  void text(uint32_t field, std::string_view value) {
    varint(field << 3 | 2);
    varint(value.size());
    bytes += value;
  }
  void real(uint32_t field, float value) {
    varint(field << 3 | 5);
    fixed(value);
  }
  void real(uint32_t field, double value) {
    varint(field << 3 | 1);
    fixed(value);
  }
  /// Little-endian, as every machine this runs on.
  template <typename T>
  void fixed(T value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes.append(raw, sizeof value);
  }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    bytes += static_cast<char>(value);
  }
};

}  // namespace nibble
