#pragma once
// Plain reference of ops/activation.h.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "nibble/core/ops/activation.h"

namespace nibble::ops::ref {

/// f(x)
template <typename Real>
Real activation(Activation f, Real x) {
  switch (f) {
    case Activation::identity:
      return x;
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::gelu_erf:
      return x * std::erfc(-x * static_cast<Real>(M_SQRT1_2)) / 2;
    case Activation::gelu_tanh: {
      const Real u = static_cast<Real>(M_2_SQRTPI * M_SQRT1_2) * (x + static_cast<Real>(0.044715) * x * x * x);
      return x / (1 + std::exp(-2 * u));  // (1 + tanh u) / 2 without its cancellation
    }
    case Activation::gelu_sigmoid:
      return x / (1 + std::exp(static_cast<Real>(-1.702) * x));
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::relu_squared:
      return x > 0 ? x * x : 0;
    case Activation::sigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::tanh:
      return std::tanh(x);
  }
  return x;
}

/// f'(x)
template <typename Real>
Real activation_derivative(Activation f, Real x) {
  switch (f) {
    case Activation::identity:
      return 1;
    case Activation::silu: {
      const Real s = 1 / (1 + std::exp(-x));
      return s * (1 + x * (1 - s));
    }
    case Activation::gelu_erf: {
      const Real density = static_cast<Real>(M_2_SQRTPI * M_SQRT1_2 / 2) * std::exp(-x * x / 2);
      return std::erfc(-x * static_cast<Real>(M_SQRT1_2)) / 2 + x * density;
    }
    case Activation::gelu_tanh: {
      const Real root = static_cast<Real>(M_2_SQRTPI * M_SQRT1_2), cubic = static_cast<Real>(0.044715);
      const Real tanh = std::tanh(root * (x + cubic * x * x * x));
      return (1 + tanh) / 2 + x * (1 - tanh * tanh) * root * (1 + 3 * cubic * x * x) / 2;
    }
    case Activation::gelu_sigmoid: {
      const Real rate = static_cast<Real>(1.702), s = 1 / (1 + std::exp(-rate * x));
      return s * (1 + rate * x * (1 - s));
    }
    case Activation::relu:
      return x > 0 ? 1 : 0;
    case Activation::relu_squared:
      return x > 0 ? 2 * x : 0;
    case Activation::sigmoid: {
      const Real s = 1 / (1 + std::exp(-x));
      return s * (1 - s);
    }
    case Activation::tanh:
      return 1 - std::tanh(x) * std::tanh(x);
  }
  return 1;
}

template <typename Real>
void gated_forward(Activation f, const Real* gate, const Real* up, int64_t count, Real* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = activation(f, gate[i]) * up[i];
}

template <typename Real>
void gated_backward(Activation f, const Real* dy, const Real* gate, const Real* up, int64_t count, Real* dgate,
                    Real* dup) {
  for (int64_t i = 0; i < count; ++i) {
    dup[i] = dy[i] * activation(f, gate[i]);
    dgate[i] = dy[i] * up[i] * activation_derivative(f, gate[i]);
  }
}

template <typename Real>
void xielu_forward(const Real* x, Real alpha_p, Real alpha_n, int64_t count, Real* y) {
  const Real ap = std::log1p(std::exp(alpha_p)), an = Real(0.5) + std::log1p(std::exp(alpha_n));
  for (int64_t i = 0; i < count; ++i) {
    y[i] = (x[i] > 0 ? ap * x[i] * x[i] : an * (std::expm1(x[i]) - x[i])) + x[i] / 2;
  }
}

template <typename Real>
void xielu_backward(const Real* dy, const Real* x, Real alpha_p, Real alpha_n, int64_t count, Real* dx, Real& dalpha_p,
                    Real& dalpha_n) {
  const Real ap = std::log1p(std::exp(alpha_p)), an = Real(0.5) + std::log1p(std::exp(alpha_n));
  Real dp = 0, dn = 0;
  for (int64_t i = 0; i < count; ++i) {
    (x[i] > 0 ? dp : dn) += dy[i] * (x[i] > 0 ? x[i] * x[i] : std::expm1(x[i]) - x[i]);
    dx[i] = dy[i] * ((x[i] > 0 ? 2 * ap * x[i] : an * std::expm1(x[i])) + Real(0.5));
  }
  dalpha_p += dp / (1 + std::exp(-alpha_p));
  dalpha_n += dn / (1 + std::exp(-alpha_n));
}

/// Mean and standard deviation of a row.
template <typename Real>
struct RowMoments {
  RowMoments(const Real* row, int64_t width) {
    for (int64_t i = 0; i < width; ++i) mean += row[i] / static_cast<Real>(width);
    for (int64_t i = 0; i < width; ++i) deviation += (row[i] - mean) * (row[i] - mean) / static_cast<Real>(width);
    deviation = std::sqrt(deviation);
  }
  Real mean = 0, deviation = 0;
};

template <typename Real>
void gaussian_topk_forward(const Real* x, Real deviations, int64_t rows, int64_t width, Real* y) {
  for (int64_t t = 0; t < rows; ++t, x += width, y += width) {
    const RowMoments<Real> moments(x, width);
    for (int64_t i = 0; i < width; ++i) {
      y[i] = std::max(Real(0), x[i] - moments.mean - moments.deviation * deviations);
    }
  }
}

template <typename Real>
void gaussian_topk_backward(const Real* dy, const Real* x, Real deviations, int64_t rows, int64_t width, Real* dx) {
  for (int64_t t = 0; t < rows; ++t, dy += width, x += width, dx += width) {
    const RowMoments<Real> moments(x, width);
    const auto passed = [&](int64_t i) { return x[i] > moments.mean + moments.deviation * deviations ? dy[i] : 0; };
    Real share = 0;
    for (int64_t i = 0; i < width; ++i) share += passed(i) / static_cast<Real>(width);
    const Real by_deviation = moments.deviation > 0 ? share * deviations / moments.deviation : 0;
    for (int64_t i = 0; i < width; ++i) dx[i] = passed(i) - share - by_deviation * (x[i] - moments.mean);
  }
}

template <typename Real>
void clamped_gated_forward(Activation f, Real limit, const Real* gate, const Real* up, int64_t count, Real* y) {
  for (int64_t i = 0; i < count; ++i) {
    y[i] = activation(f, std::min(gate[i], limit)) * (1 + std::clamp(up[i], -limit, limit));
  }
}

template <typename Real>
void clamped_gated_backward(Activation f, Real limit, const Real* dy, const Real* gate, const Real* up, int64_t count,
                            Real* dgate, Real* dup) {
  for (int64_t i = 0; i < count; ++i) {
    const Real g = std::min(gate[i], limit), u = std::clamp(up[i], -limit, limit);
    dup[i] = u == up[i] ? dy[i] * activation(f, g) : 0;
    dgate[i] = g == gate[i] ? dy[i] * (1 + u) * activation_derivative(f, g) : 0;
  }
}

}  // namespace nibble::ops::ref
