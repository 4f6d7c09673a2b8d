// Experts whose gate and up are one tensor of the file, and keys of mixtures that no model can have.

#include <functional>
#include <span>

#include "nibble/core/base/error.h"
#include "nibble/tests/recipes/gguf/import_gguf_fixture.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kExpertSizes = R"("hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 23, "max_position_embeddings": 64, "head_dim": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_hidden_layers": )";

std::string experts_config(const std::string& type, int layers, const std::string& more) {
  return "{\"model_type\": \"" + type + "\", " + kExpertSizes + std::to_string(layers) + ", " + more + "}";
}

std::string qwen3_moe() { return experts_config("qwen3_moe", 2, R"("num_experts": 4, "norm_topk_prob": true)"); }

class ImportGgufExperts : public ImportGguf {
 protected:
  std::vector<float> all(const GgufFile& file, const GgufTensor& tensor) {
    const int64_t rows = element_count(tensor.shape) / tensor.shape.back();
    const Tensor read = file.rows(tensor, 0, rows, rank_.context().pool);
    const std::span<const float> values = read.span<const float>();
    return {values.begin(), values.end()};
  }

  // The file with metadata and tensors changed; values_of gives those that it does not have.
  using Metadata = std::map<std::string, GgufValue>;
  fs::path rewritten(const GgufFile& file, const Metadata& metadata, const std::vector<GgufTensor>& tensors,
                     const std::function<std::vector<float>(const GgufTensor&)>& values_of) {
    const fs::path path = directory_ / "rewritten.gguf";
    GgufWriter writer(path, {metadata.begin(), metadata.end()}, tensors);
    for (const GgufTensor& tensor : tensors) {
      const GgufTensor* stored = file.find(tensor.name);
      const std::vector<float> values = stored ? all(file, *stored) : values_of(tensor);
      const Shape rows = {element_count(tensor.shape) / tensor.shape.back(), tensor.shape.back()};
      writer.append(tensor.name, Tensor::from<float>(rank_.context().pool, rows, values));
    }
    writer.finish();
    return path;
  }

  // As convert_hf_to_gguf.py --fuse-gate-up-exps writes it: of every expert the rows of its gate, then those of up.
  fs::path fused(const fs::path& path, bool keeps_gates = false) {
    const GgufFile file(path.string());
    std::vector<GgufTensor> tensors;
    std::map<std::string, std::pair<const GgufTensor*, const GgufTensor*>> halves;
    for (const GgufTensor& tensor : file.tensors()) {
      const size_t gate = tensor.name.find("ffn_gate_exps"), up = tensor.name.find("ffn_up_exps");
      if (gate == std::string::npos || keeps_gates) {
        if (up == std::string::npos) tensors.push_back(tensor);
      }
      if (gate == std::string::npos) continue;
      const std::string before = tensor.name.substr(0, gate), end = tensor.name.substr(gate + 13);
      GgufTensor both = tensor;
      both.name = before + "ffn_gate_up_exps" + end;
      both.shape.at(1) *= 2;
      tensors.push_back(both);
      halves[both.name] = {file.find(tensor.name), file.find(before + "ffn_up_exps" + end)};
    }
    return rewritten(file, file.metadata(), tensors, [&](const GgufTensor& both) {
      const std::vector<float> gate = all(file, *halves.at(both.name).first),
                               up = all(file, *halves.at(both.name).second);
      const auto size = static_cast<std::ptrdiff_t>(gate.size()) / both.shape[0];
      std::vector<float> values;
      for (std::ptrdiff_t e = 0; e < both.shape[0]; ++e) {
        values.insert(values.end(), gate.begin() + e * size, gate.begin() + (e + 1) * size);
        values.insert(values.end(), up.begin() + e * size, up.begin() + (e + 1) * size);
      }
      return values;
    });
  }
};

// Single experts, both in one tensor, the same the other way round, and in turns with biases.
TEST_F(ImportGgufExperts, GateAndUpInOneTensorComeBack) {
  const std::string experts = R"("num_local_experts": 4)";
  const std::vector<std::string> configs = {
      qwen3_moe(), experts_config("granitemoe", 2, experts),
      experts_config("llama4_text", 2, experts + R"(, "intermediate_size_mlp": 48)"),
      experts_config("gpt_oss", 2, experts + R"(, "rope_scaling": {"rope_type": "default"})"),
      experts_config("gemma4_text", 2, R"("enable_moe_block": true, "num_experts": 4, "top_k_experts": 2,
          "global_head_dim": 16, "sliding_window": 8, "hidden_size_per_layer_input": 0,
          "layer_types": ["sliding_attention", "full_attention"], "final_logit_softcapping": 6.0, "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})")};
  for (const std::string& text : configs) {
    SCOPED_TRACE(text);
    const fs::path model = random_model(text, DType::f32), file = fused(exported(model));
    ASSERT_NE(GgufFile(file.string()).find("blk.1.ffn_gate_up_exps.weight"), nullptr);
    ASSERT_EQ(GgufFile(file.string()).find("blk.1.ffn_up_exps.weight"), nullptr);
    expect_same_weights(imported(file), model);
  }
}

