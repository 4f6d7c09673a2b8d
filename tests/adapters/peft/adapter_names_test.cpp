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
