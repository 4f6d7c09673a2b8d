#pragma once
// Plain reference of ops/experts.h.

#include <algorithm>
#include <cmath>
#include <vector>

#include "nibble/core/ops/experts.h"

namespace nibble::ops::ref {

/// out [count] = softmax of x [count]
template <typename Real>
void softmax(const Real* x, int64_t count, Real* out) {
  const Real top = *std::max_element(x, x + count);
  Real sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += out[i] = std::exp(x[i] - top);
  for (int64_t i = 0; i < count; ++i) out[i] /= sum;
}

/// Scores of the experts of one token: what chooses, before corrections. Of chosen_softmax the logits.
template <typename Real>
std::vector<Real> router_scores(const Real* logits, int64_t experts, const Routing& routing) {
  std::vector<Real> scores(logits, logits + experts);
  if (routing.score == RouterScore::softmax) softmax(logits, experts, scores.data());
  if (routing.score == RouterScore::sigmoid) {
    for (Real& score : scores) score = 1 / (1 + std::exp(-score));
  }
  return scores;
}

/// The two experts of sparse_mixer, and what each softmax gives all experts, 0 where they are left out.
template <typename Real>
struct SparseMixer {
  int64_t chosen[2] = {};
  std::vector<Real> shares[2];

  SparseMixer(const Real* logits, int64_t experts, const Routing& routing) {
    std::vector<Real> left(logits, logits + experts);
    for (int i = 0; i < 2; ++i) {
      const auto best = std::max_element(left.begin(), left.end());
      const Real top = *best, lowest = -std::numeric_limits<Real>::infinity();
      chosen[i] = best - left.begin();
      std::vector<Real> near = left;
      for (size_t e = 0; e < near.size(); ++e) {
        const Real far = (top - logits[e]) / std::max(std::abs(logits[e]), top);
        if (far > 2 * static_cast<Real>(routing.jitter)) near[e] = lowest;
      }
      shares[i].resize(near.size());
      softmax(near.data(), experts, shares[i].data());
      left[static_cast<size_t>(chosen[i])] = lowest;
    }
  }
  /// Which of the two expert e is.
  size_t which(int64_t e) const { return e == chosen[0] ? 0 : 1; }
  Real weight(int64_t e) const { return shares[which(e)][static_cast<size_t>(e)]; }
};

/// Numbers of the `count` best values, in rising order.
template <typename Real>
std::vector<int64_t> best_of(const std::vector<Real>& values, int64_t count) {
  std::vector<int64_t> order(values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  const auto value = [&](int64_t i) {
    const Real v = values[static_cast<size_t>(i)];
    return std::isnan(v) ? -std::numeric_limits<Real>::infinity() : v;
  };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return value(a) > value(b); });
  order.resize(static_cast<size_t>(count));
  std::sort(order.begin(), order.end());
  return order;
}

/// The chosen experts of one token; correction may be null.
template <typename Real>
std::vector<int64_t> choose(const Real* logits, const Real* correction, int64_t experts, const Routing& routing) {
  std::vector<Real> scores = router_scores(logits, experts, routing);
  if (routing.score == RouterScore::sparse_mixer) {
    const SparseMixer<Real> mixer(logits, experts, routing);
    return {std::min(mixer.chosen[0], mixer.chosen[1]), std::max(mixer.chosen[0], mixer.chosen[1])};
  }
  if (routing.logits_choose) scores.assign(logits, logits + experts);
  for (int64_t e = 0; correction != nullptr && e < experts; ++e) scores[static_cast<size_t>(e)] += correction[e];
  if (routing.groups > 1) {
    const int64_t size = experts / routing.groups;
    std::vector<Real> of_groups;
    for (int64_t g = 0; g < routing.groups; ++g) {
      std::vector<Real> group(scores.begin() + g * size, scores.begin() + (g + 1) * size);
      std::sort(group.begin(), group.end(), std::greater<>());
      of_groups.push_back(routing.group_score == GroupScore::best || size == 1 ? group[0] : group[0] + group[1]);
    }
    const std::vector<int64_t> top_groups = best_of(of_groups, routing.top_groups);
    std::vector<int64_t> allowed;
    std::vector<Real> values;
    for (const int64_t g : top_groups) {
      for (int64_t e = g * size; e < (g + 1) * size; ++e) {
        allowed.push_back(e);
        values.push_back(scores[static_cast<size_t>(e)]);
      }
    }
    std::vector<int64_t> chosen;
    for (const int64_t i : best_of(values, routing.k)) chosen.push_back(allowed[static_cast<size_t>(i)]);
    return chosen;
  }
  return best_of(scores, routing.k);
}

