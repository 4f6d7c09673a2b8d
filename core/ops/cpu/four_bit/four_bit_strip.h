#pragma once
// Rows of 4-bit weights as columns of a strip of a product's right operand (GemmKernel), at once: expanding them row by
// row and packing that takes twice as long, which shows where a product has few rows.

#include <array>
#include <cstddef>
#include <cstdint>

namespace nibble::ops::cpu {

/// Most rows in one call: a register's columns. The scale of so many elements of a row is one.
constexpr int64_t kFourBitStripRows = 16, kFourBitStripPart = 64;

struct FourBitStripRows {
  int64_t rows, depth;  ///< depth: elements of a row, a multiple of kFourBitStripPart
  const uint8_t* packed;
  int64_t row_bytes;  ///< from one row's codes to the next one's
  const float* table;
  const float* scales;   ///< of the parts of a row, one after another
  int64_t scale_stride;  ///< from one row's scales to the next one's
};

/// bf16(table[code] * scale) as FourBitExpander::to_bf16 gives them, the first of two codes in the high half of a byte,
/// up to the sign of zeros and numbers below the normal ones, which products in bf16 take for zero. `strip`: the first
/// of the columns; those of missing rows become zero. Needs Isa::avx512_bf16.
void four_bit_strip_avx512_bf16(const FourBitStripRows& w, std::byte* strip);

}  // namespace nibble::ops::cpu
