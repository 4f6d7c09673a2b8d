#include <cmath>

#include "nibble/core/base/error.h"
#include "nibble/tests/recipes/gguf/import_gguf_fixture.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST_F(ImportGguf, AFileOfLlamaCppHasTheWeightsOfTheModelItWasMadeFrom) {
  const std::filesystem::path gguf = test::data_path("stories-llama-gguf");
  const std::filesystem::path model = test::data_path("stories-llama");
  const auto directory = imported(gguf / "f32.gguf");
  EXPECT_TRUE(std::filesystem::exists(directory / "tokenizer.model"));
  const CheckpointDir got(directory), want(model);
  for (const char* name : {"model.layers.1.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
                           "model.layers.1.mlp.down_proj.weight", "model.norm.weight", "model.embed_tokens.weight"}) {
    ASSERT_EQ(got.at(name).shape(), want.at(name).shape());
    EXPECT_EQ(std::memcmp(got.at(name).raw(), want.at(name).raw(), want.at(name).bytes()), 0) << name;
  }
}

TEST_F(ImportGguf, WhatWasExportedComesBack) {
  const auto model =
      result(R"({"model_type": "llama", "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2,
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
  expect_same_weights(imported(exported(result(
                          R"({"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "vocab_size": 23,
      "tie_word_embeddings": true})"))),
                      directory_ / "model");
}

// One of every architecture that is exported; f32, so that nothing is rounded.
TEST_F(ImportGguf, EveryFamilyThatIsExportedComesBack) {
  const std::string sizes = R"("hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 4,
      "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 23, "max_position_embeddings": 64)";
  const std::string experts = R"(, "num_experts_per_tok": 2, "moe_intermediate_size": 24)";
  const std::string gpt2_sizes = R"("n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 23, "n_positions": 16)";
  const std::string falcon_sizes = R"("hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
      "vocab_size": 23, "alibi": false)";
  const std::vector<std::pair<std::string, std::string>> families = {
      {"llama", sizes + R"(, "attention_bias": true, "mlp_bias": true, "head_dim": 12)"},
      {"qwen2", sizes + R"(, "rope_scaling": {"type": "linear", "factor": 2.0})"},
      {"qwen3", sizes + R"(, "head_dim": 12, "tie_word_embeddings": true)"},
      {"gemma", sizes + R"(, "head_dim": 12)"},
      {"gemma2", sizes + R"(, "head_dim": 12, "query_pre_attn_scalar": 12, "sliding_window": 8)"},
      {"gemma3_text", sizes + R"(, "head_dim": 12, "query_pre_attn_scalar": 12, "sliding_window": 8,
          "sliding_window_pattern": 3, "rope_theta": 50000.0, "rope_local_base_freq": 500.0,
          "rope_scaling": {"rope_type": "linear", "factor": 8.0})"},
      {"phi3", sizes + R"(, "original_max_position_embeddings": 32, "rope_scaling": {"type":
          "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]})"},
      {"phi3", sizes + R"(, "partial_rotary_factor": 0.75, "sliding_window": 8)"},
      {"gpt2", gpt2_sizes},
      {"gpt_neox", sizes + R"(, "rotary_pct": 0.25, "use_parallel_residual": true, "tie_word_embeddings": false)"},
      {"gpt_neox", sizes + R"(, "use_parallel_residual": false, "tie_word_embeddings": true)"},
      {"falcon", falcon_sizes},
      {"falcon", falcon_sizes + R"(, "new_decoder_architecture": true, "num_kv_heads": 2)"},
      {"falcon", falcon_sizes + R"(, "new_decoder_architecture": true, "num_ln_in_parallel_attn": 1)"},
      {"stablelm", sizes + R"(, "use_qkv_bias": true)"},
      {"stablelm", sizes + R"(, "use_parallel_residual": true, "tie_word_embeddings": true)"},
      {"smollm3", sizes},
      {"olmo", sizes + R"(, "clip_qkv": 2.0)"},
      {"olmo2", sizes},
      {"olmo2", sizes + R"(, "tie_word_embeddings": true)"},
      {"granite", sizes + R"(, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.25,
          "logits_scaling": 2.0)"},
      {"starcoder2", sizes},
      {"gpt_bigcode", gpt2_sizes + R"(, "multi_query": true)"},
      {"gpt_bigcode", gpt2_sizes + R"(, "multi_query": false)"},
      {"bloom", R"("hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 23)"},
      {"phi", sizes},
      {"phi", sizes + R"(, "tie_word_embeddings": true)"},
      {"cohere", sizes + R"(, "logit_scale": 0.25)"},
      {"cohere2", sizes + R"(, "logit_scale": 0.25, "sliding_window": 8, "sliding_window_pattern": 3)"},
      {"mixtral", sizes + experts + R"(, "num_local_experts": 4)"},
      {"qwen2_moe", sizes + experts + R"(, "num_experts": 4, "shared_expert_intermediate_size": 16)"},
      {"qwen3_moe", sizes + experts + R"(, "num_experts": 4, "norm_topk_prob": true, "head_dim": 12)"},
      {"olmoe", sizes + experts + R"(, "num_experts": 4)"},
      {"granitemoe", sizes + experts + R"(, "num_local_experts": 4, "embedding_multiplier": 3.0)"},
      {"granitemoeshared", sizes + experts + R"(, "num_local_experts": 1, "num_experts_per_tok": 1,
          "shared_intermediate_size": 12)"},
      {"llama4_text", sizes + experts + R"(, "num_local_experts": 4, "intermediate_size_mlp": 48, "head_dim": 8,
          "rope_scaling": {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
          "original_max_position_embeddings": 8192})"},
  };
  for (const auto& [model_type, keys] : families) {
    SCOPED_TRACE(model_type + ": " + keys);
    const auto model = result("{\"model_type\": \"" + model_type + "\", " + keys + "}");
    const auto back = imported(exported(model));
    expect_same_weights(back, model);
    const DecoderConfig got = read_decoder_config(back), want = read_decoder_config(model);
    expect_same_config(got, want);
    EXPECT_EQ(got.max_positions, model_type == "phi3" && want.layer[0].window > 0 ? 8 : want.max_positions);
  }
}

