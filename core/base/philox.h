#pragma once
// Counter-based random numbers: a value is a pure function of a key and a counter, so there is no state to save and
// results depend neither on thread count nor on the order of calls.

#include <array>
#include <cstddef>
#include <cstdint>

namespace nibble {

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
/// Returns four independent 32-bit words for (counter, key).
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// A stream of numbers keyed by (seed, purpose, index): weights of one tensor, the order of one epoch, one sampled
/// token. Two streams with different keys are independent.
class PhiloxStream {
 public:
  /// seed: the recipe's seed; purpose: a constant of the caller; index: tensor, epoch or step.
  PhiloxStream(uint64_t seed, uint32_t purpose, uint64_t index);

  uint32_t next_u32();
  uint64_t next_u64();
  /// Uniform in [0, 1), 53 random bits.
  double next_uniform_double();
  /// Uniform integer in [0, bound), bound > 0, without modulo bias.
  uint64_t next_below(uint64_t bound);

 private:
  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 4> counter_;
  std::array<uint32_t, 4> words_{};
  int used_ = 4;
};

}  // namespace nibble
