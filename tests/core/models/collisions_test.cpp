// What a loss may ask of the head beside log-probabilities.

#include <gtest/gtest.h>

#include <cmath>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/models/load.h"
#include "nibble/tests/core/models/golden.h"

namespace nibble {
namespace {

constexpr const char* kPlain = R"({"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 48, "vocab_size": 97,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.2,
    "tie_word_embeddings": false})";
constexpr const char* kCapped = R"({"model_type": "gemma2", "hidden_size": 32, "intermediate_size": 48,
    "vocab_size": 97, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "initializer_range": 0.2, "final_logit_softcapping": 1.5})";

TEST(Collisions, AreTheLogarithmOfTheSumOfSquaredProbabilities) {
  for (const char* config : {kPlain, kCapped}) {
    LocalRank local(1);
    RankContext& rank = local.context();
    Decoder model = random_decoder(parse_decoder_config(config, "test"), 1, rank);
    Sample sample;
    for (int t = 0; t < 9; ++t) sample.ids.push_back((11 * t * t + 3) % 97);
    sample.labels = sample.ids;
    sample.labels[4] = kIgnoreLabel;
    const Batch batch = make_batch({&sample, 1}, rank.pool);
    const std::vector<float> logits = test::all_logits(model, batch, {.rank = rank, .row_keys = {}});
    TokenLoss loss = [&](const Tensor& output, Tensor& weights) {
      EXPECT_EQ(output.shape(), (Shape{2, 9}));
      EXPECT_EQ(weights.numel(), 9);
      for (size_t t = 0; t < 8; ++t) {
        const float* row = logits.data() + 97 * t;
        double sum = 0, squares = 0;
        for (int v = 0; v < 97; ++v) sum += std::exp(static_cast<double>(row[v]));
        for (int v = 0; v < 97; ++v) squares += std::pow(std::exp(static_cast<double>(row[v])) / sum, 2);
        const bool label = sample.labels[t + 1] != kIgnoreLabel;
        const double log_prob = static_cast<double>(row[sample.ids[t + 1]]) - std::log(sum);
        EXPECT_NEAR(static_cast<double>(output.data<const float>()[t]), label ? log_prob : 0, 1e-5);
        EXPECT_NEAR(static_cast<double>(output.data<const float>()[9 + t]), label ? std::log(squares) : 0, 1e-5);
      }
      return 0.0;
    };
    loss.wants_collisions = true;
    model.loss_sum(batch, {.rank = rank, .row_keys = {}}, loss);
  }
}

}  // namespace
}  // namespace nibble
