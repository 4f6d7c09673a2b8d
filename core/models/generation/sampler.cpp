#include "nibble/core/models/generation/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/base/philox.h"

namespace nibble {

namespace {

constexpr uint32_t kSamplingPurpose = 0x53414d50;  // "SAMP"

// e^x for x in [-708, 0] within 2e-14, with the same arithmetic on every CPU. x = n ln 2 + r with |r| <= ln 2 / 2, and
// the Taylor polynomial of degree 11 for e^r (its error: r^12 / 12! < 7e-15).
inline double exp_of_negative(double x) {
  constexpr double kRounds = 6755399441055744.0;  // 1.5 * 2^52: what is added to it stands in its last bits, whole
  const double shifted = x * 1.4426950408889634 + kRounds, n = shifted - kRounds;
  const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  const double high = (((r * (1.0 / 39916800) + 1.0 / 3628800) * r + 1.0 / 362880) * r + 1.0 / 40320) * r + 1.0 / 5040;
  const double low = (((high * r + 1.0 / 720) * r + 1.0 / 120) * r + 1.0 / 24) * r + 1.0 / 6;
  const double p = ((low * r + 0.5) * r + 1) * r + 1;
  const uint64_t exponent = (std::bit_cast<uint64_t>(shifted) << 52) + (uint64_t{1023} << 52);
  return p * std::bit_cast<double>(exponent);
}

// Buckets of near logits, by falling logit: kPerUnit to a factor of e, so that the last one begins at e^-32.
constexpr size_t kBuckets = 4096, kLast = kBuckets - 1;
constexpr double kPerUnit = 128;

// By id: e^((logit - top) / temperature), at least e^-700, and its bucket.
struct Weights {
  std::vector<double> weights;
  std::vector<uint16_t> buckets;
};

// A weight is that of its bucket's first logit times e^r, -1 / kPerUnit < r <= 0, whose Taylor polynomial of degree 5
// is good to 4e-16. The first loop is computed in vectors.
Weights weigh(std::span<const float> logits, double top, double temperature) {
  static const std::vector<double> firsts = [] {
    std::vector<double> powers(kBuckets);
    for (size_t b = 0; b < kBuckets; ++b) powers[b] = exp_of_negative(-static_cast<double>(b) / kPerUnit);
    return powers;
  }();
  constexpr size_t kBlock = 64;
  const double scale = kPerUnit / temperature;
  Weights of = {std::vector<double>(logits.size()), std::vector<uint16_t>(logits.size())};
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const size_t count = std::min(kBlock, logits.size() - begin);
    const float* from = logits.data() + begin;
    std::array<double, kBlock> number, power;
    std::array<int32_t, kBlock> bucket;
    for (size_t i = 0; i < count; ++i) {
      const double below = (top - static_cast<double>(from[i])) * scale;
      number[i] = below < static_cast<double>(kLast) ? below : static_cast<double>(kLast);
    }
    for (size_t i = 0; i < count; ++i) bucket[i] = static_cast<int32_t>(number[i]);
    for (size_t i = 0; i < count; ++i) {
      const double r = (static_cast<double>(bucket[i]) - number[i]) * (1 / kPerUnit);
      power[i] = ((((r * (1.0 / 120) + 1.0 / 24) * r + 1.0 / 6) * r + 0.5) * r + 1) * r + 1;
    }
    for (size_t i = 0; i < count; ++i) {
      const auto b = static_cast<uint16_t>(bucket[i]);
      of.buckets[begin + i] = b;
      of.weights[begin + i] =
          b < kLast ? power[i] * firsts[b]
                    : exp_of_negative(std::max(-700.0, (static_cast<double>(from[i]) - top) / temperature));
    }
  }
  return of;
}

// As integers floats are in order, but for the sign; their extremes are found in vectors.
int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & std::numeric_limits<int32_t>::max()); }

// NaN if one is, or is infinite upwards.
float highest_of(std::span<const float> logits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  int32_t highest = std::numeric_limits<int32_t>::min(), lowest = std::numeric_limits<int32_t>::max();
  for (const float logit : logits) {
    const int32_t key = ordered(std::bit_cast<int32_t>(logit));
    highest = highest < key ? key : highest;
    lowest = key < lowest ? key : lowest;
  }
  const bool finite =
      highest < std::bit_cast<int32_t>(kInfinity) && lowest >= ordered(std::bit_cast<int32_t>(-kInfinity));
  return finite ? std::bit_cast<float>(ordered(highest)) : std::numeric_limits<float>::quiet_NaN();
}

// By falling logit, the lower one first among equals.
void sort_falling(std::span<int32_t> ids, std::span<const float> logits) {
  std::ranges::sort(ids, [logits](int32_t i, int32_t j) {
    const float x = logits[static_cast<size_t>(i)], y = logits[static_cast<size_t>(j)];
    return x != y ? x > y : i < j;
  });
}

