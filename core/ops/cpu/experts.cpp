#include "nibble/core/ops/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/backend.h"
#include "nibble/core/ops/ref/experts.h"

namespace nibble::ops::cpu {

namespace {

constexpr int64_t kRowGrain = 32;

/// What one thread needs to route a row of E logits; scores are f64, so that they are those of any other order of sums.
class RowRouter {
 public:
  RowRouter(int64_t experts, const Routing& routing)
      : routing_(routing),
        scores_(static_cast<size_t>(experts)),
        chooses_(scores_.size()),
        order_(scores_.size()),
        own_(static_cast<size_t>(routing.k)) {}

  /// The k chosen experts of a row in rising order.
  void choose(const float* logits, const float* correction, int32_t* chosen) {
    if (routing_.score == RouterScore::sparse_mixer) {
      mix(logits);
      std::copy(std::begin(mixer_->chosen), std::end(mixer_->chosen), chosen);
      return std::sort(chosen, chosen + 2);
    }
    score(logits);
    for (size_t e = 0; e < chooses_.size(); ++e) {
      const double score = routing_.logits_choose ? double{logits[e]} : scores_[e];
      const double value = score + (correction != nullptr ? double{correction[e]} : 0);
      chooses_[e] = std::isnan(value) ? kWorst : value;
    }
    const size_t allowed = routing_.groups > 1 ? keep_groups() : all();
    const auto k = static_cast<size_t>(routing_.k);
    const auto begin = order_.begin(), end = begin + static_cast<int64_t>(allowed);
    std::partial_sort(begin, begin + static_cast<int64_t>(k), end, [&](int32_t a, int32_t b) { return better(a, b); });
    std::sort(begin, begin + static_cast<int64_t>(k));
    std::copy(begin, begin + static_cast<int64_t>(k), chosen);
  }
  /// After choose() of the same row, or score().
  void weigh(const int32_t* chosen, float* weights) {
    for (size_t j = 0; mixer_ && j < 2; ++j) weights[j] = static_cast<float>(mixer_->weight(chosen[j]));
    if (mixer_) return;
    const double sum = own_scores(chosen), scale = double{routing_.scale} / (routing_.normalize ? sum : 1);
    for (size_t j = 0; j < own_.size(); ++j) weights[j] = static_cast<float>(scale * own_[j]);
  }
  /// dlogits [E] of a row.
  void gradient(const float* dweights, const float* logits, const int32_t* chosen, float* dlogits) {
    if (routing_.score == RouterScore::sparse_mixer) {
      const std::vector<double> wide(logits, logits + scores_.size());
      const double grads[] = {double{dweights[0]}, double{dweights[1]}};
      const std::vector<double> result =
          ref::router_gradient(grads, wide.data(), std::ssize(wide), {chosen[0], chosen[1]}, routing_);
      std::transform(result.begin(), result.end(), dlogits, [](double d) { return static_cast<float>(d); });
      return;
    }
    score(logits);
    const double sum = own_scores(chosen), divisor = routing_.normalize ? sum : 1;
    double mean = 0, inner = 0;
    for (size_t j = 0; j < own_.size() && routing_.normalize; ++j) mean += double{dweights[j]} * own_[j] / sum;
    const auto dscore = [&](size_t j) { return double{routing_.scale} * (double{dweights[j]} - mean) / divisor; };
    for (size_t j = 0; j < own_.size(); ++j) inner += dscore(j) * own_[j];
    const bool all_move = routing_.score == RouterScore::softmax;
    for (size_t e = 0; e < scores_.size(); ++e) dlogits[e] = all_move ? static_cast<float>(-scores_[e] * inner) : 0;
    for (size_t j = 0; j < own_.size(); ++j) {
      const double grad = routing_.score == RouterScore::sigmoid ? dscore(j) * (1 - own_[j]) : dscore(j) - inner;
      dlogits[chosen[j]] = static_cast<float>(own_[j] * grad);
    }
  }

