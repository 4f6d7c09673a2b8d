#pragma once
// Plain reference of ops/optimizer.h.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "nibble/core/ops/optimizer.h"

namespace nibble::ops::ref {

template <typename Real>
void adamw(Real* w, const Real* gradient, Real* m, Real* v, int64_t count, const AdamWParams& p) {
  const Real beta1 = static_cast<Real>(p.beta1), beta2 = static_cast<Real>(p.beta2);
  const Real share1 = static_cast<Real>(1 - p.beta1), share2 = static_cast<Real>(1 - p.beta2);
  const double correction1 = 1 - std::pow(p.beta1, static_cast<double>(p.step));
  const double correction2 = 1 - std::pow(p.beta2, static_cast<double>(p.step));
  for (int64_t i = 0; i < count; ++i) {
    const Real g = gradient[i] * static_cast<Real>(p.gradient_scale);
    w[i] *= static_cast<Real>(1 - p.lr * p.weight_decay);
    m[i] = beta1 * m[i] + share1 * g;
    v[i] = beta2 * v[i] + share2 * g * g;
    w[i] -= static_cast<Real>(p.lr / correction1) * m[i] /
            (std::sqrt(v[i]) / static_cast<Real>(std::sqrt(correction2)) + static_cast<Real>(p.eps));
  }
}

/// One state of adamw8bit, rounded as it is kept: nearest value of `map` times the block's largest magnitude.
inline void round_to_8bit(double* state, int64_t count, const std::array<float, 256>& map) {
  for (int64_t begin = 0; begin < count; begin += kEightBitBlock) {
    const int64_t end = std::min(count, begin + kEightBitBlock);
    double largest = 0;
    for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(state[i]));
    for (int64_t i = begin; i < end && largest > 0; ++i) {
      double best = 2;
      for (const float value : map) {
        const double distance = static_cast<double>(value) - state[i] / largest;
        if (std::abs(distance) < std::abs(best)) best = distance;
      }
      state[i] += best * largest;
    }
  }
}

template <typename Real>
void sgd(Real* w, const Real* gradient, int64_t count, Real lr, Real weight_decay, Real gradient_scale) {
  for (int64_t i = 0; i < count; ++i) w[i] -= lr * (gradient_scale * gradient[i] + weight_decay * w[i]);
}

}  // namespace nibble::ops::ref
