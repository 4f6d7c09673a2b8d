#pragma once
// The safetensors format: u64 length, JSON header, bytes of the tensors. Files come from anywhere, so every number in
// the header is checked before it is used; a file that breaks a rule of the format is refused with the tensor's name.

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/tensor/tensor.h"

namespace nibble {

/// A tensor without its bytes.
struct TensorSpec {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
};

/// A safetensors file, mapped read-only. Tensors are views on the map: opening costs the header only, pages are read
/// when touched. Element types F32 F16 BF16 F8_E4M3 F64 I64 I32 I8 U8, and BOOL as u8.
class SafetensorsFile {
 public:
  /// Throws IoError when the file cannot be opened, InputError when it is damaged or has an element type not listed.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }
  /// Names in the order of the bytes in the file.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return tensors_.contains(name); }
  /// The tensor, possibly at an address that is no multiple of its element size; undefined when there is none.
  Tensor find(const std::string& name) const;
  /// The tensor; InputError naming file and tensor when there is none.
  Tensor at(const std::string& name) const;
  /// The header's "__metadata__".
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::string path_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Writes a safetensors file that appears whole at finish(). Shapes are said first; then the bytes of each tensor come
/// in pieces, tensors in any order. Laid out byte for byte as the safetensors library does: by element type (I64 F64
/// F32 I32 BF16 F16 F8_E4M3 I8 U8), then by name, so every tensor is aligned.
class SafetensorsWriter {
 public:
  /// Checks that the space is there. Throws IoError; a name that comes twice is an internal error.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> specs,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  /// The whole tensor `name`; dtype and number of elements must be as declared.
  void write(const std::string& name, const Tensor& value);
  /// The next elements of tensor `name`, in its dtype: rows as they are computed.
  void append(const std::string& name, const Tensor& piece);
  void append_bytes(const std::string& name, std::span<const std::byte> bytes);

  /// Publishes the file; every byte of every tensor must have been written.
  void finish();

 private:
  struct Slot {
    DType dtype;
    uint64_t begin, size, written;
  };
  AtomicFile file_;
  std::unordered_map<std::string, Slot> slots_;
};

/// Size of a file of such tensors, header and all.
uint64_t safetensors_bytes(std::vector<TensorSpec> specs, const std::map<std::string, std::string>& metadata);

/// Writes named tensors that are all in memory as one file.
void write_safetensors(const std::filesystem::path& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace nibble
