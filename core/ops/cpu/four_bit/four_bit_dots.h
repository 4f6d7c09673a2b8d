#pragma once
// Decoding one token: rows of 4-bit weights times one vector, without writing the numbers down in between.

#include <algorithm>
#include <array>

#include "nibble/core/ops/cpu/four_bit/four_bit_planes.h"
#include "nibble/core/tensor/bfloat16.h"

namespace nibble::ops::cpu {

/// Most elements of a row in one call: x in their order takes 48 KB, which stay in the second cache level.
constexpr int64_t kFourBitDotsDepth = 24576;
/// Most rows in one call.
constexpr int64_t kFourBitDotsRows = 4;

/// The values of the 16 codes for products in bf16: table times WeightView::table_factor.
struct FourBitDotsTable {
  alignas(64) std::array<bf16, 32> values;  ///< twice, because an index has five bits
  float inverse;                            ///< what sums are multiplied by
};
FourBitDotsTable four_bit_dots_table(const std::array<float, 16>& table, float factor);

/// x [depth] reordered as four_bit_dots_avx512_bf16 meets the codes, zeros after the end: depth <= kFourBitDotsDepth
/// elements, a multiple of 64, give round_up(depth, 128). Needs Isa::avx512_bf16, as the next.
void four_bit_dots_reorder(const bf16* x, int64_t depth, bf16* reordered);

/// planes [1024] = the bytes of a map of 256 f32, perhaps unaligned: all lowest bytes first.
void four_bit_planes_avx512_bf16(const std::byte* map, uint8_t* planes);
/// out[i] = map[codes[i]] * factor + offset for `count` codes, rounded after each operation. Needs
/// four_bit_scales_fast().
void four_bit_scales_avx512_vbmi(const uint8_t* codes, int64_t count, const uint8_t* planes, float factor, float offset,
                                 float* out);
/// Whether this CPU has the permutations of bytes that the function above is made of.
bool four_bit_scales_fast();

/// x [depth] reordered as four_bit_dots_avx2 meets the codes; depth is a multiple of 64. Needs Isa::avx2.
void four_bit_dots_reorder_avx2(const float* x, int64_t depth, float* reordered);
void four_bit_dots_reorder_avx2(const bf16* x, int64_t depth, float* reordered);

/// Codes of up to kFourBitDotsRows rows and the f32 scale of every 64 of them.
struct FourBitDotsRows {
  int64_t rows, depth;
  const uint8_t* packed;
  int64_t row_bytes;  ///< from one row's codes to the next one's
  const float* scales;
  int64_t scale_stride;  ///< from one row's scales to the next one's

  /// Of row r, or of the last one.
  const uint8_t* packed_of(int64_t r) const { return packed + std::min(r, rows - 1) * row_bytes; }
  const float* scales_of(int64_t r) const { return scales + std::min(r, rows - 1) * scale_stride; }
};

/// sums[r] = sum of x[i] * table[code i of row r] * scale, whose products of 8 elements are summed before they meet
/// their scale; all in f32, in an order that depends on depth only.
void four_bit_dots_avx512_bf16(const FourBitDotsRows& w, const FourBitDotsTable& table, const bf16* reordered,
                               float* sums);
/// The same with values in f32, whose 64 products of a block are summed before they meet their scale. Needs Isa::avx2.
void four_bit_dots_avx2(const FourBitDotsRows& w, const FourBitPlanes& table, const float* reordered, float* sums);

}  // namespace nibble::ops::cpu
