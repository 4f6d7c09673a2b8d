#pragma once
// Decoding one token: a row of 4-bit weights times one vector, without writing the numbers down in between.

#include "nibble/core/base/bfloat16.h"

namespace nibble {

/// Most elements of a row in one call.
constexpr int64_t kNf4DotsDepth = 4096;

/// x [depth] reordered as nf4_dot_avx512_bf16 meets the codes, zeros after the end: depth <= kNf4DotsDepth elements, a
/// multiple of 64, give round_up(depth, 128). Needs Isa::avx512_bf16, as the next.
void nf4_dots_reorder(const bf16* x, int64_t depth, bf16* reordered);

/// Sum of x[i] * bf16(table[code i] * scales[i / 64]) over `depth` codes that start at `packed`.
float nf4_dot_avx512_bf16(const uint8_t* packed, int64_t depth, const float* table, const float* scales,
                          const bf16* reordered);

}  // namespace nibble
