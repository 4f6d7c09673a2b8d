// The losses of answers with rewards against scalar twins in f64 written from TRL's formulas, and against finite
// differences of these; advantages and metrics against numbers by hand.

#include "nibble/core/objectives/policy_gradient.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "nibble/core/objectives/advantages.h"

namespace nibble {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

ObjectiveOptions policy_options(const std::string& loss_type) {
  ObjectiveOptions options;
  options.type = loss_type == "rloo" ? ObjectiveType::rloo : ObjectiveType::grpo;
  options.loss_type = {loss_type};
  options.beta = 0;
  return options;
}

/// TRL's per-token loss, summed; for grpo its mean. weights: the ratios of cispo, through which nothing flows, where
/// they are held.
double twin(const ObjectiveOptions& o, const AnswerLogProbs& answer, double advantage,
            const AnswerLogProbs* held = nullptr) {
  const size_t n = answer.policy.size();
  const double high = o.epsilon_high.value_or(o.epsilon);
  const auto clip = [&](double w) {
    const double first = (o.delta ? std::min(w, *o.delta) : w) * advantage;
    return -std::min(first, std::clamp(w, 1 - o.epsilon, 1 + high) * advantage);
  };
  const auto ratio = [&](const AnswerLogProbs& of, size_t t) {
    double sum = 0;
    if (o.importance_sampling_level == ImportanceSampling::token) return std::exp(of.policy[t] - of.old[t]);
    for (size_t i = 0; i < n; ++i) sum += of.policy[i] - of.old[i];
    return std::exp(sum / static_cast<double>(n));
  };
  if (o.type == ObjectiveType::rloo) {
    double sum = 0;
    for (size_t t = 0; t < n; ++t) sum += answer.policy[t] - answer.old[t];
    return clip(std::exp(sum));
  }
  double loss = 0;
  for (size_t t = 0; t < n; ++t) {
    const double w = ratio(answer, t);
    loss += o.loss_type[0] == "cispo" ? -std::min(ratio(held ? *held : answer, t), high) * advantage * answer.policy[t]
                                      : clip(w);
    if (answer.reference.empty()) continue;
    const double q = answer.reference[t] - answer.policy[t];
    loss += o.beta * (std::exp(q) - q - 1) * (o.use_bias_correction_kl ? w : 1);
  }
  return o.loss_type[0] == "grpo" ? loss / static_cast<double>(n) : loss;
}

const AnswerLogProbs kAnswer = {{-1.2, -0.4, -2.5, -3.1}, {-1.25, -0.9, -2.1, -3.0}, {}};
const std::vector<double> kReference = {-1.0, -0.8, -2.6, -2.2};

void expect_like_twin(const ObjectiveOptions& options) {
  AnswerLogProbs answer = kAnswer;
  if (options.beta != 0) answer.reference = kReference;
  for (const double advantage : {1.3, -0.7, 0.0}) {
    const AnswerLoss loss = policy_gradient_loss(options, answer, advantage);
    EXPECT_NEAR(loss.value, twin(options, answer, advantage), 1e-12);
    ASSERT_EQ(loss.by_token.size(), answer.policy.size());
    for (size_t t = 0; t < answer.policy.size(); ++t) {
      constexpr double kStep = 1e-6;
      AnswerLogProbs more = answer, less = answer;
      more.policy[t] += kStep;
      less.policy[t] -= kStep;
      const double numerical =
          (twin(options, more, advantage, &answer) - twin(options, less, advantage, &answer)) / (2 * kStep);
      EXPECT_NEAR(loss.by_token[t], numerical, 1e-7) << options.loss_type[0] << " token " << t << ", A " << advantage;
    }
  }
}

TEST(PolicyGradient, LossesAndDerivativesAreTrls) {
  for (const char* type : {"grpo", "bnpo", "dapo", "dr_grpo", "cispo", "rloo"}) {
    for (const double beta : {0.0, 0.04}) {
      for (const auto level : {ImportanceSampling::token, ImportanceSampling::sequence}) {
        ObjectiveOptions options = policy_options(type);
        options.beta = options.type == ObjectiveType::rloo ? 0 : beta;
        options.importance_sampling_level = level;
        expect_like_twin(options);
        options.use_bias_correction_kl = false;
        expect_like_twin(options);
        options.epsilon_high = 0.28;
        options.delta = 1.5;
        expect_like_twin(options);
      }
    }
  }
}

TEST(PolicyGradient, RatiosOfThePolicyItselfAreExactlyOne) {
  AnswerLogProbs answer = kAnswer;
  answer.old = answer.policy;
  for (const char* type : {"dapo", "rloo"}) {
    const AnswerLoss loss = policy_gradient_loss(policy_options(type), answer, 0.75);
    EXPECT_EQ(loss.value, policy_options(type).type == ObjectiveType::rloo ? -0.75 : -3.0);
    for (const double derivative : loss.by_token) EXPECT_EQ(derivative, -0.75);
  }
}

TEST(PolicyGradient, TheWeightsOfItsOwnAnswersDoNotDependOnLogProbabilities) {
  MemoryPool pool;
  std::vector<Sample> samples;
  for (const float advantage : {0.75f, -1.25f, 0.0f}) {
    Sample sample{.ids = {1, 5, 6, 7}, .labels = {kIgnoreLabel, 5, 6, 7}, .index = samples.size()};
    sample.values = {advantage, 0};
    samples.push_back(sample);
  }
  const Batch batch = make_batch(samples, pool);
  std::vector<float> policy, zeros(12);
  for (int i = 0; i < 12; ++i) policy.push_back(-0.37f * static_cast<float>(i % 5) - 0.013f);
  for (const char* type : {"grpo", "bnpo", "dapo", "dr_grpo", "cispo", "rloo"}) {
    for (const auto level : {ImportanceSampling::token, ImportanceSampling::sequence}) {
      ObjectiveOptions options = policy_options(type);
      options.importance_sampling_level = level;
      const PolicyGradient objective(options);
      EXPECT_FALSE(objective.weighs_by_log_probs(batch));
      std::vector<float> before(12), after(12);
      objective.loss_sum(batch, {zeros, {}}, {.divisor = 1}, before);
      objective.loss_sum(batch, {policy, {}}, {.divisor = 1}, after);
      EXPECT_EQ(before, after) << type;
      EXPECT_NE(before, zeros) << type;
    }
  }
  for (Sample& sample : samples) sample.old.assign(4, -1);
  EXPECT_TRUE(PolicyGradient(policy_options("dapo")).weighs_by_log_probs(make_batch(samples, pool)));
  for (Sample& sample : samples) std::swap(sample.old, sample.reference);
  EXPECT_TRUE(PolicyGradient(policy_options("dapo")).weighs_by_log_probs(make_batch(samples, pool)));
}

TEST(PolicyGradient, CountsRatiosThatClippingHolds) {
  const AnswerLoss up = policy_gradient_loss(policy_options("dapo"), kAnswer, 1);
  EXPECT_EQ(up.clipped_high, 1) << "exp(0.5)";
  EXPECT_EQ(up.clipped_low, 0);
  const AnswerLoss down = policy_gradient_loss(policy_options("dapo"), kAnswer, -1);
  EXPECT_EQ(down.clipped_low, 1) << "exp(-0.4)";
  EXPECT_EQ(down.clipped_high, 0);
  ObjectiveOptions bounded = policy_options("dapo");
  bounded.delta = 1.1;
  EXPECT_EQ(policy_gradient_loss(bounded, kAnswer, 1).clipped_high, 0) << "as TRL counts, delta is looked at first";
}

TEST(PolicyGradient, ReportsClippingAndEntropyByTrlsNames) {
  // Answers of 2 and 4 tokens to prompts of one, the first with a ratio too high, the second with two too low.
  MemoryPool pool;
  std::vector<Sample> samples;
  for (const int tokens : {2, 4}) {
    Sample sample{.ids = {1}, .labels = {kIgnoreLabel}, .index = samples.size()};
    for (int t = 0; t < tokens; ++t) {
      sample.ids.push_back(5 + t);
      sample.labels.push_back(5 + t);
    }
    sample.values = {samples.empty() ? 1.0f : -1.0f, 0};
    sample.old.assign(sample.ids.size(), -1);
    samples.push_back(sample);
  }
  Batch batch = make_batch(samples, pool);
  const std::vector<float> policy = {-0.5f, -1, 0, -2, -2, -1, -1, 0}, entropies = {1, 2, 9, 3, 4, 5, 6, 9};
  const LabelLogProbs seen{policy, {}, {.collisions = {}, .entropies = entropies, .mean_logits = {}, .top1 = {}}};
  const auto metrics_of = [&](ObjectiveOptions options) {
    const PolicyGradient objective(options);
    const Metrics found = objective.metrics(objective.facts(batch, seen), {});
    return std::map<std::string, double>(found.begin(), found.end());
  };
  const auto tokens = metrics_of(policy_options("dapo"));
  EXPECT_NEAR(tokens.at("entropy"), 21.0 / 6, 1e-9);
  EXPECT_NEAR(tokens.at("clip_ratio/high_mean"), 1.0 / 6, 1e-9);
  EXPECT_NEAR(tokens.at("clip_ratio/high_max"), 1.0 / 2, 1e-9);
  EXPECT_NEAR(tokens.at("clip_ratio/low_mean"), 2.0 / 6, 1e-9);
  EXPECT_NEAR(tokens.at("clip_ratio/low_min"), 0, 1e-9);
  const auto answers = metrics_of(policy_options("rloo"));
  EXPECT_NEAR(answers.at("entropy"), 21.0 / 6, 1e-9) << "over tokens, though an answer has one ratio";
  EXPECT_NEAR(answers.at("clip_ratio/low_mean"), 1.0 / 2, 1e-9);
  EXPECT_NEAR(answers.at("clip_ratio/high_max"), 1, 1e-9);
  for (std::vector<float>& values : batch.values) values[static_cast<size_t>(AnswerValue::masked)] = 1;
  const auto none = metrics_of(policy_options("dapo"));
  for (const char* name : {"entropy", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"}) {
    EXPECT_EQ(none.at(name), 0) << name << " where no answer carries a loss";
  }
}

TEST(PolicyGradient, AMaskedAnswerOfRlooHasARatioOfOneAndNoGradient) {
  MemoryPool pool;
  Sample sample{.ids = {1, 5, 6}, .labels = {kIgnoreLabel, 5, 6}, .values = {0.75f, 1}};
  sample.old = {0, -1, -1};
  const Batch batch = make_batch(std::vector<Sample>{sample}, pool);
  const std::vector<float> policy = {-0.5f, -0.25f, 0};
  std::vector<float> weights(3);
  EXPECT_EQ(PolicyGradient(policy_options("rloo")).loss_sum(batch, {policy, {}, {}}, {.divisor = 1}, weights), -0.75);
  EXPECT_EQ(weights, std::vector<float>(3));
}

std::vector<ScoredAnswer> scored(const std::vector<double>& rewards) {
  std::vector<ScoredAnswer> answers;
  for (const double reward : rewards) answers.push_back({.reward = reward, .kl = 0, .tokens = 4, .truncated = false});
  return answers;
}

TEST(Advantages, OfAGroupAreDividedByItsDeviation) {
  ObjectiveOptions options = policy_options("dapo");
  options.rollout.completions = 3;
  const auto answers = scored({1, 2, 3, 5, 5, 5});
  const std::vector<double> found = advantages(options, answers);
  EXPECT_NEAR(found[0], -1 / 1.0001, 1e-12);
  EXPECT_NEAR(found[2], 1 / 1.0001, 1e-12);
  EXPECT_EQ(found[4], 0) << "nothing to learn from";
  options.scale_rewards = ScaleRewards::none;
  EXPECT_EQ(advantages(options, answers)[2], 1);
  options.scale_rewards = ScaleRewards::batch;
  EXPECT_NEAR(advantages(options, answers)[2], 1 / (std::sqrt(15.5 / 5) + 1e-4), 1e-12);
}

TEST(Advantages, LeaveOneOutAndClipAndCountTheKl) {
  ObjectiveOptions options = policy_options("rloo");
  options.beta = 0.5;
  options.rollout.completions = 2;
  options.reward_clip_range = {-1.0, 2.0};
  std::vector<ScoredAnswer> answers = scored({7, 0});
  answers[1].kl = 1;
  const std::vector<double> found = advantages(options, answers);
  EXPECT_DOUBLE_EQ(found[0], 2.5);
  EXPECT_DOUBLE_EQ(found[1], -2.5);
}

TEST(Advantages, OfAnswersWithoutARewardAreZeroAndDoNotCount) {
  ObjectiveOptions options = policy_options("dapo");
  options.rollout.completions = 4;
  options.scale_rewards = ScaleRewards::none;
  EXPECT_EQ(advantages(options, scored({1, kNan, 3, kNan})), (std::vector<double>{-1, 0, 1, 0}));
  EXPECT_EQ(advantages(options, scored({1, kNan, kNan, kNan})), (std::vector<double>{0, 0, 0, 0}));
}

TEST(Advantages, MetricsHaveTrlsNames) {
  ObjectiveOptions options = policy_options("dapo");
  options.rollout.completions = 2;
  std::vector<ScoredAnswer> answers = scored({1, 1, 0, 2});
  answers[3].tokens = 9;
  answers[3].truncated = true;
  const Metrics found = answer_metrics(options, answers);
  const auto at = [&](const std::string& name) {
    const auto metric = std::ranges::find(found, name, &Metrics::value_type::first);
    return metric == found.end() ? kNan : metric->second;
  };
  EXPECT_EQ(at("reward"), 1);
  EXPECT_NEAR(at("reward_std"), std::sqrt(2.0 / 3), 1e-12);
  EXPECT_EQ(at("frac_reward_zero_std"), 0.5);
  EXPECT_EQ(at("completions/mean_length"), 5.25);
  EXPECT_EQ(at("completions/max_terminated_length"), 4);
  EXPECT_EQ(at("completions/clipped_ratio"), 0.25);
  options.scale_rewards = ScaleRewards::batch;
  const Metrics together = answer_metrics(options, answers);
  EXPECT_EQ(std::map(together.begin(), together.end()).at("frac_reward_zero_std"), 0) << "the step's rewards differ";
  EXPECT_EQ(level_share(options, answers), 0.5);
}

TEST(Advantages, MetricsOfWhatIsNotThereAreTrls) {
  ObjectiveOptions options = policy_options("dapo");
  options.rollout.completions = 2;
  std::vector<ScoredAnswer> answers = scored({1, kNan, 2, 3});
  for (ScoredAnswer& answer : answers) answer.truncated = true;
  const Metrics found = answer_metrics(options, answers);
  const std::map<std::string, double> named(found.begin(), found.end());
  EXPECT_EQ(named.at("frac_reward_zero_std"), 0) << "one reward has no deviation";
  EXPECT_EQ(level_share(options, answers), 0.5) << "but teaches nothing";
  EXPECT_EQ(named.at("completions/mean_terminated_length"), 0);
  EXPECT_EQ(named.at("completions/clipped_ratio"), 1);
}

TEST(Advantages, TheKlOfRlooIsOverAnswersThatCarryALoss) {
  ObjectiveOptions options = policy_options("rloo");
  options.rollout.completions = 2;
  options.beta = 0.5;
  std::vector<ScoredAnswer> answers = scored({1, 0});
  answers[0].kl = 2;
  answers[1].masked = true;
  const Metrics found = answer_metrics(options, answers);
  EXPECT_EQ(std::map(found.begin(), found.end()).at("kl"), 0.5);
}

}  // namespace
}  // namespace nibble
