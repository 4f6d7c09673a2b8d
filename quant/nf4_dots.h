#pragma once
// Decoding one token: a row of 4-bit weights times one vector, without writing the numbers down in between.

#include "nibble/core/base/bfloat16.h"

namespace nibble {

/// Most elements of a row in one call.
constexpr int64_t kNf4DotsDepth = 12288;

/// x [depth] reordered as nf4_dot_avx512_bf16 meets the codes, zeros after the end: depth <= kNf4DotsDepth elements, a
/// multiple of 64, give round_up(depth, 128). Needs Isa::avx512_bf16, as the next.
void nf4_dots_reorder(const bf16* x, int64_t depth, bf16* reordered);

/// out[i] = map[codes[i]] * factor + offset for `count` codes, rounded after each operation. planes: the bytes of a map
/// of 256 values, all lowest bytes first. Needs nf4_scales_fast().
void nf4_scales_avx512_vbmi(const uint8_t* codes, int64_t count, const uint8_t* planes, float factor, float offset,
                            float* out);
/// Whether this CPU has the permutations of bytes that the function above is made of.
bool nf4_scales_fast();

/// Sum of x[i] * bf16(table[code i] * scales[i / 64]) over `depth` codes that start at `packed`.
float nf4_dot_avx512_bf16(const uint8_t* packed, int64_t depth, const float* table, const float* scales,
                          const bf16* reordered);

}  // namespace nibble
