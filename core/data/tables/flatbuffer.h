#pragma once
// Flatbuffers, in which Arrow describes its data: tables whose fields are found by number. Read only, from bytes of any
// origin. https://flatbuffers.dev/internals/

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string_view>

namespace nibble {

/// What the reader throws; who knows the file's name catches it.
struct BrokenFlatbuffer : std::runtime_error {
  BrokenFlatbuffer() : std::runtime_error("broken Flatbuffer") {}
};

class FlatTable {
 public:
  /// A vector: where its first element is, and how many there are.
  struct Vector {
    size_t begin = 0, count = 0;
  };

  /// No table: every field is absent.
  FlatTable() = default;
  static FlatTable root(std::span<const std::byte> bytes) { return FlatTable(bytes, target(bytes, 0)); }

  bool is_there() const { return !bytes_.empty(); }
  bool has(int field) const { return place(field) != 0; }
  /// A number; `otherwise` where the field is absent.
  template <typename T>
  T number(int field, T otherwise) const {
    const size_t at = place(field);
    return at == 0 ? otherwise : load<T>(bytes_, at);
  }
  FlatTable table(int field) const {
    const size_t at = place(field);
    return at == 0 ? FlatTable() : FlatTable(bytes_, target(bytes_, at));
  }
  std::string_view text(int field) const {
    const Vector letters = vector(field, 1);
    return {reinterpret_cast<const char*>(bytes_.data()) + letters.begin, letters.count};
  }
  /// A vector of elements of `size` bytes; empty where the field is absent.
  Vector vector(int field, size_t size) const {
    const size_t at = place(field);
    if (at == 0) return {};
    const size_t begin = target(bytes_, at);
    const auto count = load<uint32_t>(bytes_, begin);
    if (count > (bytes_.size() - begin - 4) / size) throw BrokenFlatbuffer();
    return {begin + 4, count};
  }
  /// Element i of a vector of tables.
  FlatTable element(const Vector& vector, size_t i) const {
    return FlatTable(bytes_, target(bytes_, vector.begin + 4 * i));
  }
  /// The number at `offset` in element i of a vector of structs of `size` bytes.
  int64_t number_in(const Vector& vector, size_t i, size_t size, size_t offset) const {
    return load<int64_t>(bytes_, vector.begin + i * size + offset);
  }

 private:
  FlatTable(std::span<const std::byte> bytes, size_t begin) : bytes_(bytes), begin_(begin) {
    const int64_t fields = static_cast<int64_t>(begin) - load<int32_t>(bytes, begin);
    if (fields < 0) throw BrokenFlatbuffer();
    fields_ = static_cast<size_t>(fields);
    fields_size_ = load<uint16_t>(bytes, fields_);
  }

  template <typename T>
  static T load(std::span<const std::byte> bytes, size_t at) {
    if (at > bytes.size() || bytes.size() - at < sizeof(T)) throw BrokenFlatbuffer();
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  }
  static size_t target(std::span<const std::byte> bytes, size_t at) { return at + load<uint32_t>(bytes, at); }
  // Where field number `field` is; 0 where it is absent.
  size_t place(int field) const {
    const size_t entry = 4 + 2 * static_cast<size_t>(field);
    if (!is_there() || entry + 2 > fields_size_) return 0;
    const auto offset = load<uint16_t>(bytes_, fields_ + entry);
    return offset == 0 ? 0 : begin_ + offset;
  }

  std::span<const std::byte> bytes_;
  size_t begin_ = 0, fields_ = 0, fields_size_ = 0;
};

}  // namespace nibble
