#pragma once
// The JSON header of a safetensors file, checked.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/tensor/tensor.h"

namespace nibble::detail {

/// One entry of the header; the bytes [begin, end) count from the end of the header.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  uint64_t begin = 0, end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< ascending begin
  std::map<std::string, std::string> metadata;
};

/// Parses the header `text` of file `path`, whose tensors take `data_bytes` bytes. InputError when it is no JSON object
/// of the right form, a name comes twice, an element type is unknown, a shape overflows or disagrees with its bytes, or
/// the tensors do not tile the data without gap and overlap.
SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_bytes, const std::string& path);

/// "F32" for DType::f32 and so on.
std::string_view safetensors_dtype_name(DType dtype);

/// Place of the element type in a file: the safetensors library writes tensors of a smaller place first.
int safetensors_dtype_place(DType dtype);

}  // namespace nibble::detail
