// The losses of score heads against scalar twins in f64, written from their formulas, and finite differences of these.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "nibble/core/base/error.h"
#include "nibble/core/models/decoder_config.h"
#include "nibble/core/objectives/classification.h"
#include "nibble/core/objectives/reward.h"

namespace nibble {
namespace {

using testing::HasSubstr;

double log_sigmoid(double x) { return -std::log1p(std::exp(-x)); }

/// Documents of two tokens each, in pairs where `pairs`; values: of each.
Batch batch_of(const std::vector<std::vector<float>>& values, bool pairs, MemoryPool& pool) {
  std::vector<Sample> samples;
  for (size_t d = 0; d < values.size(); ++d) {
    samples.push_back({.ids = {1, 2}, .labels = {1, 2}, .index = d, .group = pairs ? static_cast<int64_t>(d / 2) : -1});
    samples.back().values = values[d];
  }
  return make_batch(samples, pool);
}

/// The objective's loss is the twin's, and its weights are minus the twin's differences.
void expect_loss(const Objective& objective, const Batch& batch, const std::vector<float>& scores,
                 const std::function<double(const std::vector<double>&)>& twin) {
  LabelLogProbs seen;
  seen.scores = scores;
  std::vector<float> weights(scores.size());
  const double sum = objective.loss_sum(batch, seen, objective.counts(batch), weights);
  const std::vector<double> at(scores.begin(), scores.end());
  EXPECT_NEAR(sum, twin(at), 1e-6);
  for (size_t i = 0; i < scores.size(); ++i) {
    constexpr double kStep = 1e-5;
    std::vector<double> up = at, down = at;
    up[i] += kStep;
    down[i] -= kStep;
    EXPECT_NEAR(static_cast<double>(-weights[i]), (twin(up) - twin(down)) / (2 * kStep), 1e-5) << i;
  }
}

TEST(Reward, IsBradleyAndTerryWithMarginsAndCentering) {
  MemoryPool pool;
  const Batch batch = batch_of({{0.5F}, {}, {}, {}}, true, pool);
  ObjectiveOptions options{.type = ObjectiveType::reward};
  options.center_rewards_coefficient = 0.1;
  expect_loss(Reward(options), batch, {1.5F, -0.25F, 0.5F, 2}, [](const std::vector<double>& r) {
    return -log_sigmoid(r[0] - r[1] - 0.5) - log_sigmoid(r[2] - r[3]) +
           0.1 * (std::pow(r[0] + r[1], 2) + std::pow(r[2] + r[3], 2));
  });
  EXPECT_EQ(Reward(options).counts(batch).divisor, 2);
}

TEST(Reward, ReportsItsMetricsByTrlsNames) {
  MemoryPool pool;
  const Reward reward(ObjectiveOptions{.type = ObjectiveType::reward});
  const Batch batch = batch_of({{}, {}, {}, {}}, true, pool);
  const std::vector<float> scores = {3, 1, -2, 0};
  LabelLogProbs seen;
  seen.scores = scores;
  const Metrics expected = {
      {"min_reward", -2}, {"mean_reward", 0.5}, {"max_reward", 3}, {"accuracy", 0.5}, {"margin", 0}};
  EXPECT_EQ(reward.metrics(reward.facts(batch, seen), {}), expected);
}

TEST(Classification, HasTransformersThreeLosses) {
  MemoryPool pool;
  const Classification automatic(ObjectiveOptions{.type = ObjectiveType::classification});
  expect_loss(automatic, batch_of({{2}, {0}}, false, pool), {1, 2, 0.5F, -1, 0, 3}, [](const std::vector<double>& z) {
    const auto nll = [&](size_t row, size_t label) {
      return std::log(std::exp(z[row]) + std::exp(z[row + 1]) + std::exp(z[row + 2])) - z[row + label];
    };
    return nll(0, 2) + nll(3, 0);
  });
  expect_loss(automatic, batch_of({{1.5F}, {-1}}, false, pool), {0.5F, 2},
              [](const std::vector<double>& z) { return std::pow(z[0] - 1.5, 2) + std::pow(z[1] + 1, 2); });
  expect_loss(automatic, batch_of({{1, 0, 1}}, false, pool), {0.5F, 2, -3}, [](const std::vector<double>& z) {
    return -(log_sigmoid(z[0]) + log_sigmoid(-z[1]) + log_sigmoid(z[2])) / 3;
  });
  ObjectiveOptions numbers{.type = ObjectiveType::classification};
  numbers.problem_type = ProblemType::regression;
  expect_loss(Classification(numbers), batch_of({{1, 4}}, false, pool), {0.5F, 2},
              [](const std::vector<double>& z) { return (std::pow(z[0] - 1, 2) + std::pow(z[1] - 4, 2)) / 2; });
}

TEST(Classification, RefusesLabelsThatTheHeadHasNoRowFor) {
  const auto mistake = [](ProblemType type, int64_t labels, std::vector<float> values) {
    return label_mistake(type, labels, values);
  };
  using enum ProblemType;
  EXPECT_EQ(mistake(automatic, 3, {2}), "");
  EXPECT_THAT(mistake(automatic, 3, {3}), HasSubstr("from 0 to 2"));
  EXPECT_THAT(mistake(automatic, 3, {-1}), HasSubstr("from 0 to 2"));
  EXPECT_THAT(mistake(automatic, 3, {0.5F}), HasSubstr("whole number"));
  EXPECT_EQ(mistake(automatic, 3, {1, 0, 1}), "");
  EXPECT_THAT(mistake(automatic, 3, {1, 0}), HasSubstr("3 labels"));
  EXPECT_THAT(mistake(automatic, 3, {1, 0, 2}), HasSubstr("from 0 to 1"));
  EXPECT_EQ(mistake(automatic, 1, {-7.5F}), "");
  EXPECT_THAT(mistake(automatic, 1, {1, 2}), HasSubstr("one number"));
  EXPECT_THAT(mistake(automatic, 1, {NAN}), HasSubstr("finite"));
  EXPECT_THAT(mistake(single_label, 3, {1, 0, 1}), HasSubstr("one whole number"));
}

TEST(ScoredRows, AreLastTokensOrTransformersLastThatAreNoPadding) {
  MemoryPool pool;
  std::vector<Sample> samples;
  for (const std::vector<int32_t>& ids : {std::vector<int32_t>{5, 0, 6}, {5, 6, 0, 0}, {0, 0}}) {
    samples.push_back({.ids = ids, .labels = ids, .index = samples.size()});
    samples.back().values = {0};
  }
  const Batch batch = make_batch(samples, pool);
  ObjectiveOptions options{.type = ObjectiveType::classification};
  EXPECT_EQ(Classification(options).score_rows(batch), (std::vector<int32_t>{2, 6, 8}));
  options.score_at = ScoreAt::last_non_pad;
  DecoderConfig config;
  EXPECT_THROW(with_score_head(options, config), UsageError) << "there is no pad_token_id";
  config.pad_id = 0;
  const Classification as_transformers(with_score_head(options, config));
  EXPECT_EQ(as_transformers.score_rows(batch), (std::vector<int32_t>{2, 4, 7}));
}

TEST(ScoreHead, TakesTheProblemTypeOfTheModelUnlessTheRecipeSaysAnother) {
  DecoderConfig config;
  config.problem_type = "regression";
  ObjectiveOptions options{.type = ObjectiveType::classification};
  EXPECT_EQ(with_score_head(options, config).problem_type, ProblemType::regression);
  options.problem_type = ProblemType::multi_label;
  EXPECT_EQ(with_score_head(options, config).problem_type, ProblemType::multi_label);
}

}  // namespace
}  // namespace nibble
