#pragma once
// The innermost loop of 4-bit weights: codes to numbers, one table per instruction set level.

#include <algorithm>

#include "nibble/core/base/cpu_features.h"
#include "nibble/core/ops/cpu/four_bit/four_bit_planes.h"
#include "nibble/core/tensor/bfloat16.h"

namespace nibble::ops::cpu {

/// Elements [begin, begin + count) of the packed codes; `packed` is the first byte of the whole matrix. Element i has
/// the scale scales[i / block_size - begin / block_size].
struct FourBitRun {
  const uint8_t* packed;
  int64_t begin, count;
  const float* table;           ///< value of each of the 16 codes
  const FourBitPlanes* planes;  ///< of the table
  const float* scales;
  int64_t block_size;
  bool low_first;  ///< element 2k is in the low nibble of its byte, not in the high one
};

/// expand(begin, count, scale, to) for the elements of every block in the run.
template <typename Out, typename Expand>
void for_each_block(const FourBitRun& run, Out* out, const Expand& expand) {
  const int64_t end = run.begin + run.count;
  const float* scale = run.scales;
  int64_t block_end = (run.begin / run.block_size + 1) * run.block_size;
  for (int64_t begin = run.begin; begin < end; ++scale, block_end += run.block_size) {
    const int64_t stop = std::min(end, block_end);
    expand(begin, stop - begin, *scale, out + (begin - run.begin));
    begin = stop;
  }
}

/// Writes count elements fp32(table[code] * scale): one f32 multiplication, for bf16 rounded to nearest even after it.
struct FourBitExpander {
  void (*to_f32)(const FourBitRun& run, float* out);
  void (*to_bf16)(const FourBitRun& run, bf16* out);
};

/// The fastest for `level`, which must not be above isa().
const FourBitExpander& four_bit_expander(Isa level);

/// One table per file; the first is the plain reference.
extern const FourBitExpander kFourBitExpandBaseline;
extern const FourBitExpander kFourBitExpandAvx2;
extern const FourBitExpander kFourBitExpandAvx512;
extern const FourBitExpander kFourBitExpandNeon;

}  // namespace nibble::ops::cpu
