#pragma once
// Plain reference of ops/elementwise.h and ops/residual.h.

#include <array>
#include <cmath>
#include <cstdint>

#include "nibble/core/base/philox.h"

namespace nibble::ops::ref {

template <typename From, typename To>
void cast(const From* x, int64_t count, To* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = static_cast<To>(static_cast<float>(x[i]));
}

template <typename Real>
void scale(Real* x, int64_t count, Real factor) {
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

/// -1: none
template <typename Real>
int64_t first_nonfinite(const Real* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(x[i])) return i;
  }
  return -1;
}

template <typename Real>
void add(const Real* y, int64_t count, Real scale, Real* x) {
  for (int64_t i = 0; i < count; ++i) x[i] += scale * y[i];
}

/// sum may be x.
template <typename Real>
void add_residual(const Real* x, const Real* y, int64_t count, Real scale, Real* sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] = x[i] + scale * y[i];
}

template <typename Real>
void scale_rows(const Real* x, const Real* weights, int64_t rows, int64_t width, Real* y) {
  for (int64_t i = 0; i < rows * width; ++i) y[i] = weights[i / width] * x[i];
}

template <typename Real>
void scale_rows_backward(const Real* dy, const Real* x, const Real* weights, int64_t rows, int64_t width, Real* dx,
                         Real* dweights) {
  for (int64_t n = 0; n < rows; ++n) {
    dweights[n] = 0;
    for (int64_t i = 0; i < width; ++i) {
      dweights[n] += dy[n * width + i] * x[n * width + i];
      dx[n * width + i] = weights[n] * dy[n * width + i];
    }
  }
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
double sum(const Real* x, int64_t count) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += static_cast<double>(x[i]);
  return total;
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

/// Elements 4 * quad .. 4 * quad + 3 of fill_uniform: 24 random bits each.
inline std::array<float, 4> uniform_quad(int64_t quad, float low, float high, uint64_t seed, uint64_t purpose) {
  const std::array<uint32_t, 4> words = fill_words(quad, seed, purpose);
  std::array<float, 4> result;
  for (size_t i = 0; i < 4; ++i) result[i] = low + (high - low) * static_cast<float>(words[i] >> 8) * 0x1p-24f;
  return result;
}

/// Elements 4 * quad .. 4 * quad + 3 of fill_normal: Box-Muller on pairs of words, in double.
inline std::array<float, 4> normal_quad(int64_t quad, float std, uint64_t seed, uint64_t purpose) {
  const std::array<uint32_t, 4> words = fill_words(quad, seed, purpose);
  std::array<float, 4> result;
  for (size_t pair = 0; pair < 4; pair += 2) {
    const double radius = std::sqrt(-2 * std::log((words[pair] + 0.5) * 0x1p-32));
    const double angle = 2 * M_PI * (words[pair + 1] * 0x1p-32);
    result[pair] = static_cast<float>(std * radius * std::cos(angle));
    result[pair + 1] = static_cast<float>(std * radius * std::sin(angle));
  }
  return result;
}

}  // namespace nibble::ops::ref
