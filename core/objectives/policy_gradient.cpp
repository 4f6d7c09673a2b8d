#include "nibble/core/objectives/policy_gradient.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "nibble/core/objectives/answers.h"

namespace nibble {

namespace {

double upper(const ObjectiveOptions& options) { return options.epsilon_high.value_or(options.epsilon); }

ClippedLoss clipped(const ObjectiveOptions& options, double ratio, double advantage) {
  return clipped_loss(ratio, advantage, 1 - options.epsilon, 1 + upper(options),
                      options.delta.value_or(std::numeric_limits<double>::infinity()));
}

void count_clipped(const ObjectiveOptions& options, double ratio, double advantage, AnswerLoss& loss) {
  if (options.loss_type.front() == "cispo") {
    loss.clipped_high += ratio > upper(options) && advantage > 0;
    return;
  }
  const double bounded = std::min(ratio, options.delta.value_or(ratio));
  loss.clipped_low += bounded < 1 - options.epsilon && advantage < 0;
  loss.clipped_high += bounded > 1 + upper(options) && advantage > 0;
}

double log_ratio(const AnswerLogProbs& answer) {
  return std::accumulate(answer.policy.begin(), answer.policy.end(), 0.0) -
         std::accumulate(answer.old.begin(), answer.old.end(), 0.0);
}

// One ratio of the whole answer's probabilities.
AnswerLoss rloo_loss(const ObjectiveOptions& options, const AnswerLogProbs& answer, double advantage) {
  AnswerLoss loss;
  const double ratio = std::exp(log_ratio(answer));
  const ClippedLoss surrogate = clipped(options, ratio, advantage);
  loss.value = surrogate.value;
  loss.by_token.assign(answer.policy.size(), surrogate.derivative * ratio);
  count_clipped(options, ratio, advantage, loss);
  return loss;
}

AnswerLoss grpo_loss(const ObjectiveOptions& options, const AnswerLogProbs& answer, double advantage) {
  const size_t tokens = answer.policy.size();
  const auto count = static_cast<double>(tokens);
  const bool sequence = options.importance_sampling_level == ImportanceSampling::sequence;
  const bool cispo = options.loss_type.front() == "cispo", corrected = options.use_bias_correction_kl;
  const double of_answer = sequence ? std::exp(log_ratio(answer) / count) : 0;

  AnswerLoss loss;
  loss.by_token.resize(tokens);
  double answer_derivative = 0;  // by the ratio that all tokens share
  for (size_t t = 0; t < tokens; ++t) {
    const double log_prob = answer.policy[t];
    const double ratio = sequence ? of_answer : std::exp(log_prob - answer.old[t]);
    ClippedLoss surrogate;
    if (cispo) {  // the ratio is a weight, without a gradient
      const double weight = std::min(ratio, upper(options)) * advantage;
      surrogate.value = -weight * log_prob;
      loss.by_token[t] = -weight;
    } else {
      surrogate = clipped(options, ratio, advantage);
    }
    if (!answer.reference.empty()) {
      const double q = answer.reference[t] - log_prob;
      const double kl = std::expm1(q) - q, weight = corrected ? ratio : 1;
      loss.kl += weight * kl;
      surrogate.value += options.beta * weight * kl;
      if (corrected) surrogate.derivative += options.beta * kl;
      loss.by_token[t] -= options.beta * weight * std::expm1(q);
    }
    loss.value += surrogate.value;
    if (sequence) {
      answer_derivative += surrogate.derivative;
    } else {
      loss.by_token[t] += surrogate.derivative * ratio;
      count_clipped(options, ratio, advantage, loss);
    }
  }
  if (sequence) {
    for (double& derivative : loss.by_token) derivative += answer_derivative * of_answer / count;
    count_clipped(options, of_answer, advantage, loss);
  }
  if (options.loss_type.front() == "grpo") {
    loss.value /= count;
    for (double& derivative : loss.by_token) derivative /= count;
  }
  return loss;
}

double value_of(const Batch& batch, size_t document, AnswerValue which) {
  const std::vector<float>& values = batch.values[document];
  NIBBLE_CHECK(values.size() > static_cast<size_t>(which), "an answer with an advantage");
  return static_cast<double>(values[static_cast<size_t>(which)]);
}

bool is_masked(const Batch& batch, size_t document) { return value_of(batch, document, AnswerValue::masked) != 0; }

}  // namespace

ClippedLoss clipped_loss(double ratio, double advantage, double low, double high, double most) {
  const double bounded = std::min(ratio, most), clamped = std::clamp(ratio, low, high);
  if (bounded * advantage <= clamped * advantage) {
    return {-bounded * advantage, bounded == ratio ? -advantage : 0, false};
  }
  return {-clamped * advantage, clamped == ratio ? -advantage : 0, true};
}

AnswerLoss policy_gradient_loss(const ObjectiveOptions& options, const AnswerLogProbs& answer, double advantage) {
  return options.type == ObjectiveType::rloo ? rloo_loss(options, answer, advantage)
                                             : grpo_loss(options, answer, advantage);
}

PolicyGradient::PolicyGradient(ObjectiveOptions options) : options_(std::move(options)) {
  if (options_.loss_type.empty()) options_.loss_type = {options_.type == ObjectiveType::rloo ? "rloo" : "dapo"};
}

bool PolicyGradient::counts_tokens() const {
  const std::string& type = options_.loss_type.front();
  return type == "bnpo" || type == "dapo" || type == "cispo";
}

LossCounts PolicyGradient::counts(const Batch& batch) const {
  LossCounts counts;
  for (size_t d = 0; d < batch.spans.size(); ++d) {
    if (counts_tokens()) {
      counts.divisor += is_masked(batch, d) ? 0 : answer_tokens(batch, d);
    } else {
      counts.divisor +=
          options_.loss_type.front() == "dr_grpo" ? static_cast<double>(options_.rollout.max_new_tokens) : 1;
    }
  }
  return counts;
}

AnswerLoss PolicyGradient::loss_of(const Batch& batch, const LabelLogProbs& log_probs, size_t document) const {
  AnswerLogProbs answer;
  const bool compares = options_.type == ObjectiveType::grpo && !log_probs.reference.empty();
  each_answer_row(batch, document, [&](size_t row, int64_t) {
    answer.policy.push_back(static_cast<double>(log_probs.policy[row]));
    answer.old.push_back(batch.old ? static_cast<double>(batch.old.data<const float>()[row]) : answer.policy.back());
    if (compares) answer.reference.push_back(static_cast<double>(log_probs.reference[row]));
  });
  return policy_gradient_loss(options_, answer, value_of(batch, document, AnswerValue::advantage));
}

double PolicyGradient::loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts&,
                                std::span<float> weights) const {
  double sum = 0;
  for (size_t d = 0; d < batch.spans.size(); ++d) {
    if (is_masked(batch, d)) {  // of rloo's ratio, which is of the sum over no tokens, 1 is left
      if (options_.type == ObjectiveType::rloo) sum -= value_of(batch, d, AnswerValue::advantage);
      continue;
    }
    const AnswerLoss loss = loss_of(batch, log_probs, d);
    sum += loss.value;
    each_answer_row(batch, d, [&](size_t row, int64_t k) {
      weights[row] = static_cast<float>(-loss.by_token[static_cast<size_t>(k)]);
    });
  }
  return sum;
}

