#pragma once
// Rows of 4-bit weights as columns or depths of strips of a product's right operand (GemmKernel), at once: expanding
// them row by row and packing that takes twice as long or more, which shows where a product has few rows.

#include <array>
#include <cstddef>
#include <cstdint>

#include "nibble/core/ops/cpu/four_bit/four_bit_planes.h"

namespace nibble::ops::cpu {

/// Most rows in one call that become columns: a register's.
constexpr int64_t kFourBitStripRows = 16;

struct FourBitStripRows {
  int64_t rows, depth;  ///< depth: elements of a row, a multiple of `part`
  const uint8_t* packed;
  int64_t row_bytes;  ///< from one row's codes to the next one's
  const float* table;
  const FourBitPlanes* planes;  ///< of the table
  const float* scales;          ///< of the parts of a row, one after another
  int64_t scale_stride;         ///< from one row's scales to the next one's
};

/// How a product's kernel gets such strips.
struct FourBitStrips {
  int64_t part = 0;  ///< elements of a row that share a scale, a power of two
  /// table[code] * scale as FourBitExpander gives it, the first of two codes in the high half of a byte; `strip`: the
  /// first of the columns, of which those of missing rows become zero. rounded: to bf16. Null: there is none.
  void (*fill)(const FourBitStripRows& w, bool rounded, std::byte* strip) = nullptr;
  /// The same values, always rounded, of rows as depths: a part becomes a strip's columns, the next strip is
  /// strip_bytes behind. A depth missing of a step's is zero. Null: there is none.
  void (*fill_depths)(const FourBitStripRows& w, std::byte* strip, int64_t strip_bytes) = nullptr;
};

/// Always rounded; up to the sign of zeros and numbers below the normal ones, which products in bf16 take for zero.
/// Needs Isa::avx512_bf16.
void four_bit_strip_avx512_bf16(const FourBitStripRows& w, bool rounded, std::byte* strip);
void four_bit_depths_avx512_bf16(const FourBitStripRows& w, std::byte* strip, int64_t strip_bytes);
constexpr FourBitStrips kFourBitStripsAvx512Bf16 = {
    .part = 64, .fill = four_bit_strip_avx512_bf16, .fill_depths = four_bit_depths_avx512_bf16};

/// Up to 8 rows. Needs Isa::avx2.
void four_bit_strip_avx2(const FourBitStripRows& w, bool rounded, std::byte* strip);
constexpr FourBitStrips kFourBitStripsAvx2 = {.part = 32, .fill = four_bit_strip_avx2};

}  // namespace nibble::ops::cpu
