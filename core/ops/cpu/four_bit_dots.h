#pragma once
// Decoding one token: rows of 4-bit weights times one vector, without writing the numbers down in between.

#include <array>

#include "nibble/core/base/bfloat16.h"

namespace nibble {

/// Most elements of a row in one call.
constexpr int64_t kNf4DotsDepth = 24576;
/// Most rows in one call.
constexpr int64_t kNf4DotsRows = 4;

/// The values of the 16 codes for products in bf16. They are multiplied, before they are rounded, by the power of two
/// or number between that loses least: 0.07% of the values of NF4 (0.16% are lost where a block's values are rounded
/// after its scale, as for training), nothing of FP4.
struct Nf4DotsTable {
  alignas(64) std::array<bf16, 32> values;  ///< twice, because an index has five bits
  float inverse;                            ///< what sums are multiplied by
};
Nf4DotsTable nf4_dots_table(const std::array<float, 16>& table);

/// x [depth] reordered as nf4_dots_avx512_bf16 meets the codes, zeros after the end: depth <= kNf4DotsDepth elements, a
/// multiple of 64, give round_up(depth, 128). Needs Isa::avx512_bf16, as the next.
void nf4_dots_reorder(const bf16* x, int64_t depth, bf16* reordered);

/// out[i] = map[codes[i]] * factor + offset for `count` codes, rounded after each operation. planes: the bytes of a map
/// of 256 values, all lowest bytes first. Needs nf4_scales_fast().
void nf4_scales_avx512_vbmi(const uint8_t* codes, int64_t count, const uint8_t* planes, float factor, float offset,
                            float* out);
/// Whether this CPU has the permutations of bytes that the function above is made of.
bool nf4_scales_fast();

/// Codes of up to kNf4DotsRows rows and the f32 scale of every 64 of them.
struct Nf4DotsRows {
  int64_t rows, depth;
  const uint8_t* packed;
  int64_t row_bytes;  ///< from one row's codes to the next one's
  const float* scales;
  int64_t scale_stride;  ///< from one row's scales to the next one's
};

/// sums[r] = sum of x[i] * table[code i of row r] * scale, whose products of 8 elements are summed before they meet
/// their scale; all in f32, in an order that depends on depth only.
void nf4_dots_avx512_bf16(const Nf4DotsRows& w, const Nf4DotsTable& table, const bf16* reordered, float* sums);

}  // namespace nibble
