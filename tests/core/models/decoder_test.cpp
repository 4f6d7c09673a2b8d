// What holds for every decoder, shown on random ones.

#include "nibble/core/models/decoder.h"

#include <algorithm>

#include "nibble/core/base/parallel.h"
#include "nibble/core/base/philox.h"
#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using namespace nibble::test;

DecoderConfig small_config(int64_t vocabulary = 97, bool tied = false) {
  return parse_decoder_config(
      R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
          "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3, "vocab_size": )" +
          std::to_string(vocabulary) + R"(, "tie_word_embeddings": )" + (tied ? "true}" : "false}"),
      "test");
}

std::vector<Sample> random_samples(std::initializer_list<size_t> lengths, uint64_t vocabulary) {
  std::vector<Sample> samples;
  for (size_t length : lengths) {
    PhiloxStream random(5, 1, samples.size());
    Sample sample{.ids = {}, .labels = {}, .index = samples.size()};
    for (size_t t = 0; t < length; ++t) {
      sample.ids.push_back(static_cast<int32_t>(random.next_below(vocabulary)));
      sample.labels.push_back(random.next_below(4) == 0 ? kIgnoreLabel : sample.ids.back());
    }
    samples.push_back(sample);
  }
  return samples;
}

void zero_gradients(Decoder& decoder) {
  decoder.visit([](Parameter& parameter) {
    if (parameter.trainable) parameter.gradient.zero();
  });
}

void expect_close(const std::map<std::string, std::vector<float>>& result,
                  const std::map<std::string, std::vector<float>>& wanted, double tolerance) {
  ASSERT_EQ(result.size(), wanted.size());
  for (const auto& [name, gradient] : wanted) {
    EXPECT_LE(distance(result.at(name), gradient), tolerance * norm(gradient)) << name;
  }
}

TEST(Decoder, DocumentsInOneBatchAreAsIfEachWereAlone) {
  Rank rank;
  Decoder decoder = random_decoder(small_config(), 1, rank.context());
  make_trainable(decoder, rank.context());
  const std::vector<Sample> samples = random_samples({17, 1, 30, 5}, 97);
  const Batch together = make_batch(samples, rank.context().pool);
  const std::vector<float> logits = all_logits(decoder, together, rank.step());
  const double loss = decoder.loss_sum_and_gradients(together, rank.step(), 0.01f);
  const auto gradients = gradients_of(decoder);

  zero_gradients(decoder);
  std::vector<float> separate_logits;
  double separate_loss = 0;
  for (const Sample& sample : samples) {
    const Batch alone = make_batch({&sample, 1}, rank.context().pool);
    const std::vector<float> part = all_logits(decoder, alone, rank.step());
    separate_logits.insert(separate_logits.end(), part.begin(), part.end());
    separate_loss += decoder.loss_sum_and_gradients(alone, rank.step(), 0.01f);
  }
  EXPECT_LE(largest_difference(logits, separate_logits), 1e-5);
  EXPECT_NEAR(loss, separate_loss, 1e-5 * loss);
  expect_close(gradients_of(decoder), gradients, 1e-5);
}

TEST(Decoder, OneThreadAndTwoGiveTheSameBits) {
  Rank rank;
  Decoder decoder = random_decoder(small_config(), 2, rank.context());
  make_trainable(decoder, rank.context());
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Batch batch = make_batch(random_samples({40, 60, 33}, 97), rank.context().pool);
    set_threads(1);
    zero_gradients(decoder);
    const double loss = decoder.loss_sum_and_gradients(batch, rank.step(dtype), 0.01f);
    const auto gradients = gradients_of(decoder);
    set_threads(2);
    zero_gradients(decoder);
    EXPECT_EQ(decoder.loss_sum_and_gradients(batch, rank.step(dtype), 0.01f), loss);
    EXPECT_EQ(gradients_of(decoder), gradients);
  }
}

TEST(Decoder, RecomputedLayersGiveTheSameBitsInBf16) {
  Rank rank;
  Decoder decoder = random_decoder(small_config(), 2, rank.context());
  make_trainable(decoder, rank.context());
  const Batch batch = make_batch(random_samples({40, 9}, 97), rank.context().pool);
  const double loss = decoder.loss_sum_and_gradients(batch, rank.step(DType::bf16), 0.01f);
  const auto gradients = gradients_of(decoder);
  zero_gradients(decoder);
  decoder.set_recompute(Recompute::block);
  EXPECT_EQ(decoder.loss_sum_and_gradients(batch, rank.step(DType::bf16), 0.01f), loss);
  EXPECT_EQ(gradients_of(decoder), gradients);
}

