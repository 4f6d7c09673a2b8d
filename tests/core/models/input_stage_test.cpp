#include "nibble/core/models/input_stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/models/batch.h"
#include "nibble/core/models/decoder_config.h"

namespace nibble {
namespace {

constexpr int64_t kWidth = 96;

/// NEFTune's noise of samples, by sample: what the embedding of a table of zeros gives.
class Noise {
 public:
  uint64_t seed = 3, step = 7;
  double alpha = 5;
  bool training = true;
  float scale = 1;

  std::vector<std::vector<float>> of(const std::vector<std::pair<uint64_t, size_t>>& index_and_length) const {
    std::vector<Sample> samples;
    for (const auto& [index, length] : index_and_length) {
      samples.push_back({.ids = std::vector<int32_t>(length, 2), .labels = {}, .index = index});
    }
    LocalRank local(1, seed);
    RankContext& rank = local.context();
    const Batch batch = make_batch(samples, rank.pool);
    auto table = std::make_shared<Parameter>();
    table->value = Tensor::zeros(rank.pool, {4, kWidth}, DType::f32);
    InputStage input{.embedding = Embedding("embed", table)};
    input.noise_scale = scale;
    PassState state;
    const StepContext context{.rank = rank,
                              .training = training,
                              .step = step,
                              .row_keys = training ? batch.row_keys : Tensor(),
                              .neftune_noise_alpha = alpha};
    const Tensor x = input.forward(batch.ids, batch.positions, context, nullptr, nullptr, state);
    std::vector<std::vector<float>> noise;
    for (const ops::AttentionSpan& span : batch.spans) {
      const Tensor rows = x.rows(span.q_begin, span.q_end);
      noise.emplace_back(rows.span<const float>().begin(), rows.span<const float>().end());
    }
    return noise;
  }
};

// Five standard deviations are allowed.
TEST(NeftuneNoise, IsUniformWithinAlphaOverTheRootOfTheTextsOwnValues) {
  for (const double alpha : {0.5, 5.0, 15.0}) {
    Noise noise;
    noise.alpha = alpha;
    for (const std::vector<float>& values : noise.of({{0, 40}, {1, 1}, {2, 300}})) {
      const auto count = static_cast<double>(values.size());
      const double most = alpha / std::sqrt(count);
      double sum = 0, squares = 0, smallest = 0, largest = 0;
      for (const float value : values) {
        sum += value;
        squares += double{value} * value;
        smallest = std::min<double>(smallest, value);
        largest = std::max<double>(largest, value);
      }
      EXPECT_LE(largest, most * (1 + 1e-6));
      EXPECT_GE(smallest, -most * (1 + 1e-6));
      EXPECT_GT(largest, most * 0.9);
      EXPECT_LT(smallest, -most * 0.9);
      EXPECT_LT(std::abs(sum / count), 5 * most / std::sqrt(3 * count));
      EXPECT_NEAR(squares / count, most * most / 3, 5 * most * most * std::sqrt(4.0 / 45 / count));
    }
  }
}

TEST(NeftuneNoise, BelongsToSeedStepAndSampleNotToTheBatch) {
  Noise noise;
  const auto packed = noise.of({{8, 5}, {9, 30}, {10, 12}});
  EXPECT_EQ(noise.of({{9, 30}})[0], packed[1]);
  EXPECT_EQ(noise.of({{10, 12}, {9, 30}})[0], packed[2]);
  EXPECT_NE(noise.of({{11, 30}})[0], packed[1]);
  noise.step = 8;
  EXPECT_NE(noise.of({{9, 30}})[0], packed[1]);
  noise.step = 7;
  noise.seed = 4;
  EXPECT_NE(noise.of({{9, 30}})[0], packed[1]);
}

TEST(NeftuneNoise, IsOnlyInTrainingAndOnlyWhereItIsAskedFor) {
  const std::vector<float> none(5 * kWidth, 0.0f);
  Noise evaluation, off;
  evaluation.training = false;
  off.alpha = 0;
  EXPECT_EQ(evaluation.of({{8, 5}})[0], none);
  EXPECT_EQ(off.of({{8, 5}})[0], none);
}

// Transformers' hook is on the embedding module: of some families that multiplies, of others the model does afterwards.
TEST(NeftuneNoise, IsMultipliedWhereTheModelMultipliesWhatTheEmbeddingModuleGives) {
  Noise plain, scaled;
  scaled.scale = 4;
  std::vector<float> wanted = plain.of({{8, 5}})[0];
  for (float& value : wanted) value *= 4;
  EXPECT_EQ(scaled.of({{8, 5}})[0], wanted);
  const std::string sizes = R"("hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 9,
                               "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8)";
  const DecoderConfig granite =
      parse_decoder_config(R"({"model_type": "granite", "embedding_multiplier": 12.0, )" + sizes + "}", "test");
  EXPECT_EQ(granite.embedding_scale, 12);
  EXPECT_TRUE(granite.noise_is_scaled);
  const DecoderConfig gemma = parse_decoder_config(R"({"model_type": "gemma", )" + sizes + "}", "test");
  EXPECT_GT(gemma.embedding_scale, 1);
  EXPECT_FALSE(gemma.noise_is_scaled);
}

}  // namespace
}  // namespace nibble
