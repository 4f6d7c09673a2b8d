// What a plan says in 4 bits of experts, and of weights that layers share.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/quant/mxfp4_layout.h"
#include "nibble/quant/quantize_model.h"
#include "nibble/recipes/models/init_model.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/plan/plan_job.h"
#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/core/models/mixtures.h"

namespace nibble {
namespace {

using namespace nibble::test;
using nlohmann::json;

int64_t planned_layer(const std::filesystem::path& model, const json& more = {}) {
  json recipe = {{"model", {{"path", model.string()}}},
                 {"adapter", {{"target_modules", {"q_proj"}}}},
                 {"data", {{"train", "rows.jsonl"}}},
                 {"output", {{"dir", "run"}}}};
  if (!more.empty()) recipe["model"].merge_patch(more);
  return plan_job(parse_recipe(recipe.dump(), "test")).model.group(0).frozen_bytes;
}

TEST(ExpertPlan, PublishedExpertsHaveTheBytesOfTheirBlocksAndScales) {
  Rank rank;
  MemoryPool& pool = rank.context().pool;
  TemporaryDirectory directory;
  const std::string config = mixture_config("gpt_oss", R"(, "dtype": "float32")");
  write_mixture(directory / "plain", "gpt_oss", rank.context());
  write_bytes(directory / "plain" / "config.json", config);
  Decoder decoder = random_decoder(parse_decoder_config(config, "test"), 3, rank.context());
  std::vector<std::pair<std::string, Tensor>> tensors;
  int64_t saved = 0;  // of both layers
  for (const NamedTensor& tensor : state_dict(decoder)) {
    const Shape& shape = tensor.value.shape();
    if (shape.size() != 3) {
      tensors.emplace_back(tensor.name, tensor.value);
      continue;
    }
    const Shape groups = {shape[0], shape[2], shape[1] / 32};
    const Tensor blocks = Tensor::zeros(pool, {groups[0], groups[1], groups[2], 16}, DType::u8);
    const Tensor scales = Tensor::zeros(pool, groups, DType::u8);
    saved += static_cast<int64_t>(tensor.value.bytes() - blocks.bytes() - scales.bytes());
    tensors.emplace_back(mxfp4_blocks_name(tensor.name), blocks);
    tensors.emplace_back(mxfp4_scales_name(tensor.name), scales);
  }
  std::filesystem::create_directories(directory / "published");
  write_safetensors(directory / "published" / "model.safetensors", tensors);
  write_bytes(directory / "published" / "config.json",
              mixture_config("gpt_oss", R"(, "dtype": "float32", "quantization_config": {"quant_method": "mxfp4"})"));
  EXPECT_EQ(planned_layer(directory / "plain") - planned_layer(directory / "published"), saved / 2);
}

// Of 6 experts, whose tensors have three and a half blocks each, ranks have three.
TEST(ExpertPlan, BlocksOf8BitStatesThatRanksWouldSplitAreRefusedAsByARun) {
  const DecoderConfig config = parse_decoder_config(R"({"model_type": "gpt_oss", "hidden_size": 32,
      "intermediate_size": 28, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
      "head_dim": 16, "vocab_size": 48, "num_local_experts": 6, "num_experts_per_tok": 2,
      "max_position_embeddings": 64, "tie_word_embeddings": false})",
                                                    "test");
  json recipe = {{"model", {{"path", "none"}}},
                 {"data", {{"train", "none"}}},
                 {"optimizer", {{"type", "adamw8bit"}}},
                 {"parallel", {{"experts", 2}, {"replicate", 2}}},
                 {"output", {{"dir", "run"}}}};
  const auto refusal = [&](const auto& check) {
    const std::string error = error_of<UsageError>([&] { check(parse_recipe(recipe.dump(), "test")); });
    EXPECT_NE(error.find("parallel.experts: 2 ranks would split a block of 256 values"), std::string::npos) << error;
  };
  const auto validated = [&](const Recipe& read) { plan_adapter(read, config, config.vocab_size); };
  refusal(validated);
  refusal([&](const Recipe& read) { plan_job(read, config); });
  recipe["adapter"] = {{"target_modules", {"q_proj"}}, {"modules_to_save", {"experts"}}};
  refusal(validated);
  recipe["adapter"].erase("modules_to_save");
  validated(parse_recipe(recipe.dump(), "test"));  // experts are not trained
}

TEST(ExpertPlan, ADirectoryIn4BitsIsPlannedAsItsHeadersSay) {
  for (const char* type : {"qwen3_moe", "granitemoe", "gpt_oss"}) {
    Rank rank;
    TemporaryDirectory directory;
    write_mixture(directory / "model", type, rank.context());
    QuantizeModelOptions options;
    options.codec.double_quant = false;
    quantize_model(directory / "model", directory / "all", options, rank.context());
    const json quantize = {{"quantize", "nf4"}, {"double_quant", false}};
    EXPECT_EQ(planned_layer(directory / "all"), planned_layer(directory / "model", quantize)) << type;
    EXPECT_LT(planned_layer(directory / "all"), planned_layer(directory / "model")) << type;
    options.skip_modules = {"lm_head", ".*experts", ".*put_linear"};
    quantize_model(directory / "model", directory / "attention", options, rank.context());
    EXPECT_GT(planned_layer(directory / "attention"), planned_layer(directory / "all")) << type;
  }
}

TEST(SharedBlockPlan, WeightsThatLayersShareArePlannedAsTheyAreLoaded) {
  Rank rank;
  TemporaryDirectory directory;
  write_bytes(directory / "config.json", R"({"model_type": "zamba2", "hidden_size": 32, "num_hidden_layers": 3,
      "num_attention_heads": 2, "layers_block_type": ["hybrid", "mamba", "hybrid"], "intermediate_size": 48,
      "adapter_rank": 4, "mamba_d_state": 8, "n_mamba_heads": 4, "vocab_size": 64})");
  init_model({.config = (directory / "config.json").string(), .out = (directory / "model").string()});
  quantize_model(directory / "model", directory / "quantized", {}, rank.context());
  const json quantize = {{"quantize", "nf4"}};
  EXPECT_EQ(planned_layer(directory / "model", quantize), planned_layer(directory / "quantized"));
  EXPECT_LT(planned_layer(directory / "quantized"), planned_layer(directory / "model"));
}

}  // namespace
}  // namespace nibble
