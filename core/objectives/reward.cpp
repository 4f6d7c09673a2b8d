#include "nibble/core/objectives/reward.h"

#include <algorithm>

#include "nibble/core/objectives/answers.h"
#include "nibble/core/objectives/dual.h"

namespace nibble {

LossCounts Reward::counts(const Batch& batch) const {
  LossCounts counts;
  each_pair(batch, [&](size_t) { ++counts.divisor; });
  return counts;
}

std::vector<int32_t> Reward::score_rows(const Batch& batch) const { return scored_rows(batch, pad_); }

double Reward::loss_sum(const Batch& batch, const LabelLogProbs& seen, const LossCounts&,
                        std::span<float> weights) const {
  double sum = 0;
  each_pair(batch, [&](size_t chosen) {
    const Dual c{static_cast<double>(seen.scores[chosen]), 1, 0}, r{static_cast<double>(seen.scores[chosen + 1]), 0, 1};
    const std::vector<float>& values = batch.values[chosen];
    const double margin = values.empty() ? 0 : static_cast<double>(values.front());
    const Dual loss = center_ * square(c - -r) - log_sigmoid((c - r) - margin);
    sum += loss.value;
    weights[chosen] = static_cast<float>(-loss.first);
    weights[chosen + 1] = static_cast<float>(-loss.second);
  });
  return sum;
}

std::vector<SampleFacts> Reward::facts(const Batch& batch, const LabelLogProbs& seen) const {
  std::vector<SampleFacts> found;
  each_pair(batch, [&](size_t chosen) {
    found.push_back({sample_number(batch, chosen),
                     {static_cast<double>(seen.scores[chosen]), static_cast<double>(seen.scores[chosen + 1])}});
  });
  return found;
}

Metrics Reward::metrics(std::span<const SampleFacts> facts, const LossCounts&) const {
  double least = std::numeric_limits<double>::quiet_NaN(), most = least;
  for (const SampleFacts& fact : facts) {
    for (const double score : {fact.values[0], fact.values[1]}) {
      least = std::fmin(least, score);
      most = std::fmax(most, score);
    }
  }
  const auto mean = [&](const auto& of) { return mean_of(facts, of); };
  return {{"min_reward", least},
          {"mean_reward", mean([](const SampleFacts& f) { return (f.values[0] + f.values[1]) / 2; })},
          {"max_reward", most},
          {"accuracy", mean([](const SampleFacts& f) { return f.values[0] > f.values[1] ? 1.0 : 0.0; })},
          {"margin", mean([](const SampleFacts& f) { return f.values[0] - f.values[1]; })}};
}

}  // namespace nibble
