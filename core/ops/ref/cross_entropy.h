#pragma once
// Plain reference of ops/cross_entropy.h.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace nibble::ops::ref {

/// dlogits and weights may be null.
template <typename Real>
void cross_entropy(const Real* logits, const int32_t* targets, int64_t rows, int64_t vocabulary, Real softcap,
                   Real scale, Real* losses, Real* dlogits, const Real* weights = nullptr) {
  std::vector<Real> capped(static_cast<size_t>(vocabulary));
  for (int64_t n = 0; n < rows; ++n) {
    const Real* row = logits + n * vocabulary;
    Real top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < vocabulary; ++i) {
      capped[static_cast<size_t>(i)] = softcap > 0 ? softcap * std::tanh(row[i] / softcap) : row[i];
      top = std::max(top, capped[static_cast<size_t>(i)]);
    }
    for (Real value : capped) sum += std::exp(value - top);
    const Real lse = top + std::log(sum);
    losses[n] = lse - capped[static_cast<size_t>(targets[n])];
    if (dlogits == nullptr) continue;
    for (int64_t i = 0; i < vocabulary; ++i) {
      const Real value = capped[static_cast<size_t>(i)];
      Real gradient = (std::exp(value - lse) - (i == targets[n] ? 1 : 0)) * scale * (weights ? weights[n] : 1);
      if (softcap > 0) gradient *= 1 - value / softcap * value / softcap;
      dlogits[n * vocabulary + i] = gradient;
    }
  }
}

}  // namespace nibble::ops::ref
