#pragma once
// A matrix in 4 bits as bitsandbytes stores it (its Linear4bit state dict): packed codes and the scales of blocks.

#include <array>

#include "nibble/core/tensor/tensor.h"

namespace nibble {

/// Which 16 values the codes stand for.
enum class QuantType : uint8_t { nf4, fp4 };

/// W [out, in] as n = out * in codes of 4 bits over the row-major flat order. Element i has code
/// `i even ? packed[i / 2] >> 4 : packed[i / 2] & 15` and the value `fp32(table[code] * absmax[i / block_size])`: one
/// f32 multiplication, rounded once more when the product computes in bf16. Blocks may cross row ends.
///
/// The scales are held either as `absmax` (f32), or double-quantized as `absmax_codes`; then
/// `absmax[b] = fp32(nested_map[absmax_codes[b]] * nested_absmax[b / nested_block_size]) + nested_offset`.
///
/// Tensors may be views of a mapped checkpoint, whose f32 elements need not be aligned: read them with memcpy.
struct QuantizedMatrix {
  QuantType type = QuantType::nf4;
  std::array<float, 16> table{};       ///< value of each code, from the checkpoint's quant_map
  int64_t block_size = 64;             ///< elements per absmax: 32, 64, ..., 4096
  Shape shape;                         ///< [out, in]
  DType original_dtype = DType::bf16;  ///< dtype before quantization, as the checkpoint says

  Tensor packed;  ///< u8, ceil(n / 2) bytes in any shape; of an odd n the last low nibble is padding
  Tensor absmax;  ///< f32 [blocks], blocks = ceil(n / block_size); undefined when double-quantized

  Tensor absmax_codes;              ///< u8 [blocks]; undefined without double quantization, as the next two
  Tensor nested_absmax;             ///< f32 [ceil(blocks / nested_block_size)]
  Tensor nested_map;                ///< f32 [256]
  float nested_offset = 0;          ///< mean of all absmax
  int64_t nested_block_size = 256;  ///< scales per nested_absmax

  bool double_quantized() const { return absmax_codes.defined(); }
  int64_t out_features() const { return shape.at(0); }
  int64_t in_features() const { return shape.at(1); }
  int64_t blocks() const { return (out_features() * in_features() + block_size - 1) / block_size; }
};

}  // namespace nibble
