#include "nibble/core/objectives/ppo.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/objectives/answers.h"
#include "nibble/core/objectives/policy_gradient.h"

namespace nibble {

namespace {

double kl_of(const ObjectiveOptions& options, const PpoAnswer& answer, size_t t) {
  if (answer.reference.empty()) return 0;
  const double q = answer.policy[t] - answer.reference[t];
  return options.kl_estimator == KlEstimator::k1 ? q : std::expm1(-q) + q;
}

double score_of(const ObjectiveOptions& options, const PpoAnswer& answer) {
  if (std::isnan(answer.score)) return 0;
  return answer.score - (answer.ended ? 0 : options.missing_eos_penalty.value_or(0));
}

// Variance 1 (with n - 1), and mean 0 unless it is kept, over all lists.
void whiten(std::vector<std::vector<double>*>& lists, bool keep_mean) {
  constexpr double kLeastVariance = 1e-8;
  double count = 0, sum = 0, squares = 0;
  for (const std::vector<double>* list : lists) {
    for (const double x : *list) sum += x;
    count += static_cast<double>(list->size());
  }
  const double mean = sum / count;
  for (const std::vector<double>* list : lists) {
    for (const double x : *list) squares += (x - mean) * (x - mean);
  }
  const double scale = 1 / std::sqrt((count > 1 ? squares / (count - 1) : 0) + kLeastVariance);
  for (std::vector<double>* list : lists) {
    for (double& x : *list) x = (x - mean) * scale + (keep_mean ? mean : 0);
  }
}

/// ppo_values() of document d, whose answer has n tokens and m positions.
struct Targets {
  Targets(const Batch& batch, size_t d) : all(batch.values[d]), n(static_cast<size_t>(answer_tokens(batch, d))) {
    NIBBLE_CHECK(all.size() >= 3 * n && (all.size() - n) % 2 == 0, "an answer with advantages, values and returns");
    m = (all.size() - n) / 2;
  }
  double advantage(size_t t) const { return static_cast<double>(all[t]); }
  double old_value(size_t t) const { return static_cast<double>(all[n + t]); }
  double to_come(size_t t) const { return static_cast<double>(all[n + m + t]); }

  const std::vector<float>& all;
  size_t n, m = 0;
};

// The loss of a value without vf_coef, and its derivative by the value.
ClippedLoss value_loss(const ObjectiveOptions& options, double value, double old, double to_come) {
  const double clamped = std::clamp(value, old - options.cliprange_value, old + options.cliprange_value);
  const double off = value - to_come, clamped_off = clamped - to_come;
  if (off * off >= clamped_off * clamped_off) return {0.5 * off * off, off, false};
  return {0.5 * clamped_off * clamped_off, 0, true};
}

// Calls use(place among the scores of the batch, value, targets of its document, position).
template <typename Use>
void each_value(const Batch& batch, std::span<const float> scores, const Use& use) {
  size_t place = 0;
  for (size_t d = 0; d < batch.spans.size(); ++d) {
    const Targets targets(batch, d);
    for (size_t t = 0; t < targets.m; ++t, ++place) use(place, d, static_cast<double>(scores[place]), targets, t);
  }
}

}  // namespace

std::vector<PpoEstimates> ppo_estimates(const ObjectiveOptions& options, std::span<const PpoAnswer> answers) {
  size_t longest = 0;
  for (const PpoAnswer& answer : answers) longest = std::max(longest, answer.policy.size());
  std::vector<PpoEstimates> found(answers.size());
  std::vector<std::vector<double>*> rewards, advantages;
  for (size_t i = 0; i < answers.size(); ++i) {
    const PpoAnswer& answer = answers[i];
    const size_t n = answer.policy.size(), m = n + (n < longest ? 1 : 0);
    found[i].rewards.assign(m, 0);
    for (size_t t = 0; t < n; ++t) found[i].rewards[t] = -options.kl_coef * kl_of(options, answer, t);
    if (m > 0) found[i].rewards[m - 1] += score_of(options, answer);
    rewards.push_back(&found[i].rewards);
    advantages.push_back(&found[i].advantages);
  }
  if (options.whiten_rewards) whiten(rewards, true);
  for (size_t i = 0; i < answers.size(); ++i) {
    PpoEstimates& own = found[i];
    const std::vector<double>& values = answers[i].values;
    const size_t m = own.rewards.size();
    own.returns.resize(m);
    own.advantages.resize(m);
    double next_value = 0, next_advantage = 0;
    for (size_t t = m; t-- > 0;) {
      const double delta = own.rewards[t] + options.gamma * next_value - values.at(t);
      next_advantage = delta + options.gamma * options.lam * next_advantage;
      next_value = values[t];
      own.advantages[t] = next_advantage;
      own.returns[t] = next_advantage + values[t];
    }
    own.advantages.resize(answers[i].policy.size());
  }
  whiten(advantages, false);
  return found;
}

Metrics ppo_block_metrics(const ObjectiveOptions& options, std::span<const PpoAnswer> answers) {
  double kl = 0, entropy = 0, scores = 0, scored = 0;
  for (const PpoAnswer& answer : answers) {
    for (size_t t = 0; t < answer.policy.size(); ++t) {
      kl += kl_of(options, answer, t);
      entropy -= answer.policy[t];
    }
    if (std::isnan(answer.score)) continue;
    scores += score_of(options, answer);
    ++scored;
  }
  const auto count = static_cast<double>(answers.size());
  const double non_score = -options.kl_coef * kl / count;
  Metrics found;
  if (options.kl_coef != 0) found.emplace_back("objective/kl", kl / count);
  found.emplace_back("objective/entropy", entropy / count);
  found.emplace_back("objective/non_score_reward", non_score);
  if (scored > 0) {
    found.emplace_back("objective/rlhf_reward", non_score + scores / scored);
    found.emplace_back("objective/scores", scores / scored);
  }
  return found;
}

std::vector<float> ppo_values(const PpoAnswer& answer, const PpoEstimates& estimates) {
  std::vector<float> all;
  const auto add = [&](const std::vector<double>& from, size_t count) {
    for (size_t t = 0; t < count; ++t) all.push_back(static_cast<float>(from[t]));
  };
  add(estimates.advantages, estimates.advantages.size());
  add(answer.values, estimates.returns.size());
  add(estimates.returns, estimates.returns.size());
  return all;
}

namespace {

// Calls use(row, log-ratio, clipped loss) for the answer tokens of document d.
template <typename Use>
void each_token(const ObjectiveOptions& options, const Batch& batch, const LabelLogProbs& log_probs, size_t d,
                const Use& use) {
  const Targets targets(batch, d);
  each_answer_row(batch, d, [&](size_t row, int64_t k) {
    const auto policy = static_cast<double>(log_probs.policy[row]);
    const double log_ratio = batch.old ? policy - static_cast<double>(batch.old.data<const float>()[row]) : 0;
    use(row, log_ratio,
        clipped_loss(std::exp(log_ratio), targets.advantage(static_cast<size_t>(k)), 1 - options.cliprange,
                     1 + options.cliprange));
  });
}

}  // namespace

double PpoPolicy::loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts&,
                           std::span<float> weights) const {
  double sum = 0;
  for (size_t d = 0; d < batch.spans.size(); ++d) {
    each_token(options_, batch, log_probs, d, [&](size_t row, double log_ratio, const ClippedLoss& loss) {
      sum += loss.value;
      weights[row] = static_cast<float>(-loss.derivative * std::exp(log_ratio));
    });
  }
  return sum;
}

