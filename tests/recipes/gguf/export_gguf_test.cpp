#include "nibble/recipes/gguf/export_gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/gguf/gguf.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/io/safetensors/safetensors.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/text/tokenizers/tokenizer.h"
#include "nibble/recipes/models/init_model.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

class ExportGguf : public ::testing::Test {
 protected:
  fs::path exported(const fs::path& model, const fs::path& adapter, bool adapter_only, bool tokenizer,
                    const std::string& type = "f32") {
    GgufRequest request;
    request.model = model.string();
    request.adapter = adapter.string();
    request.adapter_only = adapter_only;
    request.out = (directory_ / ("file-" + std::to_string(count_++) + ".gguf")).string();
    request.type = type;
    request.tokenizer = tokenizer;
    export_gguf(request, rank_.context());
    return request.out;
  }
  Tensor all(const GgufFile& file, const std::string& name) {
    const GgufTensor* tensor = file.find(name);
    if (tensor == nullptr) throw std::runtime_error(name + " is not there");
    return file.rows(*tensor, 0, element_count(tensor->shape) / tensor->shape.back(), rank_.context().pool);
  }

  LocalRank rank_{1};
  test::TemporaryDirectory directory_;
  int count_ = 0;
};

TEST_F(ExportGguf, HasTheChatTemplateAndGivesTheIdsOfTheTokenizer) {
  const std::filesystem::path asset = test::data_path("stories-llama");
  const fs::path model = directory_ / "model";
  fs::create_directory(model);  // not with the asset's permissions
  fs::copy(asset, model);
  const std::string chat = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}";
  test::write_bytes(model / "chat_template.jinja", chat);
  const fs::path result = exported(model, "", false, true);
  EXPECT_EQ(GgufFile(result.string()).text("tokenizer.chat_template"), chat);
  const auto of_model = load_tokenizer(model), of_file = load_tokenizer(result);
  for (const char* text : {"Once upon a time", "Zahlen 12345, \xC3\x9Cml\xC3\xA4ute\n", "\xE6\x97\xA5\xE6\x9C\xAC"})
    EXPECT_EQ(of_file->encode(text), of_model->encode(text)) << text;
  EXPECT_EQ(of_file->eos_id(), of_model->eos_id());
}

TEST_F(ExportGguf, ARefusalNamesTheFileTheTypeAndTheKnownOnes) {
  fs::create_directory(directory_ / "opt");
  test::write_bytes(directory_ / "opt/config.json",
                    R"({"model_type": "opt", "vocab_size": 8, "hidden_size": 4, "ffn_dim": 4, "num_hidden_layers": 1,
                        "num_attention_heads": 1, "max_position_embeddings": 8, "word_embed_proj_dim": 4})");
  try {
    exported(directory_ / "opt", fs::path(kSourceDir) / "tests/data/goldens/peft_llama/adapter", true, false);
    FAIL() << "nothing was thrown";
  } catch (const UsageError& error) {
    const std::string output = error.what();
    for (const char* part : {"config.json: ", "the form of opt in llama.cpp", "known are llama"})
      EXPECT_NE(output.find(part), std::string::npos) << output;
  }
}

// The base with this adapter is what llama.cpp computes; tests/oracles/gguf_llama_cpp.py lets it.
TEST_F(ExportGguf, AnAdapterAddsWhatMergingAdds) {
  const fs::path oracle = fs::path(kSourceDir) / "tests/data/goldens/peft_llama";
  const fs::path peft = oracle / "adapter";
  const GgufFile base(exported(oracle / "base", "", false, false).string());
  const GgufFile merged(exported(oracle / "base", peft, false, false).string());
  const GgufFile adapter(exported(oracle / "base", peft, true, false).string());
  EXPECT_EQ(adapter.text("general.type"), "adapter");
  const double alpha = adapter.number("adapter.lora.alpha").value();
  int matrices = 0;
  for (const GgufTensor& tensor : adapter.tensors()) {
    if (!tensor.name.ends_with(".lora_b")) continue;
    ++matrices;
    const std::string name = tensor.name.substr(0, tensor.name.size() - 7);
    const Tensor b = all(adapter, tensor.name), a = all(adapter, name + ".lora_a");
    const Tensor before = all(base, name), after = all(merged, name);
    const int64_t rows = b.dim(0), r = b.dim(1), columns = a.dim(1);
    ASSERT_EQ(before.shape(), (Shape{rows, columns})) << name;
    const auto at = [](const Tensor& t, int64_t row, int64_t column) {
      return static_cast<double>(t.data<const float>()[row * t.dim(1) + column]);
    };
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        double sum = 0;
        for (int64_t k = 0; k < r; ++k) sum += at(b, row, k) * at(a, k, column);
        ASSERT_NEAR(at(after, row, column) - at(before, row, column), alpha / static_cast<double>(r) * sum, 1e-6)
            << name << " " << row << " " << column;
      }
    }
  }
  EXPECT_EQ(matrices, 6) << "q, v and down of two layers";
}

