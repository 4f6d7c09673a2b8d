#include "nibble/adapters/peft/adapter_names.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(AdapterNames, BeginOtherwiseInTheFilesAndInPeft) {
  DecoderConfig config;
  config.file_prefix = "backbone.";
  config.adapter_prefix = "model.";
  EXPECT_EQ(peft_name("base_model.model.backbone.layers.0.mixer.in_proj.lora_A.weight", config),
            "base_model.model.model.layers.0.mixer.in_proj.lora_A.weight");
  EXPECT_EQ(peft_name("base_model.model.lm_head.lora_A.weight", config), "base_model.model.lm_head.lora_A.weight");
  EXPECT_EQ(file_name("model.layers.0.mixer.in_proj", config), "backbone.layers.0.mixer.in_proj");
  EXPECT_EQ(file_name("backbone.layers.0.mixer.in_proj", config), "backbone.layers.0.mixer.in_proj");
  EXPECT_EQ(file_name("in_proj", config), "in_proj");

  AdapterOptions options;
  options.target_modules.names = {"model.layers.0.mixer.in_proj", "q_proj"};
  options.alpha_pattern = {{"model.layers.0.mixer.in_proj", 3}};
  const AdapterOptions stored = in_file_names(options, config);
  EXPECT_EQ(stored.target_modules.names, (std::vector<std::string>{"backbone.layers.0.mixer.in_proj", "q_proj"}));
  EXPECT_EQ(stored.alpha_pattern[0].first, "backbone.layers.0.mixer.in_proj");
  EXPECT_EQ(in_peft_names(stored, config).target_modules.names, options.target_modules.names);
  EXPECT_EQ(in_peft_names(stored, config).alpha_pattern, options.alpha_pattern);
}

TEST(AdapterNames, BeginOtherwiseInExpressionsToo) {
  DecoderConfig config;
  config.file_prefix = "model.language_model.";
  config.adapter_prefix = "model.";
  AdapterOptions options;
  options.alpha_pattern = {{"model\\.layers\\.1\\..*", 3}, {"^model.layers.(1|2).mlp", 4}, {".*model", 5}, {"q_.*", 6}};
  options.exclude_modules.pattern = "model\\.layers\\.\\d+\\.mlp\\.up_proj";
  const AdapterOptions stored = in_file_names(options, config);
  EXPECT_EQ(stored.alpha_pattern[0].first, "model\\.language_model\\.layers\\.1\\..*");
  EXPECT_EQ(stored.alpha_pattern[1].first, "^model.language_model.layers.(1|2).mlp");
  EXPECT_EQ(stored.alpha_pattern[2].first, ".*model");
  EXPECT_EQ(stored.alpha_pattern[3].first, "q_.*");
  EXPECT_EQ(stored.exclude_modules.pattern, "model\\.language_model\\.layers\\.\\d+\\.mlp\\.up_proj");
  EXPECT_EQ(in_peft_names(stored, config).alpha_pattern[0], options.alpha_pattern[0]);
  EXPECT_EQ(in_peft_names(stored, config).exclude_modules.pattern, options.exclude_modules.pattern);
}

// As in Kimi Linear, whose files have "block_sparse_moe" for all of "mlp" but the tensors of all experts.
TEST(AdapterNames, OfTensorsOfAllExpertsAreKept) {
  DecoderConfig config;
  config.adapter_names = {{".block_sparse_moe.", ".mlp."}};
  config.experts.emplace();
  EXPECT_EQ(file_name("model.layers.1.mlp.experts.lora_A.weight", config), "model.layers.1.mlp.experts.lora_A.weight");
  EXPECT_EQ(file_name("model.layers.1.mlp.shared_experts.up_proj", config),
            "model.layers.1.block_sparse_moe.shared_experts.up_proj");
}

// As in Hy3, where patterns may begin with what is called otherwise; and of one expert, which is no tensor of all.
TEST(AdapterNames, AreRenamedAtTheBeginningOfAPatternToo) {
  DecoderConfig config;
  config.adapter_names = {{".mlp.shared_mlp.", ".mlp.shared_experts."}};
  AdapterOptions options;
  options.alpha_pattern = {{"mlp.shared_mlp.up_proj", 3}};
  const AdapterOptions saved = in_peft_names(options, config);
  EXPECT_EQ(saved.alpha_pattern[0].first, "mlp.shared_experts.up_proj");
  EXPECT_EQ(in_file_names(saved, config).alpha_pattern, options.alpha_pattern);
  config.adapter_names = {{".block_sparse_moe.", ".mlp."}};
  config.experts.emplace();
  EXPECT_EQ(file_name("model.layers.1.mlp.experts.3.w1", config), "model.layers.1.block_sparse_moe.experts.3.w1");
}

// One beginning may hold the other.
TEST(AdapterNames, AreReadOnceHoweverOften) {
  DecoderConfig config;
  config.file_prefix = "model.language_model.";
  config.adapter_prefix = "model.";
  PeftAdapter adapter;
  adapter.tensors["model.layers.1.mlp.up_proj.lora_B.weight"] = {};
  for (int times = 0; times < 2; ++times) {
    adapter = in_file_names(adapter, config);
    ASSERT_EQ(adapter.tensors.size(), 1u);
    EXPECT_EQ(adapter.tensors.begin()->first, "model.language_model.layers.1.mlp.up_proj.lora_B.weight");
  }
  config = {};
  EXPECT_EQ(in_file_names(adapter, config).tensors.begin()->first,
            "model.language_model.layers.1.mlp.up_proj.lora_B.weight");
}

}  // namespace
}  // namespace nibble
