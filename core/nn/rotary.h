#pragma once
// Rotary position embedding: the frequencies of a family as data, and the tables of cosines and sines made from them.

#include "nibble/core/tensor/tensor.h"

namespace nibble {

/// How the frequencies of rope are stretched for longer texts.
enum class RopeScaling : uint8_t {
  none,
  linear,  ///< every frequency divided by `factor` (Chen et al. 2023)
  llama3,  ///< low frequencies divided, high ones kept, blended between (Llama 3.1)
};

struct RopeConfig {
  int64_t size = 0;  ///< leading elements of each head that are rotated (even; less than K: partial rotary)
  double base = 10000;
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  int64_t original_max_positions = 0;                ///< llama3

  bool operator==(const RopeConfig&) const = default;
};

/// Angle per position of each of the size / 2 pairs, f32 as in Transformers (ROPE_INIT_FUNCTIONS).
std::vector<float> rope_frequencies(const RopeConfig& config);

/// Cosines and sines [P, size / 2] f32 of positions 0 .. P - 1; grows when a later position is asked for.
class RotaryTable {
 public:
  explicit RotaryTable(RopeConfig config) : config_(config) {}

  /// Makes positions below `positions` available.
  void reserve(int64_t positions, MemoryPool& pool);
  const Tensor& cos() const { return cos_; }
  const Tensor& sin() const { return sin_; }

 private:
  RopeConfig config_;
  Tensor cos_, sin_;
};

}  // namespace nibble