TEST_F(ExportGguf, AnAdapterThatCannotBeMergedIsNoAdapterOfLlamaCpp) {
  const fs::path oracle = fs::path(kSourceDir) / "tests/data/goldens/peft_llama", copy = directory_ / "adapter";
  fs::create_directory(copy);
  fs::copy(oracle / "adapter", copy);
  const nlohmann::json good = read_json_file(copy / "adapter_config.json");
  const auto refusal = [&](const std::string& key, const nlohmann::json& value) {
    nlohmann::json config = good;
    config[key] = value;
    write_json_file(copy / "adapter_config.json", config);
    return test::error_of<InputError>([&] { exported(oracle / "base", copy, true, false); });
  };
  EXPECT_THAT(refusal("r", 97), ::testing::HasSubstr("adapter_config.json says 97"));
  EXPECT_THAT(refusal("modules_to_save", {"lm_head"}), ::testing::HasSubstr("has no lm_head.weight, which modules_to"));
}

// What has been MXFP4 keeps its values in every type but f32, which has them too. Gate and up lie in turns in the
// model.
TEST_F(ExportGguf, ExpertsInMxfp4StayThatWay) {
  test::write_bytes(directory_ / "config.json", R"({"model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 96,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128,
      "max_position_embeddings": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": false})");
  const fs::path model = directory_ / "model";
  init_model({.config = directory_ / "config.json", .out = model, .seed = 3, .dtype = "mxfp4"});
  const GgufFile plain(exported(model, "", false, false).string()), kept(exported(model, "", false, false, "q8_0"));
  for (const char* part : {"gate", "up", "down"}) {
    const std::string name = std::string("blk.1.ffn_") + part + "_exps.weight";
    ASSERT_EQ(kept.find(name)->type, GgufType::mxfp4) << name;
    const Tensor a = all(kept, name), b = all(plain, name);
    EXPECT_THAT(a.span<const float>(), ::testing::Pointwise(::testing::Eq(), b.span<const float>())) << name;
  }
  EXPECT_EQ(kept.find("blk.1.attn_q.weight")->type, GgufType::q8_0);
  EXPECT_EQ(plain.find("blk.1.ffn_gate_exps.bias")->shape, (Shape{4, 96}));
}

constexpr const char* kLlama4 = R"({"model_type": "llama4_text", "hidden_size": 16, "intermediate_size": 6,
    "intermediate_size_mlp": 20, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 8, "vocab_size": 40, "num_local_experts": 3, "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2})";

