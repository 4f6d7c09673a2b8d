#pragma once
// Plain reference of ops/time_step.h: shapes as there, Real is float or double.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace nibble::ops::ref {

template <typename Real>
Real softplus(Real x) {
  return std::max(x, Real(0)) + std::log1p(std::exp(-std::abs(x)));
}

template <typename Real>
void time_step_forward(const Real* x, const Real* bias, const Real* a_log, int64_t tokens, int64_t heads,
                       int64_t together, Real low, Real high, Real least_decay, Real* step, Real* log_decay) {
  for (int64_t i = 0; i < tokens * heads; ++i) {
    const int64_t h = i % heads;
    if (least_decay < 0) {
      step[i] = 0;
      log_decay[i] = least_decay / (1 + std::exp(-std::exp(a_log[h / together]) * (x[i] + bias[h])));
      continue;
    }
    step[i] = std::min(std::max(softplus(x[i] + bias[h]), low), high);
    log_decay[i] = -std::exp(a_log[h / together]) * step[i];
  }
}

/// dx overwritten; dbias and da_log += (may be null); dstep may be null.
template <typename Real>
void time_step_backward(const Real* dstep, const Real* dlog_decay, const Real* x, const Real* bias, const Real* a_log,
                        int64_t tokens, int64_t heads, int64_t together, Real low, Real high, Real least_decay,
                        Real* dx, Real* dbias, Real* da_log) {
  for (int64_t i = 0; i < tokens * heads; ++i) {
    const int64_t h = i % heads;
    const Real raw = x[i] + bias[h], open = softplus(raw), a = std::exp(a_log[h / together]);
    if (least_decay < 0) {
      const Real share = 1 / (1 + std::exp(-a * raw)), inner = dlog_decay[i] * least_decay * share * (1 - share) * a;
      dx[i] = inner;
      if (dbias != nullptr) dbias[h] += inner;
      if (da_log != nullptr) da_log[h / together] += inner * raw;
      continue;
    }
    const Real step = std::min(std::max(open, low), high);
    const Real derivative = open < low || open > high ? 0 : 1 / (1 + std::exp(-raw));
    dx[i] = ((dstep == nullptr ? 0 : dstep[i]) - dlog_decay[i] * a) * derivative;
    if (dbias != nullptr) dbias[h] += dx[i];
    if (da_log != nullptr) da_log[h / together] -= dlog_decay[i] * a * step;
  }
}

}  // namespace nibble::ops::ref
