#include "nibble/core/models/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/base/philox.h"

namespace nibble {

namespace {

constexpr uint32_t kSamplingPurpose = 0x53414d50;  // "SAMP"

int32_t greedy(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Ids by falling logit, the lower id first among equals, cut to the k largest.
std::vector<int32_t> largest(std::span<const float> logits, int64_t k) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const size_t count = k > 0 ? std::min(order.size(), static_cast<size_t>(k)) : order.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(), before);
  order.resize(count);
  return order;
}

}  // namespace

void check(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
    throw UsageError("temperature must be 0 (greedy) or positive");
  if (options.top_k < 0) throw UsageError("top_k must be 0 (off) or positive");
  if (!(options.top_p > 0 && options.top_p <= 1)) throw UsageError("top_p must be above 0 and at most 1");
}

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, int64_t position,
                     int64_t sequence) {
  NIBBLE_CHECK(sequence >= 0 && sequence <= UINT32_MAX && position <= UINT32_MAX, "what keys a sample fits its key");
  const std::string place = "logits of position " + std::to_string(position);
  for (float logit : logits) {
    if (std::isnan(logit) || logit == INFINITY) throw NumericError(place, "not finite", "check the model's weights");
  }
  const int32_t best = greedy(logits);
  const double top = logits[static_cast<size_t>(best)];
  if (std::isinf(top)) throw NumericError(place, "no token has a probability", "check the model's weights");
  if (options.temperature == 0) return best;

  const std::vector<int32_t> order = largest(logits, options.top_k);
  std::vector<double> weights(order.size());
  double sum = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    weights[i] = std::exp((static_cast<double>(logits[static_cast<size_t>(order[i])]) - top) / options.temperature);
    sum += weights[i];
  }
  // A token stays while those before it do not reach p, so the first always does.
  size_t kept = 0;
  double kept_sum = 0;
  while (kept < order.size() && (kept == 0 || options.top_p >= 1 || kept_sum < options.top_p * sum)) {
    kept_sum += weights[kept++];
  }
  const uint64_t key = (static_cast<uint64_t>(sequence) << 32) + static_cast<uint64_t>(position);
  double draw = PhiloxStream(options.seed, kSamplingPurpose, key).next_uniform_double() * kept_sum;
  for (size_t i = 0; i + 1 < kept; ++i) {
    draw -= weights[i];
    if (draw < 0) return order[i];
  }
  return order[kept - 1];
}

}  // namespace nibble