// Gate and up lie behind one another in the model's [experts, in, out]; rows of queries and keys stay in place.
TEST_F(ExportGguf, Llama4HasItsKeysAndItsExpertsTheOtherWayRound) {
  test::write_bytes(directory_ / "config.json", kLlama4);
  const fs::path model = directory_ / "model";
  init_model({.config = directory_ / "config.json", .out = model, .seed = 3, .dtype = "f32"});
  const GgufFile file(exported(model, "", false, false).string());
  const std::map<std::string, int64_t> keys = {
      {"expert_count", 3},         {"expert_used_count", 1},         {"expert_feed_forward_length", 6},
      {"feed_forward_length", 20}, {"interleave_moe_layer_step", 2}, {"rope.dimension_count", 8}};
  for (const auto& [key, value] : keys) EXPECT_EQ(file.integer("llama4." + key), value) << key;
  EXPECT_FALSE(file.metadata().contains("llama4.attention.sliding_window")) << "chunks, where it is absent";
  const CheckpointDir checkpoint(model);
  const Tensor both = checkpoint.at("model.layers.1.feed_forward.experts.gate_up_proj");
  const Tensor gate = all(file, "blk.1.ffn_gate_exps.weight"), up = all(file, "blk.1.ffn_up_exps.weight");
  ASSERT_EQ(file.find("blk.1.ffn_gate_exps.weight")->shape, (Shape{3, 6, 16}));
  const auto at = [](const Tensor& t, int64_t i) { return t.data<const float>()[i]; };
  for (int64_t e = 0; e < 3; ++e) {
    for (int64_t out = 0; out < 6; ++out) {
      for (int64_t in = 0; in < 16; ++in) {
        EXPECT_EQ(at(gate, (e * 6 + out) * 16 + in), at(both, (e * 16 + in) * 12 + out));
        EXPECT_EQ(at(up, (e * 6 + out) * 16 + in), at(both, (e * 16 + in) * 12 + 6 + out));
      }
    }
  }
  const Tensor q = all(file, "blk.0.attn_q.weight"), stored = checkpoint.at("model.layers.0.self_attn.q_proj.weight");
  EXPECT_THAT(q.span<const float>(), ::testing::Pointwise(::testing::Eq(), stored.span<const float>()));
  const auto has = [&](const std::string& name) { return file.find(name) != nullptr; };
  EXPECT_TRUE(has("blk.1.ffn_gate_inp.weight") && has("blk.1.ffn_down_shexp.weight") && has("blk.0.ffn_gate.weight"));
  EXPECT_FALSE(has("blk.0.attn_q_norm.weight") || has("blk.0.ffn_gate_inp.weight") || has("blk.1.ffn_gate.weight"));
}

// As Gemma 3 and 4, Qwen3.5 and Llama 4 are published: the tower stays behind.
TEST_F(ExportGguf, ACheckpointWithATowerIsExportedAsTheModelOfItsText) {
  const std::string sizes = R"(", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 6, "head_dim": 8,
      "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 40, "linear_num_key_heads": 1,
      "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "query_pre_attn_scalar": 8})";
  const std::string text_type = R"({"model_type": ")";
  const std::string gemma4 = R"({"model_type": "gemma4_text", "hidden_size": 16, "intermediate_size": 24,
      "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 40, "head_dim": 8,
      "global_head_dim": 16, "sliding_window": 8, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 40,
      "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
      "num_kv_shared_layers": 2, "final_logit_softcapping": 6.0})";
  const std::map<std::string, std::string> texts = {{"gemma3", text_type + "gemma3_text" + sizes},
                                                    {"qwen3_5", text_type + "qwen3_5_text" + sizes},
                                                    {"gemma4", gemma4},
                                                    {"llama4", kLlama4}};
  for (const auto& [type, text] : texts) {
    const std::string tied = R"("tie_word_embeddings": )" + std::string(type.starts_with("gemma") ? "true" : "false");
    const std::string config = text.substr(0, text.size() - 1) + ", " + tied + "}";
    test::write_bytes(directory_ / "config.json", config);
    const fs::path alone = directory_ / type / "alone/model", beside = directory_ / type / "beside/model";
    fs::create_directories(alone.parent_path());
    init_model({.config = directory_ / "config.json", .out = alone, .seed = 3, .dtype = "f32"});
    const CheckpointDir checkpoint(alone);
    std::vector<std::pair<std::string, Tensor>> tensors = {
        {"model.visual.norm.weight", Tensor::zeros(rank_.context().pool, {4}, DType::f32)}};
    for (const std::string& name : checkpoint.names()) {
      const bool inside = name.starts_with("model.");
      tensors.emplace_back(inside ? "model.language_model." + name.substr(6) : name, checkpoint.at(name));
    }
    fs::create_directories(beside);
    write_safetensors(beside / "model.safetensors", tensors);
    test::write_bytes(beside / "config.json",
                      R"({"model_type": ")" + type + "\", " + tied + R"(, "text_config": )" + config + "}");
    EXPECT_TRUE(test::read_bytes(exported(beside, "", false, false)) ==
                test::read_bytes(exported(alone, "", false, false)))
        << type;
  }
}

