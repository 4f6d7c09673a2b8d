#pragma once

#include "nibble/core/io/npy.h"

namespace nibble::test {

inline void write_npy(const std::filesystem::path& path, const Tensor& value) {
  NpyWriter writer(path, value.shape(), value.dtype());
  writer.append(value);
  writer.finish();
}

}  // namespace nibble::test
