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

/// statistics [4, rows]: see TokenStatistic; the mean logit as a sum.
template <typename Real>
void token_statistics(const Real* logits, const int32_t* targets, int64_t rows, int64_t vocabulary, Real softcap,
                      Real* statistics) {
  std::vector<Real> capped(static_cast<size_t>(vocabulary));
  for (int64_t n = 0; n < rows; ++n) {
    const Real* row = logits + n * vocabulary;
    for (int64_t i = 0; i < vocabulary; ++i) {
      capped[static_cast<size_t>(i)] = softcap > 0 ? softcap * std::tanh(row[i] / softcap) : row[i];
    }
    const auto top = std::max_element(capped.begin(), capped.end());
    Real exponentials = 0, collision = 0, entropy = 0, logits_sum = 0;
    for (const Real value : capped) exponentials += std::exp(value - *top);
    for (const Real value : capped) {
      const Real log_p = value - *top - std::log(exponentials), p = std::exp(log_p);
      collision += p * p;
      entropy -= p * log_p;
      logits_sum += value;
    }
    statistics[n] = std::log(collision);
    statistics[rows + n] = entropy;
    statistics[2 * rows + n] = logits_sum;
    statistics[3 * rows + n] = top - capped.begin() == targets[n] ? 1 : 0;
  }
}

/// dlogits may be null.
template <typename Real>
void divergence(const Real* logits, const Real* teacher, int64_t rows, int64_t vocabulary, Real softcap,
                Real temperature, Real beta, Real scale, Real* losses, Real* entropies, Real* dlogits) {
  const auto size = static_cast<size_t>(vocabulary);
  std::vector<Real> student(size), log_p(size), log_q(size);
  const auto log_softmax = [&](const auto& value, std::vector<Real>& out) {
    Real top = -INFINITY, sum = 0;
    for (size_t i = 0; i < size; ++i) top = std::max(top, value(i) / temperature);
    for (size_t i = 0; i < size; ++i) sum += std::exp(value(i) / temperature - top);
    for (size_t i = 0; i < size; ++i) out[i] = value(i) / temperature - top - std::log(sum);
  };
  for (int64_t n = 0; n < rows; ++n) {
    for (size_t i = 0; i < size; ++i) {
      const Real x = logits[n * vocabulary + static_cast<int64_t>(i)];
      student[i] = softcap > 0 ? softcap * std::tanh(x / softcap) : x;
    }
    log_softmax([&](size_t i) { return student[i]; }, log_p);
    log_softmax([&](size_t i) { return teacher[n * vocabulary + static_cast<int64_t>(i)]; }, log_q);
    Real of_teacher = 0, of_student = 0;  // KL(q || m) and KL(p || m); m is p for beta 0 and q for beta 1
    const auto log_m = [&](size_t i) { return std::log((1 - beta) * std::exp(log_p[i]) + beta * std::exp(log_q[i])); };
    for (size_t i = 0; i < size; ++i) {
      of_teacher += std::exp(log_q[i]) * (log_q[i] - log_m(i));
      of_student += std::exp(log_p[i]) * (log_p[i] - log_m(i));
    }
    entropies[n] = 0;
    for (const Real x : log_p) entropies[n] -= std::exp(x) * x;
    losses[n] = beta == 0 ? of_teacher : beta == 1 ? of_student : beta * of_teacher + (1 - beta) * of_student;
    if (dlogits == nullptr) continue;
    for (size_t i = 0; i < size; ++i) {
      const Real p = std::exp(log_p[i]), share = beta == 1 ? 1 : 1 - beta;
      Real gradient = beta == 0 ? p - std::exp(log_q[i]) : share * p * (log_p[i] - log_m(i) - of_student);
      if (softcap > 0) gradient *= 1 - student[i] / softcap * student[i] / softcap;
      dlogits[n * vocabulary + static_cast<int64_t>(i)] = gradient * scale / temperature;
    }
  }
}

}  // namespace nibble::ops::ref
