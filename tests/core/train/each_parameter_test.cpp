#include "nibble/core/train/each_parameter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>

#include "nibble/core/base/parallel.h"
#include "nibble/core/base/parallel_observer.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/models/load.h"
#include "nibble/core/ops/meta/meta_device.h"
#include "nibble/core/train/train_step.h"
#include "nibble/tests/core/base/workers.h"

namespace nibble {
namespace {

TEST(EachParameter, IsVisitedOnceWhateverTheirSizes) {
  MemoryPool pool;
  std::vector<Parameter> all;
  for (int i = 0; i < 40; ++i) {
    all.push_back({"p" + std::to_string(i), Tensor::empty(pool, {i % 9 == 0 ? 200000 : i + 1}, DType::f32), {}});
  }
  std::vector<Parameter*> parameters;
  for (Parameter& parameter : all) parameters.push_back(&parameter);
  for (const int count : {1, 4, 100}) {
    const test::Workers workers(count);
    std::vector<int> seen(all.size()), whole(all.size());
    for_each_parameter(parameters, [&](size_t i) {
      ++seen[i];
      whole[i] = in_parallel();
    });
    EXPECT_EQ(seen, std::vector<int>(all.size(), 1)) << count;
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(whole[i], count == 4 && i % 9 != 0) << count;  // 100: too few
  }
}

TEST(EachParameter, OfADeviceWithoutBytesIsVisitedByOneThread) {  // which counts what it is asked for
  const MetaDevice device;
  MemoryPool pool(0, device);
  std::vector<Parameter> all(40);
  std::vector<Parameter*> parameters;
  for (Parameter& parameter : all) {
    parameter.value = Tensor::empty(pool, {8}, DType::f32);
    parameters.push_back(&parameter);
  }
  const test::Workers workers(4);
  for_each_parameter(parameters, [](size_t) { EXPECT_FALSE(in_parallel()); });
}

struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> weights;
  bool operator==(const Trained&) const = default;
};

Trained train(int as_workers, int64_t* sections) {
  LocalRank rank(1);
  RankContext& context = rank.context();
  Decoder decoder = random_decoder(
      parse_decoder_config(R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "vocab_size": 97,
                               "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 2})",
                           "test"),
      1, context);
  make_trainable(decoder, context);
  Optimizer optimizer(trainable_parameters(decoder), {}, context.pool);
  Sample sample;
  for (int32_t t = 0; t < 600; ++t) sample.ids.push_back(7 * t % 97);
  sample.labels = sample.ids;
  const Batch batch = make_batch({&sample, 1}, context.pool);
  std::optional<test::Workers> workers;
  if (as_workers > 0) workers.emplace(as_workers);
  Trained trained;
  for (int64_t step = 1; step <= 2; ++step) {
    const StepResult result =
        train_step(decoder, {&batch, 1}, optimizer, {.step = step, .lr = 0.01, .max_grad_norm = 1}, context);
    trained.losses.push_back(result.loss);
    trained.norms.push_back(result.grad_norm);
  }
  for (const Parameter* parameter : optimizer.parameters()) {
    const std::span<const float> values = parameter->value.span<const float>();
    trained.weights.emplace_back(values.begin(), values.end());
  }
  if (workers) *sections = workers->sections;
  return trained;
}

TEST(EachParameter, StepsHaveTheSameBitsWhileTheyAreObservedForAnyNumberOfThreads) {
  const Trained plain = train(0, nullptr);
  for (const int count : {1, 3, 48}) {
    int64_t sections = 0;
    EXPECT_TRUE(train(count, &sections) == plain) << count;
    EXPECT_GT(sections, 200) << count;
  }
}

}  // namespace
}  // namespace nibble
