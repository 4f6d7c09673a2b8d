#include "nibble/core/models/head_loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "nibble/tests/core/models/golden.h"

namespace nibble {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// 32 MiB are 170 rows of 49,152 logits, which would leave two rows of 512 for a pass over the whole weight.
TEST(HeadChunkRows, AreNearlyAsManyEachTime) {
  EXPECT_EQ(head_chunk_rows(512, 49152, 576, false), 171);
  EXPECT_EQ(head_chunk_rows(2048, 32000, 2048, false), 256);
  EXPECT_EQ(head_chunk_rows(1024, 151936, 896, false), 128);
  EXPECT_EQ(head_chunk_rows(2048, 262144, 1152, true), 512);
}

TEST(HeadChunkRows, AreAllOfAFewAndAtLeastOne) {
  EXPECT_EQ(head_chunk_rows(100, 49152, 576, false), 100);
  EXPECT_EQ(head_chunk_rows(1, 49152, 576, false), 1);
  EXPECT_EQ(head_chunk_rows(0, 49152, 576, false), 1);
}

TEST(HeadChunkRows, TakeAtMostAnEighthMore) {
  for (int64_t rows = 1; rows < 3000; ++rows) {
    const int64_t chunk = head_chunk_rows(rows, 32000, 2048, false);
    EXPECT_LE(chunk * 32000 * 4, 36 * kMiB) << rows;
    const int64_t last = rows - (rows - 1) / chunk * chunk;
    EXPECT_GE(2 * last, std::min(rows, chunk)) << rows;
  }
}

TEST(HeadChunks, AreAsManyAtOnceAsThreadsHaveAMiBEach) {
  EXPECT_EQ(head_chunks_at_once(256, 32000, 2), 1);
  EXPECT_EQ(head_chunks_at_once(256, 32000, 32), 1);
  EXPECT_EQ(head_chunks_at_once(256, 32000, 64), 2);
  EXPECT_EQ(head_chunks_at_once(256, 32000, 128), 4);
  EXPECT_EQ(head_chunks_at_once(128, 262144, 64), 1);
}

// 599 labels of 70,000 words are five chunks; with 128 threads four of them are computed together.
TEST(HeadChunks, OfManyThreadsGiveTheSameBits) {
  const DecoderConfig config = parse_decoder_config(R"({"model_type": "qwen3", "hidden_size": 32,
      "intermediate_size": 48, "vocab_size": 70000, "num_hidden_layers": 1, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.2, "tie_word_embeddings": false})",
                                                    "test");
  Sample sample;
  for (int t = 0; t < 600; ++t) sample.ids.push_back((11 * t * t + 3) % 70000);
  sample.labels = sample.ids;
  struct Result {
    double loss;
    std::map<std::string, std::vector<float>> gradients;
    size_t peak;
  };
  for (const bool head_trains : {false, true}) {
    const auto run = [&](int threads, DType dtype) {
      test::Rank rank;
      MemoryPool& pool = rank.context().pool;
      Decoder model = random_decoder(config, 1, rank.context());
      model.visit([&](Parameter& parameter) {
        if (parameter.name == "model.layers.0.mlp.up_proj.weight" ||
            (head_trains && parameter.name == "model.norm.weight"))
          parameter.make_trainable(pool);
      });
      const Batch batch = make_batch({&sample, 1}, pool);
      rank.context().threads = threads;
      Result result;
      result.loss = model.loss_sum_and_gradients(batch, rank.step(dtype), 0.01f);
      result.gradients = test::gradients_of(model);
      result.peak = pool.peak();
      return result;
    };
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Result few = run(2, dtype), many = run(128, dtype);
      EXPECT_EQ(many.loss, few.loss);
      EXPECT_EQ(many.gradients, few.gradients);
      EXPECT_GT(test::norm(few.gradients.at("model.layers.0.mlp.up_proj.weight")), 0);
      // Logits of 480 rows, not 120, with their gradient, unless a parameter's gradient is a sum over rows.
      const double more = head_trains ? 0 : 360 * 70000 * (dtype == DType::bf16 ? 6 : 4);
      EXPECT_NEAR(static_cast<double>(many.peak), static_cast<double>(few.peak) + more, 1e6);
    }
  }
}

}  // namespace
}  // namespace nibble
