#pragma once
// Rotary position embedding: the frequencies of a family as data, and the tables of cosines and sines made from them.

#include <span>
#include <vector>

#include "nibble/core/ops/attention.h"
#include "nibble/core/ops/rope.h"
#include "nibble/core/tensor/tensor.h"

namespace nibble {

/// How the frequencies of rope are stretched for longer texts (ROPE_INIT_FUNCTIONS of Transformers).
enum class RopeScaling : uint8_t {
  none,
  linear,    ///< every frequency divided by `factor` (Chen et al. 2023)
  dynamic,   ///< a larger base for texts longer than `original_max_positions`, by their length (NTK)
  yarn,      ///< low frequencies divided, high ones kept, a ramp between (Peng et al. 2023)
  longrope,  ///< each frequency divided by a factor of its own; another set for texts longer than
             ///< `original_max_positions` (Ding et al. 2024)
  llama3,    ///< low frequencies divided, high ones kept, blended between (Llama 3.1)
  /// Frequencies over all of `size`, of which only the first `turned` elements turn, half of them in each half
  /// (Gemma 4).
  proportional,
};

struct RopeConfig {
  int64_t size = 0;  ///< elements of each head that are rotated (even; less than K: partial rotary)
  /// What exponents are divided by, unless 0: `size` when a share of K is odd and was rounded up to it.
  int64_t exponent_size = 0;
  int64_t begin = 0;   ///< elements of each head before those that are rotated (latent attention)
  int64_t turned = 0;  ///< proportional
  double base = 10000;
  bool backwards = false;  ///< by negative angles (nanochat)
  ops::RopePairs pairs = ops::RopePairs::halves;
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;
  double magnitude = 1;                              ///< multiplies cosines and sines (yarn, longrope)
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  int64_t original_max_positions = 0;              ///< length of the texts it was first trained on, where scaling asks
  double beta_fast = 32, beta_slow = 1;            ///< yarn: turns in that length where the ramp ends and begins
  bool truncate = true;                            ///< yarn: the ramp runs between whole pairs
  std::vector<float> short_factors, long_factors;  ///< longrope, [size / 2]

  /// Whether the frequencies depend on the sequence length.
  bool by_length() const { return scaling == RopeScaling::dynamic || scaling == RopeScaling::longrope; }
  bool operator==(const RopeConfig&) const = default;
};

/// Angle per position of each of the size / 2 pairs in a text of `length` tokens, f32 as in Transformers.
std::vector<float> rope_frequencies(const RopeConfig& config, int64_t length = 0);

/// What the layers of one kind read in one pass.
struct RotaryView {
  Tensor cos, sin;  ///< [P, size / 2] f32
  Tensor rows;      ///< [T] i32: the row of each token
  ops::RopePairs pairs = ops::RopePairs::halves;
  int64_t begin = 0;
};

/// Tables of cosines and sines; they grow when a later position is asked for.
class RotaryTable {
 public:
  explicit RotaryTable(RopeConfig config) : config_(std::move(config)) {}

  /// For tokens at positions [T] i32 in their documents. Where frequencies depend on the length, that of a document is
  /// its last position + 1, so packing changes nothing.
  RotaryView at(const Tensor& positions, std::span<const ops::AttentionSpan> documents, MemoryPool& pool);

 private:
  RotaryView by_length(const Tensor& positions, std::span<const ops::AttentionSpan> documents, MemoryPool& pool) const;

  RopeConfig config_;
  Tensor cos_, sin_;
};

}  // namespace nibble
