#include "nibble/core/nn/feed_forward/experts.h"

#include "nibble/adapters/attach.h"
#include "nibble/tests/core/nn/feed_forward/expert_kinds.h"

namespace nibble {
namespace {

using namespace nibble::test;

// Where every expert is chosen: a choice that changes within a difference is a jump of the loss. (What the chosen ones
// weigh is checked kind by kind beside the op, the clamp beside its own.)
TEST(Experts, GradientsAreFiniteDifferences) {
  for (DecoderConfig config : all_kinds()) {
    ops::Routing& routing = config.experts->routing;
    routing.k = config.experts->experts;
    routing.top_groups = routing.groups;
    if (config.experts->clamp > 0) config.experts->clamp = 100;
    expect_gradients_are_finite_differences(config);
  }
}
TEST(Experts, WhatTheyKeepMayBeComputedAgainOrLieInAFile) {
  for (const DecoderConfig& config : all_kinds()) expect_same_bits_however_kept(config);
}
TEST(Experts, ContinueCachedSequences) {
  for (const DecoderConfig& config : all_kinds()) expect_cached_text(config);
}
TEST(Experts, RunOnEveryDevice) {
  for (const DecoderConfig& config : all_kinds()) expect_same_on_devices(config);
}
TEST(Experts, TrainShardAndPipeline) { expect_trains_shards_and_pipelines(mixtral()); }

TEST(Experts, SameBitsForAnyThreads) {
  for (const DecoderConfig& config : all_kinds()) {
    const auto gradients = [&](int count) {
      Rank rank;
      set_threads(count);
      Decoder decoder = random_decoder(config, 1, rank.context());
      make_trainable(decoder, rank.context());
      decoder.loss_sum_and_gradients(documents(0, rank.context().pool), rank.step(), 1);
      return gradients_of(decoder);
    };
    const auto one = gradients(1);
    EXPECT_TRUE(gradients(2) == one);
    EXPECT_TRUE(gradients(3) == one);
    set_threads(1);
  }
}

TEST(Experts, AnExpertThatNoTokenChoosesHasNoGradient) {
  Rank rank;
  DecoderConfig config = mixtral();
  config.experts->routing = {.k = 1};
  Decoder decoder = random_decoder(config, 1, rank.context());
  make_trainable(decoder, rank.context());
  const Sample one{.ids = {3, 5}, .labels = {3, 5}};
  decoder.loss_sum_and_gradients(make_batch({&one, 1}, rank.context().pool), rank.step(), 1);
  int moved = 0, still = 0;
  decoder.visit([&](Parameter& parameter) {
    if (!parameter.name.starts_with("model.layers.3.mlp.experts.")) return;
    (ops::sum_of_squares(parameter.gradient) > 0 ? moved : still) += 1;
  });
  EXPECT_GE(moved, 3);
  EXPECT_GE(still, 9);
}

TEST(Experts, ABufferIsSavedAndNeverTrained) {
  Rank rank;
  DecoderConfig config = mixtral();
  config.names.block.experts.correction = "mlp.gate.correction_bias";
  Decoder decoder = random_decoder(config, 1, rank.context());
  make_trainable(decoder, rank.context());
  int found = 0;
  decoder.visit([&](Parameter& parameter) {
    if (!parameter.name.ends_with("correction_bias")) return;
    ++found;
    EXPECT_FALSE(parameter.trainable);
    EXPECT_EQ(ops::sum_of_squares(parameter.value), 0);
  });
  EXPECT_EQ(found, 2);
}

/// The losses of steps of `count` microbatches with the balance in them, on the ranks of `shape`.
TEST(RouterBalance, IsTheSameHoweverAStepIsCut) {
  DecoderConfig config = mixtral();
  config.router_aux_loss_coef = 0.5f;
  const Trained one = train(config, {}), shards = train(config, {.shard = 2}), copies = train(config, {.replicate = 2}),
                stages = train(config, {.pipeline = 2});
  EXPECT_EQ(shards.losses, one.losses);
  EXPECT_TRUE(shards.weights == one.weights);
  EXPECT_EQ(copies.losses, one.losses);
  EXPECT_TRUE(copies.weights == one.weights);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(stages.losses[i], one.losses[i], 1e-5);
  DecoderConfig without = config;
  without.router_aux_loss_coef = 0;
  EXPECT_GT(one.losses[0], train(without, {}).losses[0] + 0.9) << "k = 2 times the coefficient where all is balanced";
}

// Four microbatches are one step: the same loss as of all their documents in one.
TEST(RouterBalance, CountsTheWholeStep) {
  DecoderConfig config = mixtral();
  config.router_aux_loss_coef = 0.5f;
  Rank rank;
  MemoryPool& pool = rank.context().pool;
  const auto step = [&](std::vector<Batch> batches) {
    Decoder decoder = random_decoder(config, 1, rank.context());
    make_trainable(decoder, rank.context());
    Optimizer optimizer(trainable_parameters(decoder), {}, pool);
    const double loss = train_step(decoder, batches, optimizer, {.lr = 0}, rank.context()).loss;
    return std::pair(loss, gradients_of(decoder));
  };
  std::vector<Sample> samples;
  std::vector<Batch> apart;
  for (const int32_t first : {1, 7, 20}) {
    Sample sample{.ids = {}, .labels = {}};
    for (int32_t t = 0; t < 6 + first % 5; ++t) sample.ids.push_back((first + 3 * t) % 40);
    sample.labels = sample.ids;
    samples.push_back(sample);
    apart.push_back(make_batch({&sample, 1}, pool));
  }
  const auto [loss, gradients] = step({make_batch(samples, pool)});
  const auto [loss_apart, gradients_apart] = step(apart);
  EXPECT_NEAR(loss_apart, loss, 1e-6);
  for (const auto& [name, wanted] : gradients) {
    EXPECT_LE(distance(gradients_apart.at(name), wanted), 1e-5 * norm(wanted) + 1e-6) << name;
  }
}

// As Transformers counts: the k best logits, whatever a correction makes of the choice.
TEST(RouterBalance, LeavesTheCorrectionAside) {
  Rank rank;
  MemoryPool& pool = rank.context().pool;
  const auto make = [&](const std::string&, const Shape& shape) {
    auto parameter = std::make_unique<Parameter>();
    parameter->value = Tensor::zeros(pool, shape, DType::f32);
    return parameter;
  };
  Makers makers;
  makers.parameter = make;
  Router router("router", "router", "correction", 2, 3, false, {.k = 1, .score = ops::RouterScore::sigmoid}, makers);
  router.visit([&](Parameter& parameter) {
    const std::vector<float> rows = {1, 0, 0, 1, 0, 0}, correction = {0, 0, 9};
    const bool weight = parameter.value.numel() == 6;
    parameter.value = Tensor::from<float>(pool, parameter.value.shape(), weight ? rows : correction);
  });
  RouterBalance balance(3, 1);
  StepContext step = rank.step();
  step.balance = &balance;
  const Routed routed = router.forward(Tensor::from<float>(pool, {2, 2}, std::vector<float>{1, 0, 0, 1}), step, false);
  EXPECT_EQ(routed.chosen.data<const int32_t>()[0], 2);
  EXPECT_EQ(balance.counts[0], 1);
  EXPECT_EQ(balance.counts[1], 1);
  EXPECT_EQ(balance.counts[2], 0);
}

TEST(RouterBalance, OfABalancedRouterIsK) {
  RouterBalance balance(4, 1);
  balance.counts = {
      20, 20, 20, 20, 10 * ops::kBalanceUnit, 10 * ops::kBalanceUnit, 10 * ops::kBalanceUnit, 10 * ops::kBalanceUnit,
      40};
  EXPECT_DOUBLE_EQ(balance.loss(), 2);
}

}  // namespace
}  // namespace nibble
