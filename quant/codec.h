#pragma once
// Quantizing to 4 bits and back, with the numbers of bitsandbytes: block-wise absmax, nearest code, absmax quantized
// again to 8 bits.

#include <span>
#include <string>
#include <vector>

#include "nibble/quant/quantized_matrix.h"

namespace nibble {

struct QuantizeOptions {
  QuantType type = QuantType::nf4;
  bool double_quant = true;  ///< quantize the scales too, in blocks of 256
  int64_t block_size = 64;   ///< 32, 64, 128, ... 4096
};

/// UsageError unless the block size is one that bitsandbytes reads.
void check_block_size(int64_t block_size);

/// Rows of a matrix of `in` columns that fill whole blocks and have about four million elements: a piece of one that is
/// quantized in pieces.
int64_t rows_of_piece(int64_t in, int64_t block_size);

/// W [out, in] f32, bf16 or f16 (alignment is not needed) in 4 bits; new tensors from `pool`. Each block of elements is
/// scaled by fp32(1 / absmax) and rounded to the nearest code, a tie to the lower value. Throws NumericError naming
/// `name` and the first element that is not finite.
QuantizedMatrix quantize(const Tensor& weight, const QuantizeOptions& options, MemoryPool& pool,
                         const std::string& name);

/// The scales of a matrix that comes in pieces: what nested_offset will be is known after one reading, before the
/// matrix is quantized in a second.
class ScaleScan {
 public:
  /// shape: as of plan_quantized.
  ScaleScan(const Shape& shape, int64_t block_size, const std::string& name);
  /// The next rows [n, in] f32, bf16 or f16, as for Quantizer. Throws NumericError as quantize does.
  void append(const Tensor& rows);
  /// What nested_offset will be.
  float mean() const;

 private:
  Shape shape_;
  int64_t block_size_;
  std::string name_;
  std::vector<float> absmax_;
  int64_t done_ = 0;  // elements
};

/// A matrix [out, in], or the matrices [n, out, in] of experts as the one that all their rows make, without bytes: all
/// tensors are planned. nested_offset as said.
QuantizedMatrix plan_quantized(const Shape& shape, DType dtype, const QuantizeOptions& options, float nested_offset);

/// Quantizes a matrix that comes in pieces, so that only one piece is in memory beside the result.
class Quantizer {
 public:
  /// shape: as of plan_quantized; dtype: of the matrix before quantization, which the pieces may have been widened
  /// from.
  Quantizer(const Shape& shape, DType dtype, const QuantizeOptions& options, MemoryPool& pool, const std::string& name);
  /// The next rows [n, in] f32, bf16 or f16. All but the last piece must end at the end of a block.
  void append(const Tensor& rows);
  /// Quantizes the scales, if asked for, and gives the result.
  QuantizedMatrix finish();

 private:
  QuantizedMatrix matrix_;
  QuantizeOptions options_;
  MemoryPool& pool_;
  std::string name_;
  int64_t done_ = 0;  // elements
};

/// Rows [begin, end) of W as f32 [end - begin, in]: table[code] * absmax, one rounding.
Tensor dequantize(const QuantizedMatrix& matrix, int64_t begin, int64_t end, MemoryPool& pool);

/// f32 mean of `values` with the order of additions of torch's CPU kernel (one thread), so that nested_offset gets the
/// same bits.
float torch_mean(std::span<const float> values);

}  // namespace nibble
