#pragma once
// Plain reference of ops/gated_norm.h: shapes as there, Real is float or double; `weights`: how many w has.

#include <cmath>
#include <cstdint>

namespace nibble::ops::ref {

template <typename Real>
Real silu(Real x) {
  return x / (1 + std::exp(-x));
}

template <typename Real>
Real silu_derivative(Real x) {
  const Real s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}

/// What a gate opens, and its derivative.
template <typename Real>
Real opened(Real x, bool sigmoid_gate) {
  return sigmoid_gate ? 1 / (1 + std::exp(-x)) : silu(x);
}

template <typename Real>
Real opened_derivative(Real x, bool sigmoid_gate) {
  const Real s = 1 / (1 + std::exp(-x));
  return sigmoid_gate ? s * (1 - s) : silu_derivative(x);
}

template <typename Real>
void gated_norm_forward(const Real* x, const Real* gate, const Real* w, int64_t tokens, int64_t width, int64_t group,
                        int64_t weights, Real eps, bool gate_first, bool sigmoid_gate, Real* y) {
  for (int64_t begin = 0; begin < tokens * width; begin += group) {
    Real squares = 0;
    for (int64_t i = begin; i < begin + group; ++i) {
      const Real in = gate_first ? x[i] * silu(gate[i]) : x[i];
      squares += in * in;
    }
    const Real inv = 1 / std::sqrt(squares / static_cast<Real>(group) + eps);
    for (int64_t i = begin; i < begin + group; ++i)
      y[i] = x[i] * opened(gate[i], sigmoid_gate) * inv * w[i % width % weights];
  }
}

/// dx and dgate overwritten; dw += (may be null).
template <typename Real>
void gated_norm_backward(const Real* dy, const Real* x, const Real* gate, const Real* w, int64_t tokens, int64_t width,
                         int64_t group, int64_t weights, Real eps, bool gate_first, bool sigmoid_gate, Real* dx,
                         Real* dgate, Real* dw) {
  for (int64_t begin = 0; begin < tokens * width; begin += group) {
    Real squares = 0, dot = 0;
    for (int64_t i = begin; i < begin + group; ++i) {
      const Real in = gate_first ? x[i] * silu(gate[i]) : x[i];
      squares += in * in;
      dot += dy[i] * w[i % width % weights] * x[i] * opened(gate[i], sigmoid_gate);
    }
    const Real inv = 1 / std::sqrt(squares / static_cast<Real>(group) + eps);
    const Real projection = dot * inv * inv / static_cast<Real>(group);
    for (int64_t i = begin; i < begin + group; ++i) {
      const Real factor = w[i % width % weights], s = opened(gate[i], sigmoid_gate);
      if (dw != nullptr) dw[i % width % weights] += dy[i] * x[i] * s * inv;
      if (gate_first) {
        const Real din = inv * (dy[i] * factor - x[i] * s * projection);
        dx[i] = din * s;
        dgate[i] = din * x[i] * silu_derivative(gate[i]);
      } else {
        dx[i] = inv * (dy[i] * factor * s - x[i] * projection);
        dgate[i] = dy[i] * factor * x[i] * inv * opened_derivative(gate[i], sigmoid_gate);
      }
    }
  }
}

}  // namespace nibble::ops::ref