std::vector<SampleFacts> PpoPolicy::facts(const Batch& batch, const LabelLogProbs& log_probs) const {
  std::vector<SampleFacts> found;
  for (size_t d = 0; d < batch.spans.size(); ++d) {
    SampleFacts& fact = found.emplace_back(SampleFacts{sample_number(batch, d), {}});
    each_token(options_, batch, log_probs, d, [&](size_t, double log_ratio, const ClippedLoss& loss) {
      fact.values[0] += 1;
      fact.values[1] += loss.value;
      fact.values[2] += loss.clipped;
      fact.values[3] += log_ratio * log_ratio;
      const double off = std::expm1(log_ratio);
      fact.values[4] += off;
      fact.values[5] += off * off;
    });
    fact.values[6] = answer_sum(batch, d, log_probs.statistics.entropies);
  }
  return found;
}

Metrics PpoPolicy::metrics(std::span<const SampleFacts> facts, const LossCounts&) const {
  std::array<double, 7> sums{};
  for (const SampleFacts& fact : facts) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += fact.values[i];
  }
  const auto [tokens, loss, clipped, squares, off, off_squares, entropy] = sums;  // nan where nothing was counted
  return {
      {"loss/policy_avg", loss / tokens},        {"policy/approxkl_avg", 0.5 * squares / tokens},
      {"policy/clipfrac_avg", clipped / tokens}, {"policy/entropy_avg", entropy / tokens},
      {"val/ratio", 1 + off / tokens},           {"val/ratio_var", (off_squares - off * off / tokens) / (tokens - 1)}};
}

LossCounts PpoValue::counts(const Batch& batch) const {
  LossCounts counts;
  for (size_t d = 0; d < batch.spans.size(); ++d) counts.divisor += static_cast<double>(Targets(batch, d).m);
  return counts;
}

std::vector<int32_t> PpoValue::score_rows(const Batch& batch) const {
  std::vector<int32_t> rows;
  for (size_t d = 0; d < batch.spans.size(); ++d) {
    const Targets targets(batch, d);
    each_answer_row(batch, d, [&](size_t row, int64_t) { rows.push_back(static_cast<int32_t>(row)); });
    if (targets.m > targets.n) rows.push_back(static_cast<int32_t>(batch.spans[d].q_end - 1));
  }
  return rows;
}

double PpoValue::loss_sum(const Batch& batch, const LabelLogProbs& seen, const LossCounts&,
                          std::span<float> weights) const {
  double sum = 0;
  each_value(batch, seen.scores, [&](size_t place, size_t, double value, const Targets& targets, size_t t) {
    const ClippedLoss loss = value_loss(options_, value, targets.old_value(t), targets.to_come(t));
    sum += options_.vf_coef * loss.value;
    weights[place] = static_cast<float>(-options_.vf_coef * loss.derivative);
  });
  return sum;
}

std::vector<SampleFacts> PpoValue::facts(const Batch& batch, const LabelLogProbs& seen) const {
  std::vector<SampleFacts> found;
  each_value(batch, seen.scores, [&](size_t, size_t d, double value, const Targets& targets, size_t t) {
    if (t == 0) found.push_back({sample_number(batch, d), {}});
    const ClippedLoss loss = value_loss(options_, value, targets.old_value(t), targets.to_come(t));
    found.back().values[0] += 1;
    found.back().values[1] += loss.value;
    found.back().values[2] += loss.clipped;
  });
  return found;
}

Metrics PpoValue::metrics(std::span<const SampleFacts> facts, const LossCounts&) const {
  std::array<double, 3> sums{};
  for (const SampleFacts& fact : facts) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += fact.values[i];
  }
  return {{"loss/value_avg", sums[1] / sums[0]}, {"val/clipfrac_avg", sums[2] / sums[0]}};
}

}  // namespace nibble
