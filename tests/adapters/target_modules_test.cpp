#include "nibble/adapters/target_modules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nibble/core/base/error.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Twelve layers of a Llama and its head.
std::vector<std::string> llama() {
  std::vector<std::string> modules;
  for (int l = 0; l < 12; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      modules.push_back(layer + name);
    }
  }
  modules.push_back("lm_head");
  return modules;
}

TargetModules match(const AdapterOptions& options) {
  return match_target_modules(llama(), "lm_head", "llama", options);
}

AdapterOptions with_names(std::vector<std::string> names) {
  AdapterOptions options;
  options.target_modules.names = std::move(names);
  return options;
}

AdapterOptions with_pattern(std::string pattern) {
  AdapterOptions options;
  options.target_modules.pattern = std::move(pattern);
  return options;
}

TEST(TargetModules, NoTargetsMeanPeftsDefaultOfTheFamily) {
  const TargetModules found = match(AdapterOptions{});
  EXPECT_EQ(found.modules.size(), 24u);
  EXPECT_EQ(found.modules[0], "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(found.modules[1], "model.layers.0.self_attn.v_proj");
  EXPECT_THROW(match_target_modules(llama(), "lm_head", "unheard", AdapterOptions{}), UsageError);
  for (const auto& [types, names] : std::vector<std::pair<std::vector<const char*>, std::vector<std::string>>>{
           {{"llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "opt", "stablelm",
             "gptj", "gpt_neo"},
            {"q_proj", "v_proj"}},
           {{"phi"}, {"q_proj", "v_proj", "fc1", "fc2"}},
           {{"codegen"}, {"qkv_proj"}},
           {{"gpt2", "gpt_bigcode"}, {"c_attn"}},
           {{"gpt_neox", "falcon", "bloom"}, {"query_key_value"}},
           {{"mpt"}, {"Wqkv"}}}) {
    for (const char* type : types) EXPECT_EQ(default_target_modules(type), names) << type;
  }
  for (const char* type : {"phi3", "gemma3", "phimoe"}) EXPECT_THROW(default_target_modules(type), UsageError) << type;
}

TEST(TargetModules, ANameIsAWholePathOrItsEndAfterADot) {
  EXPECT_THAT(match(with_names({"1.self_attn.q_proj"})).modules, ElementsAre("model.layers.1.self_attn.q_proj"));
  EXPECT_THAT(match(with_names({"model.layers.3.mlp.up_proj"})).modules, ElementsAre("model.layers.3.mlp.up_proj"));
  EXPECT_THAT(match(with_names({"lm_head"})).modules, ElementsAre("lm_head"));
  EXPECT_THROW(match(with_names({"proj"})), UsageError);
}

TEST(TargetModules, AStringIsOneExpressionOverTheWholePath) {
  EXPECT_THAT(match(with_pattern(R"(.*\.1\.self_attn\.[qk]_proj)")).modules,
              ElementsAre("model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.k_proj"));
  EXPECT_THROW(match(with_pattern("q_proj")), UsageError);
  EXPECT_EQ(match(with_pattern(".*")).modules.size(), 85u) << "the head too: only all-linear leaves it out";
}

TEST(TargetModules, AllLinearIsEveryLinearButTheHeadInAnyCase) {
  EXPECT_EQ(match(with_pattern("all-linear")).modules.size(), 84u);
  EXPECT_EQ(match(with_pattern("All-Linear")).modules.size(), 84u);
  EXPECT_THROW(match(with_names({"all-linear"})), UsageError) << "in a list it is a name like any other";
}

TEST(TargetModules, ExclusionWins) {
  AdapterOptions options = with_names({"q_proj", "v_proj"});
  options.exclude_modules.names = {"v_proj", "model.layers.0.self_attn.q_proj"};
  EXPECT_EQ(match(options).modules.size(), 11u);
  options = with_pattern("all-linear");
  options.exclude_modules.pattern = R"(.*\.mlp\..*)";
  EXPECT_EQ(match(options).modules.size(), 48u);
  options.exclude_modules.pattern = ".*";
  EXPECT_THROW(match(options), UsageError);
}

TEST(TargetModules, ModulesSavedWholeGetNoAdapter) {
  AdapterOptions options = with_pattern("all-linear");
  options.modules_to_save = {"down_proj", "layers.2"};
  EXPECT_EQ(match(options).modules.size(), 84u - 12u - 6u);
  EXPECT_TRUE(is_module_to_save(options, "model.layers.0.mlp.down_proj"));
  options.modules_to_save = {"norm"};
  EXPECT_TRUE(is_module_to_save(options, "model.norm"));
  EXPECT_TRUE(is_module_to_save(options, "model.layers.0.input_layernorm")) << "PEFT asks for the bare end";
}

TEST(TargetModules, LayersSelectTheFirstNumberOfThePath) {
  AdapterOptions options = with_names({"q_proj"});
  options.layers_to_transform = {{1, 11}};
  EXPECT_THAT(match(options).modules,
              ElementsAre("model.layers.1.self_attn.q_proj", "model.layers.11.self_attn.q_proj"));
  options.layers_pattern = {"layers"};
  EXPECT_EQ(match(options).modules.size(), 2u);
  options.layers_pattern = {"h"};
  EXPECT_THROW(match(options), UsageError);
  options.layers_pattern.clear();
  options.layers_to_transform = {{0, 99}};
  EXPECT_THAT(match(options).unmatched_entries, ElementsAre("layers_to_transform 99"));
  options.layers_to_transform = {{99}};
  EXPECT_THROW(match(options), UsageError);
  options.layers_to_transform = std::vector<int64_t>{};
  EXPECT_EQ(match(options).modules.size(), 12u) << "an empty list selects all, as in PEFT";
  const std::vector<std::string> experts{"model.layers.1.experts.0.w1", "model.layers.0.experts.1.w1"};
  options = with_names({"w1"});
  options.layers_to_transform = {{1}};
  EXPECT_THAT(match_target_modules(experts, "", "mixtral", options).modules,
              ElementsAre("model.layers.1.experts.0.w1"));
}

TEST(TargetModules, AWholePathIsTakenWhateverItsLayer) {
  AdapterOptions options = with_names({"model.layers.5.self_attn.q_proj", "k_proj"});
  options.layers_to_transform = {{0}};
  EXPECT_THAT(match(options).modules,
              ElementsAre("model.layers.0.self_attn.k_proj", "model.layers.5.self_attn.q_proj"));
}

TEST(TargetModules, EntriesThatSelectNothingAreNamed) {
  AdapterOptions options = with_names({"q_proj", "query"});
  options.exclude_modules.names = {"w7"};
  options.rank_pattern = {{"q_proj", 4}, {"v_proj", 2}};
  options.alpha_pattern = {{"nothing", 1}};
  EXPECT_THAT(match(options).unmatched_entries, ElementsAre("target_modules \"query\"", "exclude_modules \"w7\"",
                                                            "rank_pattern \"v_proj\"", "alpha_pattern \"nothing\""));
}

TEST(TargetModules, NothingSelectedListsWhatThereIs) {
  try {
    match(with_names({"query", "value"}));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("query, value"));
    EXPECT_THAT(error.what(), HasSubstr("down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"));
  }
}