  static void softmax(double* values, size_t count) {
    const double top = *std::max_element(values, values + count);
    double sum = 0;
    for (size_t i = 0; i < count; ++i) sum += values[i] = std::exp(values[i] - top);
    for (size_t i = 0; i < count; ++i) values[i] /= sum;
  }

 private:
  void mix(const float* logits) {
    const std::vector<double> wide(logits, logits + scores_.size());
    mixer_.emplace(wide.data(), std::ssize(wide), routing_);
  }

  static constexpr double kWorst = -std::numeric_limits<double>::infinity();

  void score(const float* logits) {
    for (size_t e = 0; e < scores_.size(); ++e) scores_[e] = double{logits[e]};
    if (routing_.score == RouterScore::softmax) softmax(scores_.data(), scores_.size());
    if (routing_.score == RouterScore::sigmoid) {
      for (double& score : scores_) score = 1 / (1 + std::exp(-score));
    }
  }
  /// Their sum and epsilon.
  double own_scores(const int32_t* chosen) {
    for (size_t j = 0; j < own_.size(); ++j) own_[j] = scores_[static_cast<size_t>(chosen[j])];
    if (routing_.score == RouterScore::chosen_softmax) softmax(own_.data(), own_.size());
    return std::accumulate(own_.begin(), own_.end(), double{routing_.epsilon});
  }
  bool better(int32_t a, int32_t b) const {
    const double x = chooses_[static_cast<size_t>(a)], y = chooses_[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  }
  size_t all() {
    std::iota(order_.begin(), order_.end(), 0);
    return order_.size();
  }
  /// Puts the experts of the best groups first; returns how many these are.
  size_t keep_groups() {
    const int64_t size = std::ssize(chooses_) / routing_.groups;
    std::vector<std::pair<double, int64_t>> groups;
    for (int64_t g = 0; g < routing_.groups; ++g) {
      double best = kWorst, second = kWorst;
      for (int64_t e = g * size; e < (g + 1) * size; ++e) {
        const double value = chooses_[static_cast<size_t>(e)];
        second = std::max(second, std::min(best, value));
        best = std::max(best, value);
      }
      groups.emplace_back(routing_.group_score == GroupScore::best || size == 1 ? -best : -(best + second), g);
    }
    std::sort(groups.begin(), groups.end());
    size_t count = 0;
    for (int64_t i = 0; i < routing_.top_groups; ++i) {
      const int64_t g = groups[static_cast<size_t>(i)].second;
      for (int64_t e = g * size; e < (g + 1) * size; ++e) order_[count++] = static_cast<int32_t>(e);
    }
    return count;
  }

  const Routing& routing_;
  std::vector<double> scores_, chooses_;
  std::vector<int32_t> order_;
  std::vector<double> own_;  // of the chosen
  std::optional<ref::SparseMixer<double>> mixer_;
};

template <typename Gradient, typename Element>
void scale_each_backward(const Gradient* dy, const Element* x, const float* weights, int64_t rows, int64_t width,
                         Gradient* dx, float* dweights) {
  parallel_for(rows, kRowGrain, [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      double sums[8] = {};
      const float weight = weights[n];
      const Gradient* from = dy + n * width;
      for (int64_t i = 0; i < width; ++i) {
        const auto grad = static_cast<float>(from[i]);
        sums[i % 8] += double{grad} * double{static_cast<float>(x[n * width + i])};
        dx[n * width + i] = Gradient(weight * grad);
      }
      double sum = 0;
      for (const double part : sums) sum += part;
      dweights[n] = static_cast<float>(sum);
    }
  });
}

}  // namespace

void route(const Tensor& logits, const Tensor& correction, const Routing& routing, Tensor& chosen, Tensor& weights) {
  const int64_t experts = logits.dim(1), k = routing.k;
  const float* from = logits.data<const float>();
  const float* corrections = correction ? correction.data<const float>() : nullptr;
  int32_t* to = chosen.data<int32_t>();
  float* weight = weights.data<float>();
  parallel_for(logits.dim(0), kRowGrain, [=, &routing](int64_t begin, int64_t end) {
    RowRouter router(experts, routing);
    for (int64_t t = begin; t < end; ++t) {
      router.choose(from + t * experts, corrections, to + t * k);
      router.weigh(to + t * k, weight + t * k);
    }
  });
}

void route_backward(const Tensor& dweights, const Tensor& logits, const Tensor& chosen, const Routing& routing,
                    Tensor& dlogits) {
  const int64_t experts = logits.dim(1), k = routing.k;
  const float *from = logits.data<const float>(), *grads = dweights.data<const float>();
  const int32_t* of = chosen.data<const int32_t>();
  float* to = dlogits.data<float>();
  parallel_for(logits.dim(0), kRowGrain, [=, &routing](int64_t begin, int64_t end) {
    RowRouter router(experts, routing);
    for (int64_t t = begin; t < end; ++t) {
      router.gradient(grads + t * k, from + t * experts, of + t * k, to + t * experts);
    }
  });
}

void router_balance(const Tensor& logits, Tensor& sums) {
  const int64_t rows = logits.dim(0), experts = logits.dim(1);
  const float* from = logits.data<const float>();
  int64_t* to = sums.data<int64_t>();
  std::vector<int64_t> parts(static_cast<size_t>((rows + kRowGrain - 1) / kRowGrain * experts));
  int64_t* part = parts.data();
  parallel_for(rows, kRowGrain, [=](int64_t begin, int64_t end) {
    std::vector<double> shares(static_cast<size_t>(experts));
    int64_t* own = part + begin / kRowGrain * experts;
    for (int64_t t = begin; t < end; ++t) {
      std::copy(from + t * experts, from + (t + 1) * experts, shares.begin());
      RowRouter::softmax(shares.data(), shares.size());
      for (int64_t e = 0; e < experts; ++e) {
        const double share = shares[static_cast<size_t>(e)];
        own[e] += std::isfinite(share) ? std::llround(share * kBalanceUnit) : 0;
      }
    }
  });
  for (size_t i = 0; i < parts.size(); ++i) to[i % static_cast<size_t>(experts)] += parts[i];
}

void router_balance_backward(const Tensor& logits, const Tensor& dprobabilities, Tensor& dlogits) {
  const int64_t experts = logits.dim(1);
  const float *from = logits.data<const float>(), *grads = dprobabilities.data<const float>();
  float* to = dlogits.data<float>();
  parallel_for(logits.dim(0), kRowGrain, [=](int64_t begin, int64_t end) {
    std::vector<double> shares(static_cast<size_t>(experts));
    for (int64_t t = begin; t < end; ++t) {
      std::copy(from + t * experts, from + (t + 1) * experts, shares.begin());
      RowRouter::softmax(shares.data(), shares.size());
      double inner = 0;
      for (int64_t e = 0; e < experts; ++e) inner += double{grads[e]} * shares[static_cast<size_t>(e)];
      for (int64_t e = 0; e < experts; ++e) {
        to[t * experts + e] += static_cast<float>(shares[static_cast<size_t>(e)] * (double{grads[e]} - inner));
      }
    }
  });
}

void scale_rows_backward(const Tensor& dy, const Tensor& x, const Tensor& weights, Tensor& dx, Tensor& dweights) {
  const float* weight = weights.data<const float>();
  float* sums = dweights.data<float>();
  const auto run = [&](auto gradient, auto element) {
    using Gradient = decltype(gradient);
    using Element = decltype(element);
    scale_each_backward(dy.data<const Gradient>(), x.data<const Element>(), weight, dy.dim(0), dy.dim(1),
                        dx.data<Gradient>(), sums);
  };
  const bool narrow = x.dtype() == DType::bf16;
  if (dy.dtype() == DType::bf16) return narrow ? run(bf16(), bf16()) : run(bf16(), float());
  narrow ? run(float(), bf16()) : run(float(), float());
}

}  // namespace nibble::ops::cpu
