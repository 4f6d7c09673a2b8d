#pragma once
// Arrays of a number a sample: in memory, or in a file without a name, so that a data set of any size needs no memory
// of its own.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <type_traits>

namespace nibble {

/// Gives the whole pages in these bytes of a mapped file back to the system: they no longer count as this process's,
/// and are read again when they are used. Others may be reading there at the same time.
void release_pages(std::span<const std::byte> bytes);

/// Bytes that grow; what is new is undefined.
class LargeBytes {
 public:
  /// In a file in `directory`, mapped and shared, which the system writes out when it needs its pages; empty: in
  /// memory.
  explicit LargeBytes(std::filesystem::path directory) : directory_(std::move(directory)) {}
  ~LargeBytes();
  LargeBytes(LargeBytes&& other) noexcept;
  LargeBytes& operator=(LargeBytes&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t capacity() const { return capacity_; }
  const std::filesystem::path& directory() const { return directory_; }
  /// Room for `bytes` at least; the content may move. Throws IoError without space in the directory, std::bad_alloc.
  void reserve(size_t bytes);
  /// See release_pages(); nothing in memory.
  void release() const;

 private:
  std::filesystem::path directory_;
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  int file_ = -1;

  void grow_file(size_t bytes);
};

/// A vector of plain values over LargeBytes.
template <typename T>
class LargeArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit LargeArray(const std::filesystem::path& directory, size_t size = 0) : bytes_(directory) { resize(size); }

  size_t size() const { return size_; }
  T* data() { return reinterpret_cast<T*>(bytes_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data()); }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  const std::filesystem::path& directory() const { return bytes_.directory(); }

  /// New elements are T().
  void resize(size_t size) {
    bytes_.reserve(size * sizeof(T));
    for (size_t i = size_; i < size; ++i) data()[i] = T();
    size_ = size;
  }
  void push_back(const T& value) { append({&value, 1}); }
  /// `values` lie elsewhere.
  void append(std::span<const T> values) {
    const size_t wanted = (size_ + values.size()) * sizeof(T);
    if (wanted > bytes_.capacity()) bytes_.reserve(wanted + bytes_.capacity() / 2);
    for (size_t i = 0; i < values.size(); ++i) data()[size_ + i] = values[i];
    size_ += values.size();
  }
  void release() const { bytes_.release(); }

 private:
  LargeBytes bytes_;
  size_t size_ = 0;
};

}  // namespace nibble
