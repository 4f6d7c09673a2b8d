#pragma once
// Choosing the next token from logits.

#include <cstdint>
#include <span>

namespace nibble {

struct SamplingOptions {
  float temperature = 0;  ///< 0 = greedy: the largest logit, the lowest id among equals
  int64_t top_k = 0;      ///< only the k largest; 0 = off
  float top_p = 1;        ///< only the most probable that together reach p (Holtzman et al. 2019); 1 = off
  float min_p = 0;        ///< only those at least this share as probable as the most probable one; 0 = off
  uint64_t seed = 0;
  int64_t vocabulary = 0;  ///< only ids below this, as a tokenizer may have fewer than the model; 0 = off
};

/// Throws UsageError for values out of range (temperature < 0, top_k < 0, top_p outside (0, 1], min_p
/// outside [0, 1]).
void check(const SamplingOptions& options);

/// The token for `position` of a sequence, from logits [V]: a function of (logits, options, position, sequence) only.
/// Temperature first, then top-k, top-p, min-p, as in Transformers. Both numbers are below 2^32. Throws NumericError
/// when no logit is finite or one is NaN.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, int64_t position,
                     int64_t sequence = 0);

}  // namespace nibble