TEST(Decoder, RecomputingHoldsLessMemory) {
  Rank rank;
  Decoder decoder = random_decoder(small_config(), 2, rank.context());
  make_trainable(decoder, rank.context());
  const Batch batch = make_batch(random_samples({512}, 97), rank.context().pool);
  const auto peak = [&](Recompute recompute) {
    decoder.set_recompute(recompute);
    rank.context().pool.reset_peak();
    decoder.loss_sum_and_gradients(batch, rank.step(), 0.01f);
    return rank.context().pool.peak() - rank.context().pool.in_use();
  };
  const size_t all = peak(Recompute::none);
  EXPECT_LT(peak(Recompute::block), all * 2 / 3);
}

// One layer kept, two run again; what is kept in memory, and in a file.
TEST(Decoder, EveryWayToKeepActivationsGivesTheSameBits) {
  Rank rank;
  TemporaryDirectory directory;
  Decoder decoder = random_decoder(small_config(), 2, rank.context());
  make_trainable(decoder, rank.context());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Batch batch = make_batch(random_samples({40, 9}, 97), rank.context().pool);
    zero_gradients(decoder);
    const double loss = decoder.loss_sum_and_gradients(batch, rank.step(dtype), 0.01f);
    const auto gradients = gradients_of(decoder);
    SpillFile file(directory.path().string(), 0, rank.context().pool);
    for (const int64_t recomputed : {0, 1, 2, 3}) {
      for (const bool spills : {false, true}) {
        decoder.recompute_below(recomputed);
        decoder.set_spill(spills ? &file : nullptr);
        zero_gradients(decoder);
        const int64_t before = file.written_bytes();
        EXPECT_EQ(decoder.loss_sum_and_gradients(batch, rank.step(dtype), 0.01f), loss);
        EXPECT_EQ(gradients_of(decoder), gradients) << recomputed << " recomputed, spilled: " << spills;
        EXPECT_EQ(file.written_bytes() > before, spills);
        decoder.set_spill(nullptr);
      }
    }
    decoder.recompute_below(0);
  }
}

TEST(Decoder, ActivationsInAFileHoldLessMemory) {
  Rank rank;
  TemporaryDirectory directory;
  const DecoderConfig config = parse_decoder_config(
      R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 12,
          "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3, "vocab_size": 97,
          "tie_word_embeddings": false})",
      "test");
  Decoder decoder = random_decoder(config, 2, rank.context());
  make_trainable(decoder, rank.context());
  const Batch batch = make_batch(random_samples({512}, 97), rank.context().pool);
  SpillFile file(directory.path().string(), 0, rank.context().pool);
  const auto peak = [&](int64_t recomputed, SpillFile* spill) {
    decoder.recompute_below(recomputed);
    decoder.set_spill(spill);
    rank.context().pool.reset_peak();
    decoder.loss_sum_and_gradients(batch, rank.step(), 0.01f);
    decoder.set_spill(nullptr);
    return rank.context().pool.peak() - rank.context().pool.in_use();
  };
  const size_t kept = peak(0, nullptr), recomputed = peak(12, nullptr);
  EXPECT_LT(peak(0, &file), kept * 2 / 5);  // three blocks of twelve
  EXPECT_LT(peak(12, &file), recomputed * 3 / 4);
}

// Vocabulary and text so large that the head works in three chunks.
TEST(Decoder, LossInChunksIsTheSumOverItsLogits) {
  Rank rank;
  const int64_t vocabulary = 70000;
  Decoder decoder = random_decoder(small_config(vocabulary, true), 3, rank.context());
  make_trainable(decoder, rank.context());
  const std::vector<Sample> samples = random_samples({200, 190}, static_cast<uint64_t>(vocabulary));
  const Batch batch = make_batch(samples, rank.context().pool);
  ASSERT_GT(batch.label_tokens, 256);
  double wanted = 0;
  int64_t next_row = 0;
  decoder.logits(batch, rank.step(), [&](int64_t first, const Tensor& chunk) {
    EXPECT_EQ(first, next_row);
    EXPECT_LE(chunk.bytes(), size_t{40} << 20);
    next_row += chunk.dim(0);
    for (int64_t row = 0; row < chunk.dim(0); ++row) {
      const int32_t target = batch.targets.span<const int32_t>()[static_cast<size_t>(first + row)];
      if (target == kIgnoreLabel) continue;
      double sum = 0;
      const float* logits = chunk.data<const float>() + row * vocabulary;
      for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(static_cast<double>(logits[v]));
      wanted += std::log(sum) - static_cast<double>(logits[target]);
    }
  });
  EXPECT_EQ(next_row, 390);
  EXPECT_NEAR(decoder.loss_sum(batch, rank.step()), wanted, 1e-6 * wanted);

  EXPECT_NEAR(decoder.loss_sum_and_gradients(batch, rank.step(), 0.01f), wanted, 1e-6 * wanted);
  const auto gradients = gradients_of(decoder);
  zero_gradients(decoder);
  for (const Sample& sample : samples) {
    decoder.loss_sum_and_gradients(make_batch({&sample, 1}, rank.context().pool), rank.step(), 0.01f);
  }
  expect_close(gradients_of(decoder), gradients, 1e-5);
}

