#pragma once
// Plain reference of ops/elementwise.h.

#include <array>
#include <cmath>
#include <cstdint>

#include "nibble/core/base/philox.h"

namespace nibble::ops::ref {

template <typename Real>
void add(const Real* y, int64_t count, Real scale, Real* x) {
  for (int64_t i = 0; i < count; ++i) x[i] += scale * y[i];
}

template <typename Real>
void add_bias(const Real* bias, int64_t tokens, int64_t width, Real* x) {
  for (int64_t i = 0; i < tokens * width; ++i) x[i] += bias[i % width];
}

template <typename Real>
void bias_backward(const Real* dy, int64_t tokens, int64_t width, Real* dbias) {
  for (int64_t i = 0; i < tokens * width; ++i) dbias[i % width] += dy[i];
}

template <typename Real>
double sum_of_squares(const Real* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

/// The Philox words of elements 4 * quad .. 4 * quad + 3.
inline std::array<uint32_t, 4> fill_words(int64_t quad, uint64_t seed, uint64_t purpose) {
  const uint64_t index = static_cast<uint64_t>(quad);
  return philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(purpose),
                     static_cast<uint32_t>(purpose >> 32)},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

/// Element i of fill_uniform: 24 random bits.
inline float uniform_element(int64_t i, float low, float high, uint64_t seed, uint64_t purpose) {
  const uint32_t word = fill_words(i / 4, seed, purpose)[static_cast<size_t>(i % 4)];
  return low + (high - low) * static_cast<float>(word >> 8) * 0x1p-24f;
}

/// Element i of fill_normal: Box-Muller on two words of its quad, in double.
inline float normal_element(int64_t i, float std, uint64_t seed, uint64_t purpose) {
  const std::array<uint32_t, 4> words = fill_words(i / 4, seed, purpose);
  const size_t pair = static_cast<size_t>(i % 4) / 2 * 2;
  const double radius = std::sqrt(-2 * std::log((words[pair] + 0.5) * 0x1p-32));
  const double angle = 2 * M_PI * (words[pair + 1] * 0x1p-32);
  return static_cast<float>(std * radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle)));
}

}  // namespace nibble::ops::ref
