#include "nibble/core/ops/cpu/four_bit/four_bit_expand.h"

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
  for_each_block(run, out, [&](int64_t begin, int64_t count, float scale, Out* to) {
    expand_block(run.packed, begin, count, run.table, scale, run.low_first, to);
  });
}

}  // namespace

const FourBitExpander kFourBitExpandBaseline = {expand<float>, expand<bf16>};

const FourBitExpander& four_bit_expander(Isa level) {
#if defined(__x86_64__)
  if (level >= Isa::avx512) return kFourBitExpandAvx512;
  if (level >= Isa::avx2) return kFourBitExpandAvx2;
#elif defined(__aarch64__)
  if (level >= Isa::neon) return kFourBitExpandNeon;
#endif
  return kFourBitExpandBaseline;
}

}  // namespace nibble::ops::cpu