/// weights [k] of the chosen experts of one token.
template <typename Real>
std::vector<Real> router_weights(const Real* logits, int64_t experts, const std::vector<int64_t>& chosen,
                                 const Routing& routing) {
  const std::vector<Real> scores = router_scores(logits, experts, routing);
  std::vector<Real> weights;
  if (routing.score == RouterScore::sparse_mixer) {
    const SparseMixer<Real> mixer(logits, experts, routing);
    for (const int64_t e : chosen) weights.push_back(mixer.weight(e));
    return weights;
  }
  for (const int64_t e : chosen) weights.push_back(scores[static_cast<size_t>(e)]);
  if (routing.score == RouterScore::chosen_softmax) {
    softmax(std::vector<Real>(weights).data(), routing.k, weights.data());
  }
  Real sum = static_cast<Real>(routing.epsilon);
  for (const Real weight : weights) sum += weight;
  for (Real& weight : weights) weight *= static_cast<Real>(routing.scale) / (routing.normalize ? sum : 1);
  return weights;
}

/// dlogits [E] of one token from dweights [k].
template <typename Real>
std::vector<Real> router_gradient(const Real* dweights, const Real* logits, int64_t experts,
                                  const std::vector<int64_t>& chosen, const Routing& routing) {
  std::vector<Real> scores = router_scores(logits, experts, routing), dlogits(scores.size());
  const size_t k = chosen.size();
  if (routing.score == RouterScore::sparse_mixer) {
    const SparseMixer<Real> mixer(logits, experts, routing);
    for (size_t j = 0; j < k; ++j) {
      const std::vector<Real>& shares = mixer.shares[mixer.which(chosen[j])];
      const Real inner = dweights[j] * mixer.weight(chosen[j]);
      for (size_t e = 0; e < shares.size(); ++e) dlogits[e] -= inner * shares[e];
      dlogits[static_cast<size_t>(chosen[j])] += inner;
    }
    return dlogits;
  }
  std::vector<Real> own(k), dscores(dweights, dweights + k);
  for (size_t j = 0; j < k; ++j) own[j] = scores[static_cast<size_t>(chosen[j])];
  if (routing.score == RouterScore::chosen_softmax) softmax(std::vector<Real>(own).data(), routing.k, own.data());
  Real sum = static_cast<Real>(routing.epsilon), mean = 0;
  for (const Real score : own) sum += score;
  if (!routing.normalize) sum = 1;
  for (size_t j = 0; j < k && routing.normalize; ++j) mean += dscores[j] * own[j] / sum;
  for (size_t j = 0; j < k; ++j) dscores[j] = static_cast<Real>(routing.scale) * (dscores[j] - mean) / sum;
  Real inner = 0;
  for (size_t j = 0; j < k; ++j) inner += dscores[j] * own[j];
  for (size_t j = 0; j < k; ++j) {
    const size_t e = static_cast<size_t>(chosen[j]);
    dlogits[e] = own[j] * (routing.score == RouterScore::sigmoid ? dscores[j] * (1 - own[j]) : dscores[j] - inner);
  }
  if (routing.score != RouterScore::softmax) return dlogits;
  for (size_t e = 0; e < dlogits.size(); ++e) {
    const bool is_chosen = std::find(chosen.begin(), chosen.end(), static_cast<int64_t>(e)) != chosen.end();
    if (!is_chosen) dlogits[e] = -scores[e] * inner;
  }
  return dlogits;
}

/// sums [E] += softmax of every row.
template <typename Real>
void router_balance(const Real* logits, int64_t rows, int64_t experts, Real* sums) {
  std::vector<Real> shares(static_cast<size_t>(experts));
  for (int64_t t = 0; t < rows; ++t) {
    softmax(logits + t * experts, experts, shares.data());
    for (int64_t e = 0; e < experts; ++e) sums[e] += shares[static_cast<size_t>(e)];
  }
}

template <typename Real>
void router_balance_backward(const Real* logits, const Real* dprobabilities, int64_t rows, int64_t experts,
                             Real* dlogits) {
  std::vector<Real> shares(static_cast<size_t>(experts));
  for (int64_t t = 0; t < rows; ++t) {
    softmax(logits + t * experts, experts, shares.data());
    Real inner = 0;
    for (int64_t e = 0; e < experts; ++e) inner += dprobabilities[e] * shares[static_cast<size_t>(e)];
    for (int64_t e = 0; e < experts; ++e) {
      dlogits[t * experts + e] += shares[static_cast<size_t>(e)] * (dprobabilities[e] - inner);
    }
  }
}

}  // namespace nibble::ops::ref
