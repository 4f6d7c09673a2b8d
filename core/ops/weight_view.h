#pragma once
// What a product reads as its weight: data, not a callback, so that whoever multiplies knows what it is given.

#include <array>
#include <string>

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// W [rows, cols] as codes of 4 bits over the row-major flat order. Element i has code
/// `i even ? packed[i / 2] >> 4 : packed[i / 2] & 15` (the other way round if low_first) and the value
/// `fp32(table[code] * absmax[i / block_size])`: one f32 multiplication, rounded once more when the product computes in
/// bf16. Blocks may cross row ends.
///
/// The scales are held as `absmax` (f32), or as powers of two in `exponents`; then `absmax[b] = 2^(exponents[b] -
/// 127)`; or double-quantized as `absmax_codes`; then `absmax[b] = fp32(nested_map[absmax_codes[b]] * nested_absmax[b /
/// nested_block_size]) + nested_offset`.
///
/// Tensors may be views of a mapped checkpoint, whose f32 elements need not be aligned: read them with memcpy.
struct FourBitMatrix {
  std::array<float, 16> table{};  ///< value of each code
  int64_t block_size = 64;        ///< elements per absmax: 32, 64, ..., 4096
  Shape shape;                    ///< [rows, cols]
  int64_t first_row = 0;  ///< rows of the stored matrix before W's first; what is stored may go on after W's last

  bool low_first = false;  ///< of the two elements of a byte the first is in the low nibble (MXFP4)

  Tensor packed;  ///< u8, ceil(n / 2) bytes of n elements in any shape; of an odd n the last nibble is padding
  Tensor absmax;  ///< f32 [blocks], blocks = ceil(n / block_size); undefined where scales have another form

  /// u8 of `blocks` elements in any shape (E8M0 of the OCP Microscaling formats; 255, their NaN, is an infinity here);
  /// undefined where scales have another form.
  Tensor exponents;

  Tensor absmax_codes;              ///< u8 [blocks]; undefined without double quantization, as the next two
  Tensor nested_absmax;             ///< f32 [ceil(blocks / nested_block_size)]
  Tensor nested_map;                ///< f32 [256]
  float nested_offset = 0;          ///< mean of all absmax
  int64_t nested_block_size = 256;  ///< scales per nested_absmax

  bool double_quantized() const { return absmax_codes.defined(); }
  bool scaled_by_exponents() const { return exponents.defined(); }
  int64_t out_features() const { return shape.at(0); }
  int64_t in_features() const { return shape.at(1); }
  int64_t blocks() const { return (out_features() * in_features() + block_size - 1) / block_size; }
};

/// How the elements of a weight are stored.
enum class WeightEncoding : uint8_t { dense, four_bit };

/// The weight of a product: shares the bytes of its tensors, and is never expanded whole.
struct WeightView {
  /// A matrix [rows, cols] of f32, bf16 or f16, possibly unaligned.
  WeightView(Tensor matrix);  // NOLINT(google-explicit-constructor): what most products read is a plain matrix
  /// Throws InputError naming `name` when the tensors do not fit the shape.
  WeightView(FourBitMatrix matrix, const std::string& name);

  int64_t rows() const { return encoding == WeightEncoding::dense ? dense.dim(0) : four_bit.shape[0]; }
  int64_t cols() const { return encoding == WeightEncoding::dense ? dense.dim(1) : four_bit.shape[1]; }
  /// Rows [begin, end), without a copy.
  WeightView slice_rows(int64_t begin, int64_t end) const;

  WeightEncoding encoding;
  Tensor dense;            ///< the matrix, where it is dense
  FourBitMatrix four_bit;  ///< the matrix, where it has 4 bits
  /// What four_bit.table is multiplied by before products that do not expand the weights round it to bf16: the number
  /// between 1 and 2 that loses least. 0.07% of the values of NF4 (0.16% are lost where a block's values are rounded
  /// after its scale, as for training), nothing of FP4.
  float table_factor = 1;
};

/// out [rows, cols] f32 = W.
void dequantize(const WeightView& w, Tensor& out);
/// out [blocks] f32 = the scale of every block, double quantization undone.
void block_scales(const FourBitMatrix& w, Tensor& out);

}  // namespace nibble::ops
