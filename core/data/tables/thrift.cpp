#include "nibble/core/data/tables/thrift.h"

#include <limits>

namespace nibble {

namespace {
constexpr int kMostNestedStructs = 32;
}

uint8_t ThriftReader::byte() {
  if (next_ == bytes_.size()) throw BrokenThrift();
  return static_cast<uint8_t>(bytes_[next_++]);
}

uint64_t ThriftReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t next = byte();
    value |= static_cast<uint64_t>(next & 0x7F) << shift;
    if (next < 0x80) return value;
  }
  throw BrokenThrift();
}

int64_t ThriftReader::read_integer() {
  taken_ = true;
  const uint64_t zigzag = varint();
  return static_cast<int64_t>(zigzag >> 1) ^ -static_cast<int64_t>(zigzag & 1);
}

int32_t ThriftReader::read_i32() {
  const int64_t value = read_integer();
  if (value != static_cast<int32_t>(value)) throw BrokenThrift();
  return static_cast<int32_t>(value);
}

std::string_view ThriftReader::read_text() {
  taken_ = true;
  const uint64_t size = varint();
  if (size > bytes_.size() - next_) throw BrokenThrift();
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + next_, size);
  next_ += size;
  return text;
}

ThriftReader::Size ThriftReader::read_size() {
  const uint8_t head = byte();
  const uint64_t count = head >> 4 == 15 ? varint() : head >> 4;
  if (count > bytes_.size() - next_) throw BrokenThrift();  // an element has a byte at least
  return {count, static_cast<Type>(head & 15)};
}

void ThriftReader::read_struct(const std::function<void(int, Type)>& use) {
  if (++depth_ > kMostNestedStructs) throw BrokenThrift();
  int64_t id = 0;
  for (;;) {
    const uint8_t head = byte();
    const auto type = static_cast<Type>(head & 15);
    if (type == stop) break;
    const int delta = head >> 4;
    id = delta != 0 ? id + delta : read_integer();
    if (id < 0 || id > std::numeric_limits<int16_t>::max()) throw BrokenThrift();
    taken_ = false;
    const size_t begin = next_;
    use(static_cast<int>(id), type);
    if (!taken_ && next_ == begin) skip(type);
  }
  --depth_;
  taken_ = true;
}

void ThriftReader::read_list(const std::function<void(Type)>& use) {
  const Size size = read_size();
  for (uint64_t i = 0; i < size.count; ++i) use(size.type);
  taken_ = true;
}

void ThriftReader::skip(Type type) {
  switch (type) {
    case yes:
    case no:
      return;
    case i8:
      byte();
      return;
    case i16:
    case i32:
    case i64:
      varint();
      return;
    case f64:
      for (int i = 0; i < 8; ++i) byte();
      return;
    case binary:
      read_text();
      return;
    case list:
    case set: {
      if (++depth_ > kMostNestedStructs) throw BrokenThrift();
      const Size size = read_size();
      for (uint64_t i = 0; i < size.count; ++i) size.type == yes || size.type == no ? void(byte()) : skip(size.type);
      --depth_;
      return;
    }
    case map: {
      if (++depth_ > kMostNestedStructs) throw BrokenThrift();
      const uint64_t count = varint();
      if (count > bytes_.size() - next_) throw BrokenThrift();
      const uint8_t types = count > 0 ? byte() : 0;
      for (uint64_t i = 0; i < count; ++i) {
        skip(static_cast<Type>(types >> 4));
        skip(static_cast<Type>(types & 15));
      }
      --depth_;
      return;
    }
    case structure:
      read_struct([](int, Type) {});
      return;
    default:
      throw BrokenThrift();
  }
}

}  // namespace nibble
