#include "nibble/adapters/peft/adapter_names.h"

#include <gtest/gtest.h>

#include "nibble/adapters/target_modules.h"
#include "nibble/core/base/error.h"

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
  EXPECT_EQ(alpha_of(stored, "backbone.layers.0.mixer.in_proj"), 3);
  EXPECT_EQ(in_peft_names(stored, config).target_modules.names, options.target_modules.names);
  EXPECT_EQ(in_peft_names(stored, config).alpha_pattern, options.alpha_pattern);
  options.alpha_pattern = {{"backbone.layers.0.mixer.in_proj", 3}};
  EXPECT_EQ(alpha_of(in_file_names(options, config), "backbone.layers.0.mixer.in_proj"), 3);
}

// As PEFT, which sees Transformers' paths alone.
TEST(AdapterNames, ExpressionsMeetPeftsPaths) {
  DecoderConfig config;
  config.file_prefix = "model.language_model.";
  config.adapter_prefix = "model.";
  std::vector<std::string> linears;
  for (const char* layer : {"0", "1"}) {
    for (const char* name : {"mlp.up_proj", "mlp.down_proj"})
      linears.push_back("model.language_model.layers." + std::string(layer) + "." + name);
  }
  AdapterOptions options;
  options.target_modules.pattern = R"(.*\bmodel\.layers\.\d+\.mlp\.(up|down)_proj)";
  options.exclude_modules.pattern = R"((?!model\.layers\.1).*up_proj)";
  options.rank_pattern = {{R"(.*model\.layers\.1\..*)", 3}};
  options.alpha_pattern = {{R"(^model.layers.(1|2).mlp.up_proj)", 4}, {R"((model|text)\.layers\.0\..*)", 5}};
  const AdapterOptions stored = in_file_names(in_file_names(options, config), config);
  const TargetModules found = match_target_modules(linears, "lm_head", "", stored);
  EXPECT_EQ(found.modules, (std::vector<std::string>{linears[1], linears[2], linears[3]}));
  EXPECT_EQ(found.unmatched_entries, std::vector<std::string>());
  EXPECT_EQ(rank_of(stored, linears[1]), options.r);
  EXPECT_EQ(rank_of(stored, linears[2]), 3);
  EXPECT_EQ(alpha_of(stored, linears[1]), 5);
  EXPECT_EQ(alpha_of(stored, linears[2]), 4);
  EXPECT_EQ(alpha_of(stored, linears[3]), options.lora_alpha);
  EXPECT_NO_THROW(check_rank(stored, linears[2], 3, "file"));
  const AdapterOptions saved = in_peft_names(stored, config);
  EXPECT_EQ(saved.target_modules.pattern, options.target_modules.pattern);
  EXPECT_EQ(saved.exclude_modules.pattern, options.exclude_modules.pattern);
  EXPECT_EQ(saved.rank_pattern, options.rank_pattern);
  EXPECT_EQ(saved.alpha_pattern, options.alpha_pattern);

  options.target_modules.pattern = R"(.*language_model\.layers\..*)";
  try {
    match_target_modules(linears, "lm_head", "", in_file_names(options, config));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("a path, as model.layers.0.mlp.up_proj"), std::string::npos);
  }
}

TEST(AdapterNames, LayersAreCountedInPeftsPaths) {
  DecoderConfig config;
  config.file_prefix = "backbone.";
  config.adapter_prefix = "model.";
  const std::vector<std::string> linears = {"backbone.layers.0.mixer.in_proj", "backbone.layers.1.mixer.in_proj"};
  AdapterOptions options;
  options.target_modules.names = {"in_proj"};
  options.layers_to_transform = {{1}};
  options.layers_pattern = {"model.layers"};
  const TargetModules found = match_target_modules(linears, "lm_head", "", in_file_names(options, config));
  EXPECT_EQ(found.modules, std::vector<std::string>{linears[1]});
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
  for (int times = 0; times < 2; ++times) {
    options = in_file_names(options, config);
    EXPECT_EQ(alpha_of(options, "model.layers.1.mlp.shared_mlp.up_proj"), 3);
    options = in_peft_names(options, config);
    EXPECT_EQ(options.alpha_pattern[0].first, "mlp.shared_experts.up_proj");
  }
  config.adapter_names = {{".block_sparse_moe.", ".mlp."}};
  config.experts.emplace();
  EXPECT_EQ(file_name("model.layers.1.mlp.experts.3.w1", config), "model.layers.1.block_sparse_moe.experts.3.w1");
}

// One beginning may hold the other.
TEST(AdapterNames, AreReadOnceHoweverOften) {
  const std::string within = "layers.1.mlp.up_proj";
  for (const auto& [file, peft] :
       {std::pair<std::string, std::string>{"model.language_model.", "model."}, {"model.", "model.language_model."}}) {
    DecoderConfig config;
    config.file_prefix = file;
    config.adapter_prefix = peft;
    PeftAdapter adapter;
    adapter.tensors[peft + within + ".lora_B.weight"] = {};
    adapter.options.alpha_pattern = {{peft + within, 3}};
    for (int times = 0; times < 2; ++times) {
      adapter = in_file_names(adapter, config);
      ASSERT_EQ(adapter.tensors.size(), 1u);
      EXPECT_EQ(adapter.tensors.begin()->first, file + within + ".lora_B.weight");
      EXPECT_EQ(alpha_of(adapter.options, file + within), 3);
      EXPECT_EQ(peft_name(kPeftPrefix + file + within, config), kPeftPrefix + peft + within);
    }
    EXPECT_EQ(in_file_names(adapter, DecoderConfig()).tensors.begin()->first, file + within + ".lora_B.weight");
  }
}

}  // namespace
}  // namespace nibble
