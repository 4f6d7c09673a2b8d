#include <cmath>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/text/tokenizers/tokenizer.h"
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

constexpr const char* kSmallLlama = R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 23, "max_position_embeddings": 64,
    "attention_bias": true, "tie_word_embeddings": true})";

std::vector<GgufTensor> without(const GgufFile& file, const std::vector<std::string>& names) {
  std::vector<GgufTensor> tensors = file.tensors();
  std::erase_if(tensors, [&](const GgufTensor& tensor) { return std::ranges::count(names, tensor.name) > 0; });
  return tensors;
}

// llama.cpp adds none.
TEST_F(ImportGguf, BiasesThatAFileLacksBesideOthersAreZero) {
  const auto model = random_model(kSmallLlama, DType::f32);
  const GgufFile whole(exported(model));
  const auto file = directory_ / "q.gguf";
  write_again(whole, whole.metadata(), without(whole, {"blk.0.attn_k.bias", "blk.1.attn_output.bias"}), file);
  const auto back = imported(file);
  const CheckpointDir got(back), want(model);
  ASSERT_EQ(got.names(), want.names());
  for (const char* name : {"model.layers.0.self_attn.k_proj.bias", "model.layers.1.self_attn.o_proj.bias"}) {
    EXPECT_THAT(got.at(name).span<const float>(), ::testing::Each(0)) << name;
  }
  const Tensor kept = got.at("model.layers.0.self_attn.v_proj.bias");
  EXPECT_EQ(std::memcmp(kept.raw(), want.at("model.layers.0.self_attn.v_proj.bias").raw(), kept.bytes()), 0);
  std::filesystem::remove_all(directory_ / "back");
  write_again(whole, whole.metadata(), without(whole, {"blk.0.attn_q.bias"}), directory_ / "k.gguf");
  EXPECT_THAT(test::error_of<InputError>([&] { imported(directory_ / "k.gguf"); }),
              HasSubstr(".bias has no place in the model"));
  write_again(whole, whole.metadata(), without(whole, {"blk.1.attn_norm.weight"}), directory_ / "n.gguf");
  EXPECT_THAT(test::error_of<InputError>([&] { imported(directory_ / "n.gguf"); }),
              HasSubstr("has no blk.1.attn_norm.weight"));
}

TEST_F(ImportGguf, NumbersOf64BitsAreRead) {
  const auto model = random_model(kSmallLlama, DType::f32);
  const GgufFile whole(exported(model));
  std::vector<GgufTensor> tensors = whole.tensors();
  for (GgufTensor& tensor : tensors) tensor.type = GgufType::f64;
  write_again(whole, whole.metadata(), tensors, directory_ / "wide.gguf");
  expect_same_weights(imported(directory_ / "wide.gguf"), model);
}

class ImportSplitGguf : public ImportGguf {
 protected:
  std::string name(int part) const {
    return (directory_ / ("m-0000" + std::to_string(part) + "-of-00003.gguf")).string();
  }
  /// As llama-gguf-split does it: the keys of the model are in the first file alone.
  void split(const GgufFile& whole) {
    const auto number = [](size_t value) { return static_cast<uint32_t>(value); };
    const std::vector<GgufTensor>& all = whole.tensors();
    const size_t ends[] = {0, 5, 9, all.size()};
    for (int part = 0; part < 3; ++part) {
      std::map<std::string, GgufValue> metadata;
      if (part == 0) metadata = whole.metadata();
      metadata["split.no"] = number(static_cast<size_t>(part));
      metadata["split.count"] = number(3);
      metadata["split.tensors.count"] = number(all.size());
      write_again(
          whole, metadata,
          {all.begin() + static_cast<ptrdiff_t>(ends[part]), all.begin() + static_cast<ptrdiff_t>(ends[part + 1])},
          name(part + 1));
    }
  }
  std::string refused(const std::string& file) {
    return test::error_of<InputError>([&] { imported(file); });
  }
};

TEST_F(ImportSplitGguf, AllFilesAreReadAndThoseThatAreMissingNamed) {
  const auto model = random_model(kSmallLlama, DType::f32);
  const GgufFile whole(exported(model));
  split(whole);
  expect_same_weights(imported(name(1)), model);
  std::filesystem::remove_all(directory_ / "back");
  EXPECT_THAT(refused(name(2)), HasSubstr(name(2) + ": is file 2 of a model in 3; give the first one, whose name ends "
                                                    "with -00001-of-00003.gguf"));
  std::filesystem::rename(name(1), directory_ / "first.gguf");
  EXPECT_THAT(refused(directory_ / "first.gguf"), HasSubstr("its name does not end with -00001-of-00003.gguf"));
  std::filesystem::rename(directory_ / "first.gguf", name(1));
  std::filesystem::rename(name(3), directory_ / "last");
  EXPECT_THAT(refused(name(1)), HasSubstr(name(3) + ": is missing beside " + name(1)));
  std::filesystem::copy_file(name(2), name(3));
  EXPECT_THAT(refused(name(1)), HasSubstr("comes twice"));
}