TEST(TargetModules, PatternsOfRankAndAlphaTakeTheFirstKeyThatMatchesTheEnd) {
  AdapterOptions options;
  options.r = 4;
  options.lora_alpha = 8;
  options.rank_pattern = {{"layers.1.self_attn.q_proj", 2}, {"down_proj", 6}, {"model.layers.0.mlp.down_proj", 9}};
  options.alpha_pattern = {{"v_proj", 3}, {"model.layers.0.mlp.down_proj", 24}, {R"(layers\.\d\.mlp\..*)", 1}};
  EXPECT_EQ(rank_of(options, "model.layers.1.self_attn.q_proj"), 2);
  EXPECT_EQ(rank_of(options, "model.layers.11.self_attn.q_proj"), 4);
  EXPECT_EQ(rank_of(options, "model.layers.0.mlp.down_proj"), 6);
  EXPECT_EQ(rank_of(options, "model.layers.0.mlp.xdown_proj"), 4) << "a key begins at a dot";
  EXPECT_EQ(alpha_of(options, "model.layers.0.mlp.down_proj"), 24);
  EXPECT_EQ(alpha_of(options, "model.layers.1.mlp.down_proj"), 1);
  EXPECT_EQ(alpha_of(options, "model.layers.1.self_attn.v_proj"), 3);
  EXPECT_EQ(alpha_of(options, "model.layers.1.self_attn.k_proj"), 8);
  EXPECT_EQ(lora_scaling(options, "model.layers.1.self_attn.k_proj", 4), 2);
  options.use_rslora = true;
  EXPECT_EQ(lora_scaling(options, "model.layers.1.self_attn.k_proj", 4), 4);
}

