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

/// Ids by falling logit, the lower one first among equals, sorted no further than they are asked for.
class Falling {
 public:
  explicit Falling(std::span<const float> logits) : logits_(logits), heap_(logits.size()) {
    std::iota(heap_.begin(), heap_.end(), 0);
    std::ranges::make_heap(heap_, Behind{logits_});
  }
  int32_t next() {
    std::ranges::pop_heap(heap_, Behind{logits_});
    const int32_t id = heap_.back();
    heap_.pop_back();
    return id;
  }

 private:
  struct Behind {
    std::span<const float> logits;
    bool operator()(int32_t a, int32_t b) const {
      const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
      return x != y ? x < y : a > b;
    }
  };
  std::span<const float> logits_;
  std::vector<int32_t> heap_;
};

}  // namespace

void check(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
    throw UsageError("temperature must be 0 (greedy) or positive");
  if (options.top_k < 0) throw UsageError("top_k must be 0 (off) or positive");
  if (!(options.top_p > 0 && options.top_p <= 1)) throw UsageError("top_p must be above 0 and at most 1");
  if (!(options.min_p >= 0 && options.min_p <= 1)) throw UsageError("min_p must be from 0 to 1");
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

  const auto weight_of = [&](int32_t id) {
    return std::exp((static_cast<double>(logits[static_cast<size_t>(id)]) - top) / options.temperature);
  };
  Falling falling(logits);
  std::vector<int32_t> order;
  std::vector<double> weights;
  const auto take = [&] {
    order.push_back(falling.next());
    weights.push_back(weight_of(order.back()));
  };
  double sum = 0;  // of all that top-k leaves
  const size_t all = logits.size();
  const size_t count = options.top_k > 0 ? std::min(all, static_cast<size_t>(options.top_k)) : all;
  if (count == all) {
    for (size_t id = 0; id < all; ++id) sum += weight_of(static_cast<int32_t>(id));
  } else {
    while (order.size() < count) take();
    for (const double weight : weights) sum += weight;
  }
  // A token stays while those before it do not reach p, so the first always does.
  const bool cuts = options.top_p < 1 || options.min_p > 0;
  size_t kept = cuts ? 0 : count;
  double kept_sum = cuts ? 0 : sum;
  while (cuts && kept < count && (kept == 0 || options.top_p >= 1 || kept_sum < options.top_p * sum)) {
    if (kept == order.size()) take();
    if (kept > 0 && weights[kept] < options.min_p) break;
    kept_sum += weights[kept++];
  }
  const uint64_t key = (static_cast<uint64_t>(sequence) << 32) + static_cast<uint64_t>(position);
  double draw = PhiloxStream(options.seed, kSamplingPurpose, key).next_uniform_double() * kept_sum;
  for (size_t i = 0; i + 1 < kept; ++i) {
    if (i == order.size()) take();
    draw -= weights[i];
    if (draw < 0) return order[i];
  }
  while (order.size() < kept) take();
  return order[kept - 1];
}

}  // namespace nibble
