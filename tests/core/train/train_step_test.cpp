#include "nibble/core/train/train_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nibble/core/base/error.h"
#include "nibble/tests/core/train/toy.h"

namespace nibble {
namespace {

using test::toy_batch;
using test::ToyExecutor;
using test::ToyModel;
using test::ToyRank;
using test::values;

struct Outcome {
  StepResult result;
  std::vector<float> w, gradient;
};

Outcome one_step(const std::vector<std::pair<std::vector<int32_t>, size_t>>& documents, StepOptions options) {
  ToyRank rank;
  ToyModel model(rank.pool);
  Optimizer optimizer(model.parameters(), {}, rank.pool);
  std::vector<Batch> batches;
  for (const auto& [ids, unlabelled] : documents) batches.push_back(toy_batch(ids, unlabelled, rank.pool));
  Outcome outcome;
  ToyExecutor executor(model, rank.context);
  outcome.result = train_step(executor, batches, NextToken(), optimizer, options);
  outcome.w = values(model.w->value);
  outcome.gradient = values(model.w->gradient);
  return outcome;
}

StepOptions options_with(GradientSum sum) {
  StepOptions options;
  options.lr = 0.01;
  options.gradient_sum = sum;
  return options;
}

TEST(TrainStep, ABeginningThatAnswersShareIsComputedOnce) {
  ToyRank rank;
  ToyModel model(rank.pool);
  Optimizer optimizer(model.parameters(), {}, rank.pool);
  std::vector<Sample> samples(2);
  for (size_t i = 0; i < 2; ++i) {
    for (int32_t t = 0; t < 20; ++t) samples[i].ids.push_back(t < 17 ? 1 + t % 6 : 2 + static_cast<int32_t>(i));
    samples[i].labels = samples[i].ids;
    std::fill_n(samples[i].labels.begin(), 17, kIgnoreLabel);
    samples[i].group = 3;
  }
  ToyExecutor executor(model, rank.context);
  for (const bool share : {false, true}) {
    const std::vector<Batch> batches = {make_batch(samples, rank.pool, share)};
    const StepResult result = train_step(executor, batches, NextToken(), optimizer, options_with(GradientSum::tree));
    EXPECT_EQ(result.tokens, 40);
    EXPECT_EQ(result.computed_tokens, share ? 24 : 40) << "each answer has the token that predicts its first";
  }
}

TEST(TrainStep, MicrobatchesOfUnequalSizeAreWhatOneBatchIs) {
  const std::vector<int32_t> a = {5, 1, 2, 3}, b = {9, 8, 7, 1, 1, 4, 2}, c = {3, 3};
  for (const GradientSum sum : {GradientSum::tree, GradientSum::running}) {
    ToyRank rank;
    ToyModel model(rank.pool);
    Optimizer optimizer(model.parameters(), {}, rank.pool);
    std::vector<Sample> samples(3);
    const std::vector<std::vector<int32_t>> ids = {a, b, c};
    for (size_t i = 0; i < 3; ++i) {
      samples[i].ids = samples[i].labels = ids[i];
      samples[i].labels[0] = kIgnoreLabel;
    }
    const std::vector<Batch> one = {make_batch(samples, rank.pool)};
    ToyExecutor executor(model, rank.context);
    const StepResult whole = train_step(executor, one, NextToken(), optimizer, options_with(sum));
    const Outcome parts = one_step({{a, 0}, {b, 0}, {c, 0}}, options_with(sum));
    EXPECT_EQ(parts.result.label_tokens, whole.label_tokens);
    EXPECT_EQ(parts.result.label_tokens, 10);
    EXPECT_EQ(parts.result.tokens, 13);
    EXPECT_NEAR(parts.result.loss, whole.loss, 1e-12);
    EXPECT_NEAR(parts.result.grad_norm, whole.grad_norm, 1e-6);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(parts.w[i], values(model.w->value)[i], 1e-6);
  }
}

TEST(TrainStep, LossAndGradientAreMeansOverLabelTokens) {
  // Position t predicts label t + 1, so ids 2 and 3 have labels and the last token has none.
  const Outcome got = one_step({{{2, 3, 4}, 0}}, options_with(GradientSum::tree));
  const double w2 = 0.25 + 1.5625 + 9, b2 = 0.0625 + 4;
  EXPECT_EQ(got.result.label_tokens, 2);
  EXPECT_NEAR(got.result.loss, (w2 / 5 + b2 * 2 / 7 + w2 / 10 + b2 * 3 / 7) / 2, 1e-9);
  EXPECT_NEAR(got.gradient[2], 2 * 3 * (1 / 5.0 + 1 / 10.0) / 2, 1e-6);
}

TEST(TrainStep, ClipsAsTorchDoes) {
  StepOptions options = options_with(GradientSum::tree);
  const Outcome free = one_step({{{2, 3, 4}, 0}}, options);
  ToyRank rank;
  ToyModel model(rank.pool);
  OptimizerOptions sgd;
  sgd.kind = OptimizerKind::sgd;
  Optimizer optimizer(model.parameters(), sgd, rank.pool);
  options.max_grad_norm = free.result.grad_norm / 4;
  options.lr = 1;
  const std::vector<Batch> batches = {toy_batch({2, 3, 4}, 0, rank.pool)};
  ToyExecutor executor(model, rank.context);
  const StepResult clipped = train_step(executor, batches, NextToken(), optimizer, options);
  EXPECT_EQ(clipped.grad_norm, free.result.grad_norm) << "reported before clipping";
  const double scale = options.max_grad_norm / (clipped.grad_norm + 1e-6);
  EXPECT_NEAR(values(model.w->value)[2], 3.0 - scale * free.gradient[2], 1e-6);
}

TEST(TrainStep, TreeOfHalvesIsTheSumOfItsHalves) {
  // What one rank gets over eight microbatches is, bit for bit, the sum of what two ranks get over four each.
  ToyRank rank;
  ToyModel model(rank.pool);
  std::vector<Batch> batches;
  for (int32_t i = 0; i < 8; ++i) batches.push_back(toy_batch({i, 2 * i + 1, 3, i % 3}, 0, rank.pool));
  const auto sum_of = [&](int64_t begin, int64_t end, GradientSum kind) {
    sum_gradients(
        kind, model.parameters(), end - begin,
        [&](int64_t i) { return model.loss_sum_and_gradients(batches[static_cast<size_t>(begin + i)], 1 / 24.0f); },
        rank.pool);
    return values(model.w->gradient);
  };
  const std::vector<float> all = sum_of(0, 8, GradientSum::tree);
  const std::vector<float> left = sum_of(0, 4, GradientSum::tree), right = sum_of(4, 8, GradientSum::tree);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], left[i] + right[i]);
  const std::vector<float> running = sum_of(0, 8, GradientSum::running);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(running[i], all[i], 1e-6);
  for (const GradientSum kind : {GradientSum::tree, GradientSum::running}) {
    EXPECT_EQ(sum_of(0, 0, kind), std::vector<float>(all.size(), 0)) << "of no microbatches, whatever was there before";
    sum_of(0, 1, kind);
  }
}

