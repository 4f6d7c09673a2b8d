#include "nibble/core/ops/cpu/four_bit/four_bit_expand.h"

#include <algorithm>

namespace nibble::ops::cpu {

namespace {

template <typename Out>
void expand_block(const uint8_t* packed, int64_t begin, int64_t count, const float* table, float absmax, bool low_first,
                  Out* out) {
  const int even = low_first ? 0 : 4, odd = 4 - even;  // where in a byte
  Out values[16];
  for (int code = 0; code < 16; ++code) values[code] = Out(table[code] * absmax);
  int64_t i = 0;
  if (begin % 2 != 0 && count > 0) {
    out[0] = values[(packed[begin / 2] >> odd) & 15];
    i = 1;
  }
  const uint8_t* bytes = packed + (begin + i) / 2;
  for (; i + 1 < count; i += 2, ++bytes) {
    out[i] = values[(*bytes >> even) & 15];
    out[i + 1] = values[(*bytes >> odd) & 15];
  }
  if (i < count) out[i] = values[(*bytes >> even) & 15];
}

template <typename Out>
void expand(const FourBitRun& run, Out* out) {
  const int64_t end = run.begin + run.count;
  const float* scale = run.scales;
  int64_t block_end = (run.begin / run.block_size + 1) * run.block_size;
  for (int64_t begin = run.begin; begin < end; ++scale, block_end += run.block_size) {
    const int64_t stop = std::min(end, block_end);
    expand_block(run.packed, begin, stop - begin, run.table, *scale, run.low_first, out + (begin - run.begin));
    begin = stop;
  }
}

}  // namespace

const FourBitExpander kFourBitExpandBaseline = {expand<float>, expand<bf16>};

const FourBitExpander& four_bit_expander(Isa level) {
  if (level >= Isa::avx512) return kFourBitExpandAvx512;
  return level >= Isa::avx2 ? kFourBitExpandAvx2 : kFourBitExpandBaseline;
}

}  // namespace nibble::ops::cpu