TEST_F(ExportGguf, ARefusalNamesTheKeysOfConfigJsonThatAreThere) {
  const auto refusal = [&](const std::string& config) {
    const fs::path model = directory_ / ("model-" + std::to_string(count_++));
    test::write_bytes(directory_ / "config.json", config);
    init_model({.config = directory_ / "config.json", .out = model, .seed = 3, .dtype = "f32"});
    const std::string line = test::error_of<UsageError>([&] { exported(model, "", false, false); });
    EXPECT_EQ(line.find((model / "config.json").string() + ": llama.cpp cannot compute "), 0u) << line;
    EXPECT_NE(line.find("; export to a Hugging Face directory (nibble merge) instead"), std::string::npos) << line;
    return line;
  };
  const auto llama4 = [&](const std::string& more) {
    return refusal(std::string(kLlama4).insert(std::string_view(kLlama4).size() - 1, ", " + more));
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("attention_chunk_size": 16)", "(attention_chunk_size)"},
      {R"("attention_chunk_size": null)", "(attention_chunk_size)"},
      {R"("layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"])", "(layer_types)"},
      {R"("floor_scale": 16)", "(floor_scale)"},
      {R"("attn_temperature_tuning": false)", "(attn_temperature_tuning)"},
      {R"("use_qk_norm": false)", "(use_qk_norm, num_local_experts)"},
      {R"("moe_layers": [0, 3])", "(moe_layers, interleave_moe_layer_step)"},
      {R"("no_rope_layers": [1, 1, 0, 1])", "(no_rope_layers)"},
      {R"("attention_bias": true)", "(attention_bias)"},
      {R"("hidden_act": "gelu")", "(hidden_act)"}};
  for (const auto& [more, keys] : cases) EXPECT_NE(llama4(more).find(keys), std::string::npos) << more;
  EXPECT_NE(refusal(R"({"model_type": "qwen3", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
      "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 40, "attention_bias": true})")
                .find("biases in this family (attention_bias); "),
            std::string::npos);
}

// Keys of each head are multiplied from the other side there.
TEST_F(ExportGguf, TheLatentsSecondProjectionIsSplitByHead) {
  test::write_bytes(directory_ / "config.json", R"({"model_type": "deepseek_v3", "hidden_size": 32, "vocab_size": 64,
      "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
      "q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5,
      "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1})");
  const fs::path model = directory_ / "model";
  init_model({.config = directory_ / "config.json", .out = model, .seed = 3, .dtype = "f32"});
  const GgufFile file(exported(model, "", false, false).string());
  const Tensor both = CheckpointDir(model).at("model.layers.1.self_attn.kv_b_proj.weight");
  const Tensor keys = all(file, "blk.1.attn_k_b.weight"), values = all(file, "blk.1.attn_v_b.weight");
  ASSERT_EQ(file.find("blk.1.attn_k_b.weight")->shape, (Shape{2, 8, 6}));
  ASSERT_EQ(file.find("blk.1.attn_v_b.weight")->shape, (Shape{2, 5, 8}));
  const auto at = [](const Tensor& t, int64_t i) { return t.data<const float>()[i]; };
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t r = 0; r < 8; ++r) {
      for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(at(keys, (h * 8 + r) * 6 + i), at(both, (h * 11 + i) * 8 + r));
      for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(at(values, (h * 5 + i) * 8 + r), at(both, (h * 11 + 6 + i) * 8 + r));
    }
  }
  EXPECT_EQ(file.integer("deepseek2.leading_dense_block_count"), 1);
  EXPECT_EQ(file.integer("deepseek2.attention.head_count_kv"), 1);
}

fs::path of_type(const std::string& type) {
  return fs::path(kSourceDir) / "tests/data/goldens/model_types" / type / "model";
}

// Four value heads of two key heads stand there as 0, 2, 1, 3, and decays are -exp of what the model has.
TEST_F(ExportGguf, ValueHeadsOfDeltaNetsStandAsTheyMeetTheirKeys) {
  const fs::path model = of_type("qwen3_5_moe_text");
  const GgufFile file(exported(model, "", false, false).string());
  const CheckpointDir checkpoint(model);
  const auto wide = [&](const std::string& name) {
    const Tensor stored = checkpoint.at("model.layers.0." + name);
    Tensor result = Tensor::empty(rank_.context().pool, stored.shape(), DType::f32, name);
    ops::cast(stored, result);
    return result;
  };
  const Tensor log = wide("linear_attn.A_log"), decay = all(file, "blk.0.ssm_a");
  const Tensor out = wide("linear_attn.out_proj.weight"), turned = all(file, "blk.0.ssm_out.weight");
  const Tensor qkv = wide("linear_attn.in_proj_qkv.weight"), mixed = all(file, "blk.0.attn_qkv.weight");
  const auto at = [](const Tensor& t, int64_t i) { return t.data<const float>()[i]; };
  const int64_t heads[] = {0, 2, 1, 3}, size = 8, width = 32, keys = 2 * 2 * size;
  for (int64_t h = 0; h < 4; ++h) {
    EXPECT_EQ(at(decay, h), -std::exp(at(log, heads[h])));
    for (int64_t i = 0; i < size; ++i) {
      const int64_t column = heads[h] * size + i;
      EXPECT_EQ(at(turned, 5 * width + h * size + i), at(out, 5 * width + column));
      EXPECT_EQ(at(mixed, (keys + h * size + i) * width + 3), at(qkv, (keys + column) * width + 3));
    }
  }
  EXPECT_EQ(at(mixed, 3 * width), at(qkv, 3 * width));
  EXPECT_EQ(at(all(file, "blk.0.attn_norm.weight"), 0), at(wide("input_layernorm.weight"), 0) + 1);
  EXPECT_EQ(file.integer("qwen35moe.ssm.group_count"), 2);
  EXPECT_EQ(file.integer("qwen35moe.expert_feed_forward_length"), 8);
  EXPECT_NE(file.find("blk.3.attn_q_norm.weight"), nullptr);
}

