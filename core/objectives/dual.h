#pragma once
// Numbers that carry their derivatives, so that a loss is written once. For .cpp files of this folder.

#include <cmath>

namespace nibble {

/// A function of what two answers score (one of them: the second is not there), with its derivatives by each.
struct Dual {
  double value = 0;
  double first = 0, second = 0;
};

/// f(x) from its value and its derivative at x.
inline Dual chain(const Dual& x, double value, double derivative) {
  return {value, derivative * x.first, derivative * x.second};
}

inline Dual operator+(const Dual& a, const Dual& b) {
  return {a.value + b.value, a.first + b.first, a.second + b.second};
}
inline Dual operator*(double factor, const Dual& x) { return chain(x, factor * x.value, factor); }
inline Dual operator-(const Dual& x) { return -1 * x; }
inline Dual operator-(const Dual& a, const Dual& b) { return a + -b; }
inline Dual operator+(const Dual& x, double constant) { return {x.value + constant, x.first, x.second}; }
inline Dual operator-(const Dual& x, double constant) { return x + -constant; }
inline Dual operator-(double constant, const Dual& x) { return -x + constant; }
inline Dual operator*(const Dual& a, const Dual& b) {
  return {a.value * b.value, a.first * b.value + a.value * b.first, a.second * b.value + a.value * b.second};
}
inline Dual square(const Dual& x) { return x * x; }
inline Dual exp(const Dual& x) { return chain(x, std::exp(x.value), std::exp(x.value)); }
inline Dual relu(const Dual& x) { return x.value > 0 ? x : Dual{}; }

inline double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
inline Dual sigmoid(const Dual& x) {
  const double s = sigmoid(x.value);
  return chain(x, s, s * (1 - s));
}
inline Dual log_sigmoid(const Dual& x) {
  const double value = x.value >= 0 ? -std::log1p(std::exp(-x.value)) : x.value - std::log1p(std::exp(x.value));
  return chain(x, value, sigmoid(-x.value));
}
/// log(1 - exp(x)) for x < 0.
inline Dual log1mexp(const Dual& x) {
  constexpr double kLog2 = 0.69314718055994531;
  const double value = x.value < -kLog2 ? std::log1p(-std::exp(x.value)) : std::log(-std::expm1(x.value));
  return chain(x, value, -1 / std::expm1(-x.value));
}

}  // namespace nibble
