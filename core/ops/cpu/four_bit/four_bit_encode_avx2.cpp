#include "nibble/core/ops/cpu/four_bit/four_bit_encode_loops.h"

namespace nibble::ops::cpu {

namespace {

__attribute__((target("avx2"))) float load(const std::byte* source, DType dtype, int64_t begin, int64_t count,
                                           float* values) {
  return encode_loops::load(source, dtype, begin, count, values);
}

__attribute__((target("avx2"))) void encode(const float* values, int64_t count, float inverse, const CodeRule& rule,
                                            uint8_t* packed) {
  encode_loops::encode(values, count, inverse, rule, packed);
}

}  // namespace

const BlockEncoder kEncodeAvx2 = {load, encode};

}  // namespace nibble::ops::cpu
