#include "nibble/core/ops/cpu/four_bit/four_bit_encode.h"

#include "nibble/core/ops/cpu/four_bit/four_bit_encode_loops.h"

namespace nibble::ops::cpu {

namespace {

float load(const std::byte* source, DType dtype, int64_t begin, int64_t count, float* values) {
  return encode_loops::load(source, dtype, begin, count, values);
}

void encode(const float* values, int64_t count, float inverse, const CodeRule& rule, uint8_t* packed) {
  encode_loops::encode(values, count, inverse, rule, packed);
}

}  // namespace

const BlockEncoder kEncodeBaseline = {load, encode};

const BlockEncoder& block_encoder([[maybe_unused]] Isa level) {
#if defined(__x86_64__)
  if (level >= Isa::avx512) return kEncodeAvx512;
  if (level >= Isa::avx2) return kEncodeAvx2;
#endif
  return kEncodeBaseline;
}

}  // namespace nibble::ops::cpu
