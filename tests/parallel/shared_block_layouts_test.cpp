// Zamba 2, whose layers share blocks, on several ranks: a block is gathered for each layer that has it, and its
// gradient is complete with the first of them.

#include <gmock/gmock.h>

#include "nibble/tests/parallel/own_model.h"

namespace nibble {
namespace {

using namespace nibble::test;

class SharedBlockRuns : public OwnModel {
 protected:
  void SetUp() override {
    const json config = {
        {"model_type", "zamba2"},   {"hidden_size", 32},
        {"num_hidden_layers", 5},   {"layers_block_type", {"hybrid", "mamba", "hybrid", "hybrid", "hybrid"}},
        {"num_mem_blocks", 2},      {"use_shared_attention_adapter", true},
        {"use_mem_rope", true},     {"adapter_rank", 4},
        {"num_attention_heads", 4}, {"intermediate_size", 24},
        {"mamba_d_state", 8},       {"n_mamba_heads", 4},
        {"vocab_size", 257},        {"eos_token_id", 256},
        {"initializer_range", 0.2}, {"dtype", "float32"}};
    base_ = directory_ / "model";
    write_bytes(directory_ / "model.json", config.dump());
    init_model({.config = (directory_ / "model.json").string(), .out = base_.string(), .seed = 3, .dtype = "f32"});
    write_bytes(base_ / "tokenizer.json", byte_tokenizer());
    write_bytes(base_ / "tokenizer_config.json", json{{"eos_token", "<|end|>"}}.dump());
  }
  json wanted(const std::string& mode) const {
    json result = own_recipe(base_, 12);
    if (mode == "full") return result;
    result["adapter"] = {{"r", 2}, {"lora_alpha", 4}, {"target_modules", "all-linear"}};
    if (mode == "qlora") result["model"]["quantize"] = "nf4";
    return result;
  }
  void expect_bits_of_one(json recipe, const std::vector<json>& layouts) {
    const Outcome one = run(recipe, 1, "one");
    ASSERT_EQ(one.losses.size(), 3u);
    EXPECT_FALSE(one.weights.empty());
    for (size_t i = 0; i < layouts.size(); ++i) {
      SCOPED_TRACE(layouts[i].dump());
      recipe["parallel"] = layouts[i];
      const Outcome two = run(recipe, 2, "two" + std::to_string(i));
      EXPECT_EQ(two.losses, one.losses);
      EXPECT_EQ(two.norms, one.norms);
      EXPECT_TRUE(two.weights == one.weights) << "what was trained differs";
    }
  }
};

TEST_F(SharedBlockRuns, AdaptersHaveTheBitsOfOneRank) {
  expect_bits_of_one(wanted("lora"), {json::object(), {{"shard", 2}}, {{"shard", 2}, {"shard_adapters", true}}});
}

TEST_F(SharedBlockRuns, AdaptersOnFourBitsHaveTheBitsOfOneRank) {
  expect_bits_of_one(wanted("qlora"), {json::object(), {{"shard", 2}}});
}

TEST_F(SharedBlockRuns, FullRunsHaveTheBitsOfOneRank) {
  expect_bits_of_one(
      wanted("full"),
      {json::object(), {{"shard", 2}, {"zero", 1}}, {{"shard", 2}, {"zero", 2}}, {{"shard", 2}, {"zero", 3}}});
}

TEST_F(SharedBlockRuns, ResumeAndRecomputeToTheSameBits) {
  for (const char* mode : {"lora", "full"}) {
    SCOPED_TRACE(mode);
    json recipe = wanted(mode);
    const std::string name = mode;
    const Outcome whole = run(recipe, 1, name + "-whole");
    run(recipe, 1, name + "-stopped", 1);
    EXPECT_TRUE(run(recipe, 1, name + "-stopped").weights == whole.weights) << "resumed";
    recipe["train"]["gradient_checkpointing"] = "block";
    EXPECT_TRUE(run(recipe, 1, name + "-recomputed").weights == whole.weights) << "recomputed";
  }
}

TEST_F(SharedBlockRuns, StagesAndSlicedWeightsAreRefused) {
  for (const char* axis : {"pipeline", "tensor"}) {
    json recipe = wanted("lora");
    recipe["parallel"] = {{axis, 2}};
    try {
      run(recipe, 2, "refused");
      ADD_FAILURE() << axis;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(axis));
    }
  }
}

}  // namespace
}  // namespace nibble
