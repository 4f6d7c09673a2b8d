#pragma once
// The innermost loops of quantization: numbers to 4-bit codes, one table per instruction set level, all the same bits.

#include <array>
#include <cstddef>
#include <cstdint>

#include "nibble/core/base/cpu_features.h"
#include "nibble/core/tensor/dtype.h"

namespace nibble::ops::cpu {

/// How a scaled element in [-1, 1] finds its code: the number of `thresholds` (midpoints between neighbouring values)
/// below it, looked up in `codes`. A tie goes to the lower value, a NaN (nothing is below it) to codes[0].
struct CodeRule {
  std::array<float, 15> thresholds;  ///< ascending
  std::array<uint8_t, 16> codes;
};

struct BlockEncoder {
  /// Writes elements [begin, begin + count) of an f32, bf16 or f16 array as f32; returns their largest magnitude, which
  /// is infinite or NaN when one of them is.
  float (*load)(const std::byte* source, DType dtype, int64_t begin, int64_t count, float* values);
  /// Codes of values * inverse, two in a byte, the first in the high nibble; of an odd count the last low nibble is the
  /// code of 0.
  void (*encode)(const float* values, int64_t count, float inverse, const CodeRule& rule, uint8_t* packed);
};

/// The fastest for `level`, which must not be above isa().
const BlockEncoder& block_encoder(Isa level);

/// One table per file; the first is the plain reference.
extern const BlockEncoder kEncodeBaseline;
extern const BlockEncoder kEncodeAvx2;
extern const BlockEncoder kEncodeAvx512;

}  // namespace nibble::ops::cpu