// All ids by falling logit. A bucket is sorted when it is come to; those that are passed over are not.
class Falling {
 public:
  Falling(std::span<const float> logits, std::span<const uint16_t> buckets)
      : logits_(logits), ids_(logits.size()), begins_(kBuckets + 1) {
    for (const uint16_t bucket : buckets) ++begins_[bucket + size_t{1}];
    for (size_t b = 0; b < kBuckets; ++b) begins_[b + 1] += begins_[b];
    std::vector<uint32_t> next(begins_.begin(), begins_.end() - 1);
    for (size_t id = 0; id < logits.size(); ++id) ids_[next[buckets[id]]++] = static_cast<int32_t>(id);
  }
  std::span<const int32_t> sorted(size_t b) {
    const std::span<int32_t> own = std::span(ids_).subspan(begins_[b], begins_[b + 1] - begins_[b]);
    sort_falling(own, logits_);
    return own;
  }

 private:
  std::span<const float> logits_;
  std::vector<int32_t> ids_;
  std::vector<uint32_t> begins_;  // of each bucket, and the end
};

// Tokens that top-k, top-p and min-p leave, by falling logit.
std::vector<int32_t> kept_tokens(Falling& falling, std::span<const double> weights, const SamplingOptions& options) {
  const size_t count =
      options.top_k > 0 ? std::min(weights.size(), static_cast<size_t>(options.top_k)) : weights.size();
  const auto weight = [&](int32_t id) { return weights[static_cast<size_t>(id)]; };
  std::vector<int32_t> order;
  double sum = 0;  // of all that top-k leaves
  if (count == weights.size()) {
    for (const double each : weights) sum += each;
  }
  size_t b = 0;
  const auto take = [&] {  // another bucket
    const std::span<const int32_t> more = falling.sorted(b++);
    order.insert(order.end(), more.begin(), more.end());
  };
  if (count < weights.size()) {
    while (order.size() < count) take();
    order.resize(count);
    for (const int32_t id : order) sum += weight(id);
  }
  // A token stays while those before it do not reach p, so the first always does.
  size_t kept = 0;
  double kept_sum = 0;
  while (kept < count && (kept == 0 || options.top_p >= 1 || kept_sum < options.top_p * sum)) {
    while (kept == order.size()) take();
    if (kept > 0 && weight(order[kept]) < options.min_p) break;
    kept_sum += weight(order[kept++]);
  }
  order.resize(kept);
  return order;
}

// The token at `draw` of the sum of the weights of `order`, or the last.
int32_t drawn(std::span<const int32_t> order, std::span<const double> weights, double draw) {
  for (const int32_t id : order.first(order.size() - 1)) {
    draw -= weights[static_cast<size_t>(id)];
    if (draw < 0) return id;
  }
  return order.back();
}

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
  const auto fail = [&](const char* what) {
    throw NumericError("logits of position " + std::to_string(position), what, "check the model's weights");
  };
  const auto known = static_cast<size_t>(options.vocabulary);
  if (known > 0 && known < logits.size()) logits = logits.first(known);
  const float highest = highest_of(logits);
  if (std::isnan(highest)) fail("not finite");
  if (std::isinf(highest)) fail("no token has a probability");
  const auto top = static_cast<double>(highest), temperature = static_cast<double>(options.temperature);
  if (temperature == 0) return static_cast<int32_t>(std::ranges::find(logits, highest) - logits.begin());

  const auto [weights, buckets] = weigh(logits, top, temperature);
  const uint64_t key = (static_cast<uint64_t>(sequence) << 32) + static_cast<uint64_t>(position);
  const double share = PhiloxStream(options.seed, kSamplingPurpose, key).next_uniform_double();
  if (options.top_k > 0 || options.top_p < 1 || options.min_p > 0) {
    Falling falling(logits, buckets);
    const std::vector<int32_t> order = kept_tokens(falling, weights, options);
    double sum = 0;
    for (const int32_t id : order) sum += weights[static_cast<size_t>(id)];
    return drawn(order, weights, share * sum);
  }
  // All are left: buckets other than the one that is drawn from need no order.
  std::array<double, kBuckets> sums{},
      odd{};  // of all, of odd ids: neighbours in one bucket do not wait for each other
  size_t id = 0;
  for (; id + 1 < weights.size(); id += 2) {
    sums[buckets[id]] += weights[id];
    odd[buckets[id + 1]] += weights[id + 1];
  }
  if (id < weights.size()) sums[buckets[id]] += weights[id];
  for (size_t b = 0; b < kBuckets; ++b) sums[b] += odd[b];
  double sum = 0;
  size_t last = 0;
  for (size_t b = 0; b < sums.size(); ++b) {
    if (sums[b] > 0) last = b;
    sum += sums[b];
  }
  double draw = share * sum;
  size_t b = 0;
  while (b < last && draw >= sums[b]) draw -= sums[b++];
  std::vector<int32_t> order;
  constexpr size_t kLooks = 64;  // in vectors, whether one of them is there
  const auto wanted = static_cast<uint16_t>(b);
  for (size_t begin = 0; begin < buckets.size(); begin += kLooks) {
    const size_t end = std::min(buckets.size(), begin + kLooks);
    uint16_t any = 0;
    for (size_t i = begin; i < end; ++i) any |= static_cast<uint16_t>(buckets[i] == wanted);
    for (size_t i = begin; any != 0 && i < end; ++i) {
      if (buckets[i] == wanted) order.push_back(static_cast<int32_t>(i));
    }
  }
  sort_falling(order, logits);
  return drawn(order, weights, draw);
}

}  // namespace nibble
