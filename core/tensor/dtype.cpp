#include "nibble/core/tensor/dtype.h"

namespace nibble {

size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::i8:
    case DType::u8:
    case DType::f8_e4m3:
      return 1;
  }
  return 0;
}

std::string_view dtype_name(DType dtype) {
  constexpr std::string_view names[] = {"f32", "bf16", "f16", "f64", "i64", "i32", "i8", "u8", "f8_e4m3"};
  return names[static_cast<size_t>(dtype)];
}

}  // namespace nibble