TEST_F(ImportGgufExperts, GateAndUpInOneTensorThatDoesNotFitAreRefusedByItsName) {
  const fs::path path = exported(result(qwen3_moe()));
  EXPECT_THAT(error_of<InputError>([&] { imported(fused(path, true)); }),
              HasSubstr("rewritten.gguf: blk.0.ffn_gate_exps.weight has no place in the model; get "));
  const fs::path whole = fused(path);
  fs::rename(whole, directory_ / "fused.gguf");
  const GgufFile file((directory_ / "fused.gguf").string());
  std::vector<GgufTensor> tensors;
  for (GgufTensor tensor : file.tensors()) {
    if (tensor.name == "blk.1.ffn_gate_up_exps.weight") tensor.name = "blk.1.ffn_gate_up_exps.bias";
    tensors.push_back(tensor);
  }
  const auto zeros = [](const GgufTensor& tensor) {
    return std::vector<float>(static_cast<size_t>(element_count(tensor.shape)));
  };
  EXPECT_THAT(error_of<InputError>([&] { imported(rewritten(file, file.metadata(), tensors, zeros)); }),
              HasSubstr("rewritten.gguf: has no blk.1.ffn_gate_exps.weight; "));
  tensors = file.tensors();
  Metadata metadata = file.metadata();
  metadata["qwen3moe.expert_feed_forward_length"] = uint32_t{25};
  EXPECT_THAT(
      error_of<InputError>([&] { imported(rewritten(file, metadata, tensors, zeros)); }),
      HasSubstr("rewritten.gguf: blk.0.ffn_gate_up_exps.weight: has shape [4, 48, 32], another than the qwen3moe "
                "keys of the file give it; the file is damaged"));
}

// What config.json would be refused for is said of the file that was given.
TEST_F(ImportGgufExperts, NumbersThatNoModelHasAreRefusedByTheKeysOfTheFile) {
  const GgufFile file(exported(result(qwen3_moe())).string());
  const auto none = [](const GgufTensor&) { return std::vector<float>(); };
  const std::vector<std::tuple<std::string, GgufValue, std::string>> cases = {
      {"expert_used_count", uint32_t{9}, "qwen3moe.expert_used_count is 9, more than there are experts, 4; get "},
      {"expert_count", uint32_t{1}, "qwen3moe.expert_used_count is 2, more than there are experts, 1; get "},
      {"expert_count", uint32_t{5}, "blk.0.ffn_gate_inp.weight: has shape [4, 32]"},
      {"expert_feed_forward_length", uint32_t{0}, "qwen3moe.expert_feed_forward_length: is missing or not positive"},
      {"attention.head_count", uint32_t{3},
       "qwen3moe.attention.head_count is 3, no multiple of qwen3moe.attention.head_count_kv, 2; get "},
      {"attention.layer_norm_rms_epsilon", -1.0f, "qwen3moe.attention.layer_norm_rms_epsilon is -1"},
      {"block_count", uint32_t{1} << 30, "qwen3moe.block_count: is 1073741824, but the file has 27 tensors; get "},
      {"block_count", std::string("two"), "qwen3moe.block_count is no whole number; "},
      {"context_length", uint32_t{4294967295}, "qwen3moe.context_length is 4294967295, allowed are 1 to "},
      {"rope.freq_base", 0.0f, "qwen3moe.rope.freq_base is 0"},
  };
  for (const auto& [key, value, reason] : cases) {
    Metadata metadata = file.metadata();
    metadata["qwen3moe." + key] = value;
    const fs::path path = rewritten(file, metadata, file.tensors(), none);
    const std::string line = error_of<InputError>([&] { imported(path); });
    EXPECT_THAT(line, AllOf(StartsWith(path.string() + ": " + reason), HasSubstr("; "), Not(HasSubstr("\n"))));
    EXPECT_FALSE(fs::exists(directory_ / "back/model"));
  }
}

TEST_F(ImportGgufExperts, Llama4ComesBackAsLlamaCppComputesIt) {
  const std::string sizes = R"("intermediate_size_mlp": 48, "interleave_moe_layer_step": 2, "num_local_experts": )";
  for (const std::string more : {"4", "128, \"use_qk_norm\": false"}) {
    const fs::path model = result(experts_config("llama4_text", 4, sizes + more)), back = imported(exported(model));
    expect_same_weights(back, model);
    const DecoderConfig got = read_decoder_config(back), want = read_decoder_config(model);
    expect_same_config(got, want);
    EXPECT_EQ(got.qk_norm.has_value(), want.qk_norm.has_value());
    EXPECT_EQ(got.query_scaling.beta, want.query_scaling.beta);
    EXPECT_EQ(got.query_scaling.length, want.query_scaling.length);
    for (size_t l = 0; l < want.layer.size(); ++l) {
      EXPECT_EQ(got.layer[l].chunk, want.layer[l].chunk);
      EXPECT_EQ(got.layer[l].scaled_queries, want.layer[l].scaled_queries);
    }
  }
  const GgufFile file((directory_ / "model.gguf").string());
  const auto none = [](const GgufTensor&) { return std::vector<float>(); };
  for (const auto& [key, value] : {std::pair{"attention.sliding_window", 0u},
                                   {"interleave_moe_layer_step", 0u},
                                   {"attention.sliding_window_pattern", 2u}}) {
    Metadata metadata = file.metadata();
    metadata["llama4." + std::string(key)] = uint32_t{value};
    const fs::path path = rewritten(file, metadata, file.tensors(), none);
    EXPECT_THAT(error_of<InputError>([&] { imported(path); }), HasSubstr("llama4." + std::string(key) + ": is "));
  }
}

}  // namespace
}  // namespace nibble