TEST(TrainStep, StepWithoutLabelsChangesNothing) {
  const Outcome got = one_step({{{2, 3}, 1}, {{4, 5, 6}, 2}}, options_with(GradientSum::tree));
  EXPECT_FALSE(got.result.updated);
  EXPECT_EQ(got.w, (std::vector<float>{0.5f, -1.25f, 3.0f}));
}

TEST(TrainStep, NonfiniteGradientNamesItsTensorAndChangesNothing) {
  ToyRank rank;
  ToyModel model(rank.pool);
  Optimizer optimizer(model.parameters(), {}, rank.pool);
  const std::vector<Batch> batches = {toy_batch({2, 3, 4}, 0, rank.pool)};
  StepOptions options = options_with(GradientSum::tree);
  options.step = 7;
  ToyExecutor executor(model, rank.context);
  const auto step = [&] { return train_step(executor, batches, NextToken(), optimizer, options); };
  executor.after = [&](double loss) {
    model.b->gradient.data<float>()[1] = std::numeric_limits<float>::infinity();
    return loss;
  };
  const StepResult result = step();
  EXPECT_FALSE(result.updated);
  EXPECT_EQ(result.nonfinite, (std::vector<std::string>{"gradient of b, element 1 of 2, is inf"}));
  EXPECT_EQ(values(model.w->value), (std::vector<float>{0.5f, -1.25f, 3.0f}));
  EXPECT_EQ(optimizer.updates(), 0);
  executor.after = [](double) { return -std::numeric_limits<double>::quiet_NaN(); };
  EXPECT_EQ(step().nonfinite, (std::vector<std::string>{"loss is nan"}));
  executor.after = {};
  model.w->value.data<float>()[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(step().nonfinite.front(), "w, element 2 of 3, is nan");
  EXPECT_EQ(optimizer.updates(), 0);
}

}  // namespace
}  // namespace nibble