TEST(Decoder, ABatchWithoutLabelsHasNoLossAndNoGradient) {
  Rank rank;
  Decoder decoder = random_decoder(small_config(), 1, rank.context());
  make_trainable(decoder, rank.context());
  std::vector<Sample> samples = random_samples({8}, 97);
  samples[0].labels.assign(8, kIgnoreLabel);
  EXPECT_EQ(decoder.loss_sum_and_gradients(make_batch(samples, rank.context().pool), rank.step(), 1), 0);
  for (const auto& [name, gradient] : gradients_of(decoder)) EXPECT_EQ(norm(gradient), 0) << name;
}

// Gradients of what is trained do not depend on what else is: the pass below the lowest trained layer is cut.
TEST(Decoder, TrainingAPartGivesThePartsGradients) {
  Rank rank;
  Decoder whole = random_decoder(small_config(), 4, rank.context());
  make_trainable(whole, rank.context());
  const Batch batch = make_batch(random_samples({20, 13}, 97), rank.context().pool);
  const double loss = whole.loss_sum_and_gradients(batch, rank.step(), 0.1f);
  const auto gradients = gradients_of(whole);
  for (const std::string part : {"model.layers.1.self_attn.v_proj.weight", "model.layers.1.mlp.down_proj.weight",
                                 "model.layers.2.self_attn.o_proj.weight", "model.layers.0.input_layernorm.weight",
                                 "model.layers.1.post_attention_layernorm.weight", "model.norm.weight",
                                 "lm_head.weight", "model.embed_tokens.weight"}) {
    Decoder partly = random_decoder(small_config(), 4, rank.context());
    partly.visit([&](Parameter& parameter) {
      if (parameter.name == part) parameter.make_trainable(rank.context().pool);
    });
    EXPECT_EQ(partly.loss_sum_and_gradients(batch, rank.step(), 0.1f), loss);
    EXPECT_EQ(gradients_of(partly).at(part), gradients.at(part)) << part;
  }
}

TEST(Decoder, VisitorsNameEveryParameterAndLinearOnce) {
  Rank rank;
  Decoder decoder = random_decoder(small_config(97, true), 1, rank.context());
  std::map<std::string, int> names;
  decoder.visit([&](Parameter& parameter) { ++names[parameter.name]; });
  EXPECT_EQ(names.size(), 2u + 3 * 9);
  for (const auto& [name, count] : names) EXPECT_EQ(count, 1) << name;
  std::vector<std::string> linears;
  decoder.visit_linears([&](Linear& linear) { linears.push_back(linear.name()); });
  ASSERT_EQ(linears.size(), 3u * 7 + 1);
  EXPECT_EQ(linears[0], "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(linears.back(), "lm_head");
  EXPECT_EQ(state_dict(decoder).size(), names.size());
}

TEST(Decoder, HooksComeAroundEveryLayerInOrder) {
  struct Recorder : BlockHooks {
    void before_forward(int64_t l) override { text += "f" + std::to_string(l); }
    void after_forward(int64_t) override { text += ";"; }
    void before_backward(int64_t l) override { text += "b" + std::to_string(l); }
    void after_backward(int64_t) override { text += "."; }
    std::string text;
  } recorder;
  Rank rank;
  Decoder decoder = random_decoder(small_config(), 1, rank.context());
  make_trainable(decoder, rank.context());
  decoder.set_hooks(&recorder);
  decoder.loss_sum_and_gradients(make_batch(random_samples({5}, 97), rank.context().pool), rank.step(), 1);
  EXPECT_EQ(recorder.text, "f-1;f0;f1;f2;b3.b2.b1.b0.b-1.");
}

TEST(Decoder, IdsAndLabelsOutsideTheVocabularyAreRefused) {
  Rank rank;
  Decoder decoder = random_decoder(small_config(), 1, rank.context());
  const Sample bad_id{.ids = {1, 97}, .labels = {}}, bad_label{.ids = {1, 2}, .labels = {1, 97}};
  EXPECT_THROW(decoder.loss_sum(make_batch({&bad_id, 1}, rank.context().pool), rank.step()), InputError);
  EXPECT_THROW(decoder.loss_sum(make_batch({&bad_label, 1}, rank.context().pool), rank.step()), InputError);
}

}  // namespace
}  // namespace nibble