TEST_F(ImportGguf, ExpertsThatTheFileDoesNotHoldWholeAreRefused) {
  const std::string config = R"({"model_type": "qwen3_moe", "hidden_size": 32, "intermediate_size": 40,
      "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 23, "head_dim": 8,
      "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24)";
  try {
    exported(result(config + "}"));  // norm_topk_prob is false
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("without norm_topk_prob"));
  }
  const GgufFile whole(exported(result(config + R"(, "norm_topk_prob": true})")));
  const auto broken = directory_ / "broken.gguf";
  std::vector<GgufTensor> tensors = whole.tensors();
  for (GgufTensor& tensor : tensors) {
    if (tensor.name == "blk.0.ffn_up_exps.weight") tensor.shape[0] = 3;
  }
  write_again(whole, whole.metadata(), tensors, broken);
  try {
    imported(broken);
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("blk.0.ffn_up_exps.weight"));
    EXPECT_THAT(error.what(), HasSubstr("has shape [3, 24, 32]"));
  }
}

// As llama.cpp reads them.
TEST_F(ImportGguf, RopeIsScaledLinearlyWhereAFileNamesNoType) {
  const GgufFile whole(exported(result(R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 40,
      "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 23, "max_position_embeddings": 64,
      "rope_scaling": {"type": "linear", "factor": 2.0}})")));
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    auto metadata = whole.metadata();
    ASSERT_EQ(metadata.erase("llama.rope.scaling.type"), 1u);
    auto factor = metadata.extract("llama.rope.scaling.factor");
    factor.key() = key;
    metadata.insert(std::move(factor));
    const auto file = directory_ / (std::string(key) + ".gguf");
    write_again(whole, metadata, whole.tensors(), file);
    const RopeConfig rope = read_decoder_config(imported(file)).rope.at(0);
    EXPECT_EQ(rope.scaling, RopeScaling::linear) << key;
    EXPECT_EQ(rope.factor, 2) << key;
    std::filesystem::remove_all(directory_ / "back");
  }
}

TEST_F(ImportGguf, AnotherArchitectureIsNamedWithTheKnownOnes) {
  const auto file = directory_ / "rwkv7.gguf";
  GgufWriter writer(file, {{"general.architecture", std::string("rwkv7")}}, {{"token_embd.weight", {1, 1}}});
  writer.append("token_embd.weight", Tensor::from<float>(rank_.context().pool, {1, 1}, std::vector<float>{0}));
  writer.finish();
  try {
    imported(file);
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("architecture \"rwkv7\""));
    EXPECT_THAT(error.what(), HasSubstr("known are llama, qwen2, qwen3, gemma"));
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ / "back/model"));
}

TEST_F(ImportGguf, AFileInThePlaceOfADirectorySaysHowToMakeOne) {
  const std::filesystem::path gguf = test::data_path("stories-llama-gguf");
  try {
    read_decoder_config(gguf / "f32.gguf");
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("nibble import"));
  }
}

TEST_F(ImportGguf, AValueThatTheDtypeDoesNotHoldIsRefused) {
  const auto file = exported(test::data_path("stories-llama"));
  const auto refusal = [&](const std::string& dtype) {
    const ImportRequest request{.file = file.string(), .out = (directory_ / "back").string(), .dtype = dtype};
    const std::string message = test::error_of<NumericError>([&] { import_gguf(request, rank_.context()); });
    EXPECT_FALSE(std::filesystem::exists(request.out));
    return message;
  };
  const auto put = [&](float value) {
    std::string bytes = test::read_bytes(file);
    std::memcpy(bytes.data() + bytes.size() - sizeof value, &value, sizeof value);
    test::write_bytes(file, bytes);
  };
  put(1e8f);
  EXPECT_THAT(refusal("f16"), HasSubstr(": has a value that is not finite as f16; use bf16 or f32"));
  put(std::nanf(""));
  EXPECT_THAT(refusal("f32"), HasSubstr(": has a value that is not finite as f32; the weights are damaged"));
}

}  // namespace
}  // namespace nibble
