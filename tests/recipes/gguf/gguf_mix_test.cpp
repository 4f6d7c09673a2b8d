#include "nibble/recipes/gguf/gguf_mix.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "nibble/core/base/error.h"

namespace nibble {
namespace {

DecoderConfig mix_config(const std::string& model_type, int64_t layers, bool tied = false) {
  return parse_decoder_config(
      R"({"model_type": ")" + model_type + R"(", "vocab_size": 512, "hidden_size": 512, "intermediate_size": 1024,
          "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": )" +
          std::to_string(layers) + R"(, "tie_word_embeddings": )" + (tied ? "true" : "false") + "}",
      "config.json");
}

std::string type(const std::string& mix, const DecoderConfig& of, const std::string& name, int64_t width = 512) {
  return std::string(gguf_type_name(gguf_matrix_type(gguf_mix(mix), of, name, width)));
}

// As llama-quantize writes a Llama of 16 layers: finer in the first two, the last two, and every third one between.
TEST(GgufMix, KeepsMoreBitsOfTheValuesAndTheWayDownWhereLlamaCppDoes) {
  const DecoderConfig llama = mix_config("llama", 16);
  const std::vector<int64_t> finer = {0, 1, 4, 7, 10, 13, 14, 15};
  for (int64_t layer = 0; layer < 16; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    const bool more = std::ranges::find(finer, layer) != finer.end();
    for (const char* name : {"attn_v.weight", "ffn_down.weight"}) {
      EXPECT_EQ(type("q4_k_m", llama, block + name), more ? "Q6_K" : "Q4_K") << block << name;
      EXPECT_EQ(type("q5_k_m", llama, block + name), more ? "Q6_K" : "Q5_K") << block << name;
    }
    for (const char* name : {"attn_q.weight", "attn_k.weight", "attn_output.weight", "ffn_up.weight"}) {
      EXPECT_EQ(type("q4_k_m", llama, block + name), "Q4_K") << block << name;
    }
    EXPECT_EQ(type("q6_k", llama, block + "attn_q.weight"), "Q6_K");
  }
  EXPECT_EQ(type("q4_k_m", llama, "output.weight"), "Q6_K");
  EXPECT_EQ(type("q4_k_m", llama, "token_embd.weight"), "Q4_K");
}

TEST(GgufMix, ATableThatIsAlsoTheHeadIsStoredAsTheHead) {
  EXPECT_EQ(type("q4_k_m", mix_config("llama", 4, true), "token_embd.weight"), "Q6_K");
  EXPECT_EQ(type("q4_0", mix_config("llama", 4, true), "token_embd.weight"), "Q8_0");
  EXPECT_EQ(type("q4_0", mix_config("llama", 4), "token_embd.weight"), "Q4_0");
}

TEST(GgufMix, RowsOfNoMultipleOf256TakeBlocksOf32AndOthersF16) {
  const DecoderConfig llama = mix_config("llama", 16);
  EXPECT_EQ(type("q4_k_m", llama, "blk.3.ffn_up.weight", 288), "Q5_0");
  EXPECT_EQ(type("q5_k_m", llama, "blk.3.ffn_up.weight", 288), "Q5_1");
  EXPECT_EQ(type("q4_k_m", llama, "blk.0.ffn_down.weight", 288), "Q8_0") << "in place of Q6_K";
  EXPECT_EQ(type("q4_k_m", llama, "output.weight", 288), "Q8_0");
  EXPECT_EQ(type("q4_k_m", llama, "blk.3.ffn_up.weight", 40), "F16");
  EXPECT_EQ(type("q8_0", llama, "blk.3.ffn_up.weight", 40), "F16");
}

TEST(GgufMix, ModelsOfTheShapeOfLlama70BGiveTheirValuesABitMore) {
  EXPECT_EQ(type("q4_k_m", mix_config("llama", 80), "blk.12.ffn_down.weight"), "Q6_K");
  EXPECT_EQ(type("q4_k_m", mix_config("llama", 80), "blk.13.attn_v.weight"), "Q5_K");
  EXPECT_EQ(type("q4_k_m", mix_config("llama", 80), "blk.13.ffn_down.weight"), "Q4_K");
}

TEST(GgufMix, AnotherNameIsRefusedWithTheKnownOnes) {
  try {
    gguf_mix("q3_k_s");
    FAIL() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("q4_k_m"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace nibble
