#pragma once
// The innermost loop of 4-bit weights: codes to numbers, one table per instruction set level.

#include "nibble/core/base/bfloat16.h"
#include "nibble/core/base/cpu_features.h"

namespace nibble {

/// Expands elements [begin, begin + count) of the packed codes, all of one block: out[i] = fp32(table[code] * absmax),
/// one f32 multiplication, for bf16 rounded to nearest even after it. `packed` is the first byte of the whole matrix.
struct Nf4Expander {
  void (*to_f32)(const uint8_t* packed, int64_t begin, int64_t count, const float* table, float absmax, float* out);
  void (*to_bf16)(const uint8_t* packed, int64_t begin, int64_t count, const float* table, float absmax, bf16* out);
};

/// The fastest for `level`, which must not be above isa().
const Nf4Expander& nf4_expander(Isa level);

/// One table per file; the first is the plain reference.
extern const Nf4Expander kNf4ExpandBaseline;
extern const Nf4Expander kNf4ExpandAvx2;
extern const Nf4Expander kNf4ExpandAvx512;

}  // namespace nibble
