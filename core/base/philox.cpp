#include "nibble/core/base/philox.h"

namespace nibble {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMultiplier0 * c[0], p1 = kMultiplier1 * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k = {k[0] + kWeyl0, k[1] + kWeyl1};
  }
  return c;
}

PhiloxStream::PhiloxStream(uint64_t seed, uint32_t purpose, uint64_t index)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32) ^ purpose},
      counter_{0, purpose, static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)} {}

uint32_t PhiloxStream::next_u32() {
  if (used_ == 4) {
    words_ = philox4x32(counter_, key_);
    ++counter_[0];  // one key yields 2^34 words: more than any tensor or epoch takes
    used_ = 0;
  }
  return words_[static_cast<size_t>(used_++)];
}

uint64_t PhiloxStream::next_u64() {
  const uint64_t low = next_u32();
  return low | (static_cast<uint64_t>(next_u32()) << 32);
}

double PhiloxStream::next_uniform_double() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }

uint64_t PhiloxStream::next_below(uint64_t bound) {
  const uint64_t reject = (0 - bound) % bound;  // 2^64 mod bound
  for (;;) {
    const uint64_t value = next_u64();
    if (value >= reject) return value % bound;
  }
}

}  // namespace nibble
