#pragma once
// NumPy's .npy files (format versions 1 to 3): little-endian, C order.

#include <filesystem>
#include <string>

#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/tensor/tensor.h"

namespace nibble {

/// The array in `path` as a view on the mapped file. Element types f4 f8 f2 i8 i4 i1 u1 (and b1 as u8). InputError when
/// the file is damaged, of another type, big-endian or in Fortran order.
Tensor read_npy(const std::filesystem::path& path);

/// Writes an array whose shape is known before its elements are. The file appears whole at finish(). The header is
/// filled up with blanks to 256 bytes, more than NumPy's: see mark().
class NpyWriter {
 public:
  /// How the files begin that it writes of this dtype, and no others: for begins_with().
  static std::string mark(DType dtype);

  NpyWriter(const std::filesystem::path& path, const Shape& shape, DType dtype);
  /// The next elements, in row-major order and the said dtype.
  void append(const Tensor& piece);
  /// Publishes the file; all elements must have been written.
  void finish();

 private:
  AtomicFile file_;
  DType dtype_;
  uint64_t missing_;  // bytes
};

}  // namespace nibble