TEST_F(ExportGguf, LayersOfJambaHaveWhatTheyAre) {
  const GgufFile file(exported(of_type("jamba"), "", false, false).string());
  const auto has = [&](const std::string& name) { return file.find(name) != nullptr; };
  EXPECT_EQ(std::get<std::vector<int32_t>>(file.metadata().at("jamba.attention.head_count_kv")),
            (std::vector<int32_t>{0, 2, 0, 2}));
  EXPECT_TRUE(has("blk.0.ssm_dt_norm.weight") && has("blk.0.ffn_gate_exps.weight") && !has("blk.0.attn_q.weight"));
  EXPECT_TRUE(has("blk.1.attn_q.weight") && has("blk.1.ffn_gate.weight") && !has("blk.1.ssm_in.weight"));
}

TEST_F(ExportGguf, RefusesARouterOfAnotherShapeAndWhatLlamaCppDoesNotCompute) {
  const auto refusal = [&](const fs::path& model) {
    try {
      exported(model, "", false, false);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refusal(of_type("olmo_hybrid")).find("the form of olmo_hybrid in llama.cpp"), std::string::npos);
  const fs::path model = directory_ / "dots";
  fs::copy(of_type("dots1"), model);
  std::string config = test::read_bytes(model / "config.json");
  const std::string four = "\"n_routed_experts\": 4";
  ASSERT_NE(config.find(four), std::string::npos);
  test::write_bytes(model / "config.json", config.replace(config.find(four), four.size(), "\"n_routed_experts\": 3"));
  EXPECT_NE(refusal(model).find("config.json makes it [3"), std::string::npos) << refusal(model);
}

// Scales of blocks are f16.
TEST_F(ExportGguf, AValueThatTheTypeDoesNotHoldIsRefused) {
  const fs::path source = test::data_path("stories-llama"), model = directory_ / "model";
  const auto changed = [&](const std::string& tensor, float value) {
    fs::create_directory(model);
    test::write_bytes(model / "config.json", test::read_bytes(source / "config.json"));
    const CheckpointDir checkpoint(source);
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const std::string& name : checkpoint.names()) {
      tensors.emplace_back(name, checkpoint.at(name).clone(rank_.context().pool));
      if (name == tensor) tensors.back().second.data<float>()[7] = value;
    }
    write_safetensors(model / "model.safetensors", tensors);
  };
  const auto refusal = [&](const std::string& type) {
    const std::string message = test::error_of<NumericError>([&] { exported(model, "", false, false, type); });
    EXPECT_FALSE(exists(directory_ / ("file-" + std::to_string(count_ - 1) + ".gguf")));
    return message;
  };
  changed("model.layers.0.mlp.up_proj.weight", 1e8f);
  for (const char* type : {"f16", "q8_0", "q4_0", "q4_k_m"}) {
    EXPECT_THAT(refusal(type), ::testing::AllOf(::testing::StartsWith("blk.0.ffn_up.weight: has a value that "),
                                                ::testing::EndsWith(" does not hold; use bf16 or f32")))
        << type;
  }
  EXPECT_TRUE(exists(exported(model, "", false, false, "bf16")));
  changed("model.norm.weight", std::nanf(""));
  EXPECT_THAT(refusal("f32"),
              ::testing::HasSubstr("output_norm.weight: has a value that is not finite; the weights are"));
}

}  // namespace
}  // namespace nibble
