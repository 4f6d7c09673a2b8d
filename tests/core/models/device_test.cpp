// Steps on devices whose elements the host cannot read, and on one that has none.

#include <gtest/gtest.h>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/models/load.h"
#include "nibble/core/ops/meta/meta_device.h"
#include "nibble/core/train/train_step.h"
#include "nibble/tests/core/ops/refusing_device.h"

namespace nibble {
namespace {

const std::vector<std::string> kConfigs = {
    R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 97,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": false})",
    R"({"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 97,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": true})",
    R"({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 97})",
    R"({"model_type": "gpt_neox", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 97})",
    R"({"model_type": "bloom", "hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 97})"};

Batch some_batch(MemoryPool& pool) {
  std::vector<Sample> samples;
  for (const size_t length : {17, 30, 5}) {
    Sample sample{.ids = {}, .labels = {}, .index = samples.size()};
    for (size_t t = 0; t < length; ++t) sample.ids.push_back(static_cast<int32_t>((7 * t + length) % 97));
    sample.labels = sample.ids;
    samples.push_back(sample);
  }
  return make_batch(samples, pool);
}

struct Trained {
  StepResult result;
  std::vector<std::vector<float>> weights;
};

/// Two steps on `device`.
Trained train_on(const Device& device, const std::string& config, DType compute_dtype, OptimizerKind kind) {
  MemoryPool pool(0, device);
  LocalRank local(2);
  RankContext rank{local.context().comm, pool, 2, 3};
  Decoder decoder = random_decoder(parse_decoder_config(config, "test"), 1, rank);
  make_trainable(decoder, rank);
  Optimizer optimizer(trainable_parameters(decoder), {.kind = kind}, pool);
  const std::vector<Batch> batches = {some_batch(pool), some_batch(pool)};
  StepOptions options;
  options.lr = 0.01;
  options.max_grad_norm = 1;
  options.neftune_noise_alpha = 5;
  options.compute_dtype = compute_dtype;
  Trained trained;
  for (options.step = 1; options.step <= 2; ++options.step) {
    trained.result = train_step(decoder, batches, optimizer, options, rank);
  }
  if (!device.has_bytes()) return trained;
  for (const Parameter* parameter : optimizer.parameters()) {
    const Tensor value = parameter->value.to(pool.host());
    trained.weights.emplace_back(value.span<const float>().begin(), value.span<const float>().end());
  }
  return trained;
}

TEST(Devices, AStepWhereTheHostReadsNothingHasTheSameBits) {
  for (const std::string& config : kConfigs) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::adamw8bit, OptimizerKind::sgd}) {
        const test::RefusingDevice device;
        const Trained here = train_on(cpu_device(), config, dtype, kind);
        const Trained there = train_on(device, config, dtype, kind);
        EXPECT_EQ(here.result.loss, there.result.loss);
        EXPECT_EQ(here.result.grad_norm, there.result.grad_norm);
        EXPECT_TRUE(here.weights == there.weights) << config;
      }
    }
  }
}

TEST(Devices, TheHostIsRefusedElements) {
  const test::RefusingDevice device;
  MemoryPool pool(0, device);
  const Tensor x = Tensor::zeros(pool, {3}, DType::f32);
  EXPECT_THROW((void)x.data<const float>(), std::logic_error);
  EXPECT_THROW((void)x.raw(), std::logic_error);
  EXPECT_EQ(x.to(pool.host()).data<const float>()[2], 0);
}

TEST(Devices, AMetaStepCountsTheMemoryOfTheRealOne) {
  for (const std::string& config : kConfigs) {
    const auto peak = [&](const Device& device) {
      MemoryPool pool(0, device);
      LocalRank local(2);
      RankContext rank{local.context().comm, pool, 2, 3};
      Decoder decoder = random_decoder(parse_decoder_config(config, "test"), 1, rank);
      make_trainable(decoder, rank);
      decoder.loss_sum_and_gradients(some_batch(pool), {.rank = rank, .row_keys = {}}, 1);
      return pool.peak();
    };
    const MetaDevice device;
    EXPECT_EQ(peak(device), peak(cpu_device())) << config;
  }
}

TEST(Devices, MetaCountsTheOperationsOfProductsAndAttention) {
  const MetaDevice device;
  MemoryPool pool(0, device);
  const Tensor a = Tensor::empty(pool, {5, 7}, DType::bf16), w = Tensor::empty(pool, {11, 7}, DType::bf16);
  Tensor c = Tensor::empty(pool, {5, 11}, DType::f32);
  ops::matmul_nt(a, w, c);
  const MetaDevice::Work& product = device.work(ops::Operation::matmul_nt);
  EXPECT_EQ(product.calls, 1);
  EXPECT_EQ(product.flops, 2 * 5 * 7 * 11);
  EXPECT_EQ(product.bytes, 2 * 35 + 2 * 77 + 4 * 55);
  const Tensor q = Tensor::empty(pool, {4, 16}, DType::f32), k = Tensor::empty(pool, {4, 8}, DType::f32);
  Tensor out = Tensor::empty(pool, {4, 16}, DType::f32), sums = Tensor::empty(pool, {2, 4}, DType::f32);
  const ops::AttentionSpan span{0, 4, 0, 4};
  ops::attention_forward(q, k, k, {&span, 1}, {.heads = 2, .head_size = 8, .alibi_slopes = {}}, out, sums);
  EXPECT_EQ(device.work(ops::Operation::attention_forward).flops, 2 * 2 * 10 * 16);  // 1 + 2 + 3 + 4 pairs
  EXPECT_THROW(ops::matmul_nt(a, c, c), std::logic_error);
}

}  // namespace
}  // namespace nibble
