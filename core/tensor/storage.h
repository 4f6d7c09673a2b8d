#pragma once
// The bytes behind tensors: owned (from a MemoryPool) or mapped from a file. Opaque: packed 4-bit weights, scales and
// JSON are bytes like any other.

#include <cstddef>
#include <memory>
#include <string>

#include "nibble/core/tensor/memory_pool.h"

namespace nibble {

/// A whole file mapped read-only and shared; pages come in on use and ranks on one host share them.
class FileMap {
 public:
  /// Throws IoError when `path` cannot be opened, is not a regular file, or cannot be mapped.
  explicit FileMap(const std::string& path);
  ~FileMap();
  FileMap(const FileMap&) = delete;
  FileMap& operator=(const FileMap&) = delete;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// A range of bytes of one device with one owner behind it. Mapped bytes are read-only: writing to them is a
/// segmentation fault, and Tensor::data<T>() refuses it.
class Storage {
 public:
  /// `bytes` undefined bytes from `pool`, on its device.
  static std::shared_ptr<Storage> owned(MemoryPool& pool, size_t bytes, const std::string& what);
  /// The range [offset, offset + bytes) of `file`; throws InputError when it reaches past the end.
  static std::shared_ptr<Storage> mapped(std::shared_ptr<const FileMap> file, size_t offset, size_t bytes);

  /// `bytes` bytes of `device` at `block` that nobody may write.
  static std::shared_ptr<Storage> read_only(std::shared_ptr<std::byte> block, size_t bytes, const Device& device);

  /// On a device without bytes an address at which nothing is.
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool writable() const { return writable_; }
  const Device& device() const { return *device_; }

 private:
  std::shared_ptr<std::byte> block_;
  std::shared_ptr<const FileMap> file_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  const Device* device_ = &cpu_device();
  bool writable_ = true;
};

}  // namespace nibble
