#include "nibble/recipes/import_gguf.h"

#include <gmock/gmock.h>

#include <cstring>
#include <fstream>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/checkpoint_dir.h"
#include "nibble/core/models/decoder_config.h"
#include "nibble/recipes/export_gguf.h"
#include "nibble/recipes/init_model.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

void expect_same_weights(const std::filesystem::path& got, const std::filesystem::path& want) {
  const CheckpointDir a(got), b(want);
  ASSERT_EQ(a.names(), b.names());
  for (const std::string& name : b.names()) {
    const Tensor x = a.at(name), y = b.at(name);
    ASSERT_EQ(x.shape(), y.shape()) << name;
    ASSERT_EQ(x.dtype(), y.dtype()) << name;
    EXPECT_EQ(std::memcmp(x.raw(), y.raw(), y.bytes()), 0) << name;
  }
}

class ImportGguf : public ::testing::Test {
 protected:
  std::filesystem::path made(const std::string& config) {
    std::ofstream(directory_ / "config.json") << config;
    InitRequest request;
    request.config = (directory_ / "config.json").string();
    request.out = (directory_ / "model").string();
    request.dtype = "f32";
    init_model(request);
    return request.out;
  }
  std::filesystem::path exported(const std::filesystem::path& model) {
    GgufRequest request;
    request.model = model.string();
    request.out = (directory_ / "model.gguf").string();
    request.type = GgufType::f32;
    request.tokenizer = false;
    export_gguf(request, rank_.context());
    return request.out;
  }
  std::filesystem::path imported(const std::filesystem::path& file) {
    ImportRequest request;
    request.file = file.string();
    request.out = (directory_ / "imported").string();
    import_gguf(request, rank_.context());
    return request.out;
  }

  LocalRank rank_;
  test::TemporaryDirectory directory_;
};

TEST_F(ImportGguf, AFileOfLlamaCppHasTheWeightsOfTheModelItWasMadeFrom) {
  NIBBLE_ASSET_OR_SKIP(gguf, "stories260K-gguf");
  NIBBLE_ASSET_OR_SKIP(model, "stories260K-hf");
  const auto directory = imported(gguf / "stories260K-f32.gguf");
  EXPECT_TRUE(std::filesystem::exists(directory / "tokenizer.model"));
  const CheckpointDir got(directory), want(model);
  for (const char* name : {"model.layers.3.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
                           "model.layers.4.mlp.down_proj.weight", "model.norm.weight", "model.embed_tokens.weight"}) {
    ASSERT_EQ(got.at(name).shape(), want.at(name).shape());
    EXPECT_EQ(std::memcmp(got.at(name).raw(), want.at(name).raw(), want.at(name).bytes()), 0) << name;
  }
}

TEST_F(ImportGguf, WhatWasExportedComesBack) {
  const auto model = made(R"({"model_type": "llama", "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2,
      "num_attention_heads": 3, "num_key_value_heads": 1, "vocab_size": 23, "rope_theta": 500000.0,
      "max_position_embeddings": 512, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 64}})");
  const auto back = imported(exported(model));
  expect_same_weights(back, model);
  const DecoderConfig config = read_decoder_config(back);
  EXPECT_EQ(config.rope.at(0).original_max_positions, 64);
  EXPECT_EQ(config.max_positions, 512);
  EXPECT_FALSE(config.tied_head);
}

TEST_F(ImportGguf, QueryNormsAndBiasesAreThere) {
  expect_same_weights(imported(exported(made(
                          R"({"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "vocab_size": 23,
      "tie_word_embeddings": true})"))),
                      directory_ / "model");
}

TEST_F(ImportGguf, AnotherArchitectureIsNamedWithTheKnownOnes) {
  const auto file = exported(made(R"({"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2,
      "vocab_size": 23, "n_positions": 16})"));
  try {
    imported(file);
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("architecture \"gpt2\""));
    EXPECT_THAT(error.what(), HasSubstr("known are llama, qwen2, qwen3"));
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ / "imported"));
}

TEST_F(ImportGguf, AFileInThePlaceOfADirectorySaysHowToMakeOne) {
  NIBBLE_ASSET_OR_SKIP(gguf, "stories260K-gguf");
  try {
    read_decoder_config(gguf / "stories260K-f32.gguf");
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("nibble import"));
  }
}

}  // namespace
}  // namespace nibble