std::vector<SampleFacts> PolicyGradient::facts(const Batch& batch, const LabelLogProbs& log_probs) const {
  const bool of_tokens =
      options_.type == ObjectiveType::grpo && options_.importance_sampling_level == ImportanceSampling::token;
  std::vector<SampleFacts> found;
  for (size_t d = 0; d < batch.spans.size(); ++d) {
    SampleFacts& fact = found.emplace_back(SampleFacts{sample_number(batch, d), {}});
    if (!of_tokens) fact.values[4] = 1;
    if (is_masked(batch, d)) continue;
    const AnswerLoss loss = loss_of(batch, log_probs, d);
    const double tokens = answer_tokens(batch, d);
    fact.values = {tokens,
                   loss.kl,
                   loss.clipped_low,
                   loss.clipped_high,
                   of_tokens ? tokens : 1,
                   answer_sum(batch, d, log_probs.statistics.entropies)};
  }
  return found;
}

Metrics PolicyGradient::metrics(std::span<const SampleFacts> facts, const LossCounts&) const {
  std::array<double, 6> sums{};
  double low_min = std::numeric_limits<double>::quiet_NaN(), high_max = low_min;  // over answers
  for (const SampleFacts& fact : facts) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += fact.values[i];
    low_min = std::fmin(low_min, fact.values[2] / fact.values[4]);
    high_max = std::fmax(high_max, fact.values[3] / fact.values[4]);
  }
  // Where no answer carries a loss, the means are 0.
  for (const size_t counted : {size_t{0}, size_t{4}}) sums[counted] = std::max(sums[counted], 1.0);
  const auto [tokens, kl, low, high, ratios, entropy] = sums;
  Metrics found;
  if (options_.type == ObjectiveType::grpo && options_.beta != 0) found.emplace_back("kl", kl / tokens);
  found.emplace_back("entropy", entropy / tokens);
  if (options_.loss_type.front() == "cispo") {
    found.emplace_back("cispo_clip_ratio", high / ratios);
    return found;
  }
  found.emplace_back("clip_ratio/low_mean", low / ratios);
  found.emplace_back("clip_ratio/low_min", low_min);
  found.emplace_back("clip_ratio/high_mean", high / ratios);
  found.emplace_back("clip_ratio/high_max", high_max);
  found.emplace_back("clip_ratio/region_mean", (low + high) / ratios);
  return found;
}

}  // namespace nibble