// As PEFT: it is no module there.
TEST(TargetModules, PatternsMeanTheTensorOfARouterThatIsATarget) {
  AdapterOptions options;
  options.alpha_pattern = {{"gate", 7}, {"gate.weight", 5}};
  options.rank_pattern = {{"gate.weight", 3}};
  EXPECT_EQ(alpha_of(options, "model.layers.0.mlp.gate"), 7);
  options.target_parameters = {"gate.weight"};
  EXPECT_EQ(alpha_of(options, "model.layers.0.mlp.gate"), 5);
  EXPECT_EQ(rank_of(options, "model.layers.0.mlp.gate"), 3);
  EXPECT_NO_THROW(check_rank(options, "model.layers.0.mlp.gate", 3, "file"));
  EXPECT_THROW(check_rank(options, "model.layers.0.mlp.gate", options.r, "file"), InputError);
}

TEST(TargetModules, NamesAreShortWhenTheySayTheSame) {
  AdapterOptions options = with_pattern("all-linear");
  const std::vector<std::string> all = llama();
  EXPECT_THAT(target_names(match(options).modules, all, options, "lm_head"),
              ElementsAre("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"));
  options.exclude_modules.names = {"model.layers.3.mlp.up_proj", "v_proj"};
  EXPECT_THAT(target_names(match(options).modules, all, options, "lm_head"),
              ElementsAre("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj"))
      << "the exclusions are saved beside the names";
  const std::vector<std::string> one{"model.layers.1.self_attn.q_proj"};
  EXPECT_EQ(target_names(one, all, AdapterOptions{}, "lm_head"), one);
}

// Numbers alone would name layers in PEFT.
TEST(TargetModules, NamesThatEndInNumbersKeepWhatStandsBeforeThem) {
  const std::vector<std::string> modules = {"model.layers.0.mamba.in_proj",
                                            "model.layers.0.block.self_attn.linear_q_adapter_list.0.1",
                                            "model.altup_projections.0"};
  EXPECT_THAT(target_names(modules, modules, AdapterOptions{}, "lm_head"),
              ElementsAre("altup_projections.0", "in_proj", "linear_q_adapter_list.0.1"));
}

TEST(TargetModules, MambasOutputIsRefusedWherePeftRefusesIt) {
  const std::vector<std::string> modules = {"model.layers.0.mamba.in_proj", "model.layers.0.mamba.out_proj"};
  const AdapterOptions all = with_pattern("all-linear"), input = with_names({"in_proj"});
  for (const char* type : {"falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"}) {
    EXPECT_EQ(match_target_modules(modules, "lm_head", type, input).modules.size(), 1u);
    try {
      match_target_modules(modules, "lm_head", type, all);
      ADD_FAILURE() << "accepted for " << type;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("target_modules select model.layers.0.mamba.out_proj, where PEFT refuses"));
    }
  }
  EXPECT_EQ(match_target_modules(modules, "lm_head", "bamba", all).modules.size(), 2u);
}

TEST(AdapterOptions, ValuesThatCannotBeAreRefusedWithTheirPlace) {
  const auto refuses = [](auto change, const std::string& part) {
    AdapterOptions options;
    change(options);
    try {
      check_options(options, "recipe: adapter");
      ADD_FAILURE() << "accepted: " << part;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), ::testing::StartsWith("recipe: adapter: "));
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  };
  EXPECT_NO_THROW(check_options(AdapterOptions{}, "recipe: adapter"));
  refuses([](AdapterOptions& o) { o.r = 0; }, "r is 0");
  refuses([](AdapterOptions& o) { o.lora_dropout = 1; }, "lora_dropout");
  refuses([](AdapterOptions& o) { o.lora_alpha = 1e308 * 10; }, "lora_alpha");
  refuses([](AdapterOptions& o) { o.rank_pattern = {{"q", -1}}; }, "rank_pattern \"q\" is -1");
  refuses([](AdapterOptions& o) { o.alpha_pattern = {{"(", 1}}; }, "no regular expression");
  refuses([](AdapterOptions& o) { o.target_modules.pattern = "["; }, "no regular expression");
  refuses([](AdapterOptions& o) { o.modules_to_save = {"("}; }, "no regular expression");
  refuses([](AdapterOptions& o) { o.layers_pattern = {"layers"}; }, "layers_to_transform");
  refuses(
      [](AdapterOptions& o) {
        o.target_modules.pattern = "all-linear";
        o.layers_to_transform = {{1}};
      },
      "layers_to_transform needs target_modules as a list");
}

}  // namespace
}  // namespace nibble
