// What a loss may ask of the head beside log-probabilities.

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(TokenStatistics, AreThoseOfTheProbabilitiesOfAllTokens) {
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
    // One label is what the model would say.
    const std::span<const float> third(logits.data() + 2 * 97, 97);
    const auto top = static_cast<int32_t>(std::ranges::max_element(third) - third.begin());
    Batch labelled = batch;
    labelled.targets.data<int32_t>()[2] = sample.labels[3] = top;
    int most_probable = 0;
    TokenLoss loss = [&](const Tensor& output, Tensor& weights) {
      EXPECT_EQ(output.shape(), (Shape{5, 9}));
      EXPECT_EQ(weights.numel(), 9);
      for (size_t t = 0; t < 8; ++t) {
        const float* row = logits.data() + 97 * t;
        double sum = 0, squares = 0, entropy = 0, logits_sum = 0;
        for (int v = 0; v < 97; ++v) sum += std::exp(static_cast<double>(row[v]) / 1.5);
        for (int v = 0; v < 97; ++v) {
          const double p = std::exp(static_cast<double>(row[v]) / 1.5) / sum;
          squares += p * p;
          entropy -= p * std::log(p);
          logits_sum += static_cast<double>(row[v]) / 1.5;
        }
        const bool label = sample.labels[t + 1] != kIgnoreLabel;
        const int32_t target = label ? sample.labels[t + 1] : 0;
        const double log_prob = static_cast<double>(row[target]) / 1.5 - std::log(sum);
        const bool first = std::max_element(row, row + 97) - row == target;
        const double wanted[] = {log_prob, std::log(squares), entropy, logits_sum / 97, first ? 1.0 : 0.0};
        for (size_t i = 0; i < 5; ++i) {
          EXPECT_NEAR(static_cast<double>(output.data<const float>()[9 * i + t]), label ? wanted[i] : 0, 1e-5) << i;
        }
        most_probable += label && first;
      }
      return 0.0;
    };
    loss.wants_statistics = true;
    loss.temperature = 1.5;
    model.loss_sum(labelled, {.rank = rank, .row_keys = {}}, loss);
    EXPECT_GE(most_probable, 1);
  }
}

// Vocabulary and text so large that the head works in chunks; some labels weigh nothing.
TEST(TokenStatistics, WeightsThatAreKnownBeforeGiveTheSameInOnePass) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    LocalRank local(1);
    RankContext& rank = local.context();
    DecoderConfig config = parse_decoder_config(kCapped, "test");
    config.vocab_size = 70000;
    Decoder model = random_decoder(config, 1, rank);
    model.visit([&](Parameter& parameter) { parameter.make_trainable(rank.pool); });
    Sample sample;
    for (int t = 0; t < 300; ++t) sample.ids.push_back((11 * t * t + 3) % 70000);
    sample.labels = sample.ids;
    const Batch batch = make_batch({&sample, 1}, rank.pool);
    const auto weigh = [](Tensor& weights) {
      for (int64_t t = 0; t < 299; ++t) weights.data<float>()[t] = static_cast<float>(t % 3) * 0.7f - 0.7f;
    };
    struct Result {
      double loss;
      std::vector<float> seen;
      std::map<std::string, std::vector<float>> gradients;
    };
    const auto run = [&](bool before) {
      Result result;
      TokenLoss loss = [&](const Tensor& output, Tensor& weights) {
        result.seen.assign(output.span<const float>().begin(), output.span<const float>().end());
        EXPECT_EQ(std::ranges::count(weights.span<const float>(), 0.0f), 300);
        weigh(weights);
        return 2.5;
      };
      loss.wants_statistics = true;
      loss.temperature = 1.5;
      if (before) loss.weigh = weigh;
      model.visit([](Parameter& parameter) { parameter.gradient.zero(); });
      result.loss =
          model.loss_sum_and_gradients(batch, {.rank = rank, .compute_dtype = dtype, .row_keys = {}}, 0.01f, loss);
      result.gradients = test::gradients_of(model);
      return result;
    };
    const Result two = run(false), one = run(true);
    EXPECT_EQ(one.loss, 2.5);
    EXPECT_EQ(one.seen, two.seen);
    ASSERT_EQ(one.gradients.size(), two.gradients.size());
    for (const auto& [name, gradient] : two.gradients) {
      EXPECT_GT(test::norm(gradient), 0) << name;
      EXPECT_EQ(one.gradients.at(name), gradient) << name;
    }
  }
}

}  // namespace
}  // namespace nibble