class GgufRoundTrip : public ImportGguf {
 protected:
  /// The small model with a tokenizer, other configurations of both, exported and imported.
  std::filesystem::path round(const std::string& generation, const std::string& templates) {
    const std::filesystem::path model = directory_ / "talks";
    std::filesystem::remove_all(model);
    std::filesystem::copy(test::data_path("stories-llama"), model);
    auto config = nlohmann::json::parse(test::read_bytes(model / "tokenizer_config.json"));
    config["chat_template"] = nlohmann::json::parse(templates);
    test::write_bytes(model / "tokenizer_config.json", config.dump());
    test::write_bytes(model / "generation_config.json", generation);
    GgufRequest request{.model = model.string(), .out = (directory_ / "talks.gguf").string()};
    request.replace = Replace::own;
    left_out_ = export_gguf(request, rank_.context()).left_out;
    std::filesystem::remove_all(directory_ / "back");
    return imported(request.out);
  }

  std::vector<std::string> left_out_;
};

TEST_F(GgufRoundTrip, EndsOfAnswersAndNamedTemplatesComeBack) {
  const std::string templates = R"([{"name": "default", "template": "{{ messages[0].content }}"},
      {"name": "tool_use", "template": "TOOLS {{ messages[0].content }}"}])";
  for (const char* ends : {"[2, 259, 260, 261, 262]", "[2, 259]", "2"}) {
    const auto back = round(R"({"eos_token_id": )" + std::string(ends) + "}", templates);
    std::vector<int32_t> got = read_decoder_config(back).eos_ids,
                         want = read_decoder_config(directory_ / "talks").eos_ids;
    std::ranges::sort(got);
    EXPECT_EQ(got, want) << ends;
    const auto tokenizer = load_tokenizer(back), of_file = load_tokenizer(directory_ / "talks.gguf");
    EXPECT_EQ(tokenizer->roles().chat_templates.at("tool_use"), "TOOLS {{ messages[0].content }}");
    EXPECT_EQ(of_file->roles().chat_templates, tokenizer->roles().chat_templates);
  }
  const GgufFile file((directory_ / "talks.gguf").string());
  EXPECT_EQ(file.text("tokenizer.chat_template.tool_use"), "TOOLS {{ messages[0].content }}") << "as gguf-py names it";
  EXPECT_EQ(*file.texts("tokenizer.chat_templates"), std::vector<std::string>{"tool_use"});
}

TEST_F(GgufRoundTrip, ATemplateWhoseNameIsTakenIsLeftOutAloud) {
  round("{}", R"([{"name": "tool use", "template": "A"}, {"name": "tool_use", "template": "B"}])");
  EXPECT_EQ(*GgufFile((directory_ / "talks.gguf").string()).texts("tokenizer.chat_templates"),
            std::vector<std::string>{"tool_use"});
  EXPECT_EQ(left_out_,
            std::vector<std::string>{"the chat template \"tool_use\" (another is called tool_use there too)"});
}

TEST_F(GgufRoundTrip, TheEndOfATurnHasTheKeyOfLlamaCpp) {
  round(R"({"eos_token_id": [2, 259]})", R"("{{ messages[0].content }}")");
  const GgufFile file((directory_ / "talks.gguf").string());
  EXPECT_EQ(file.token_id("eos"), 2);
  EXPECT_EQ(file.token_id("eot").value_or(file.token_id("eom").value_or(-1)), 259);
}

TEST_F(ImportGguf, AnEndBeyondTheVocabularyIsRefused) {
  GgufRequest request{.model = test::data_path("stories-llama").string(), .out = (directory_ / "m.gguf").string()};
  export_gguf(request, rank_.context());
  const GgufFile whole(request.out);
  for (const std::string role : {"eos", "bos", "eot"}) {
    auto metadata = whole.metadata();
    const std::string key = "tokenizer.ggml." + role + "_token_id";
    metadata[key] = uint32_t{99999};
    write_again(whole, metadata, whole.tensors(), directory_ / "bad.gguf");
    EXPECT_THAT(test::error_of<InputError>([&] { imported(directory_ / "bad.gguf"); }),
                HasSubstr(key + ": is 99999, beyond the "));
    metadata[key] = UINT32_MAX;  // -1: none
    write_again(whole, metadata, whole.tensors(), directory_ / "none.gguf");
    EXPECT_NO_THROW(imported(directory_ / "none.gguf")) << role;
  }
}

}  // namespace
}  // namespace nibble
