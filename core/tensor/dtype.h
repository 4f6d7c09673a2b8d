#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "nibble/core/tensor/bfloat16.h"

namespace nibble {

/// Element types a Tensor can have. 4-bit formats are no element types: their packed bytes are u8. f8_e4m3 comes from
/// files alone (sign, 4 bits of exponent, 3 of fraction, no infinities): nothing computes with it.
enum class DType : uint8_t { f32, bf16, f16, f64, i64, i32, i8, u8, f8_e4m3 };

/// Bytes of one element.
size_t dtype_size(DType dtype);

/// "f32", "bf16", ...: recipe and command-line spelling.
std::string_view dtype_name(DType dtype);

/// f32, bf16 or f16: what weights and adapters are.
constexpr bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

template <typename T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct dtype_of<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct dtype_of<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of<int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct dtype_of<uint8_t> {
  static constexpr DType value = DType::u8;
};

}  // namespace nibble
