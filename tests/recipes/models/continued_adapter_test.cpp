#include "nibble/recipes/models/continued_adapter.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/adapters/attach.h"
#include "nibble/core/base/error.h"
#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using namespace nibble::test;
using nlohmann::json;

AdapterRecipe section(const json& adapter) {
  const json recipe = {
      {"model", {{"path", "none"}}}, {"data", {{"train", "none"}}}, {"adapter", adapter}, {"output", {{"dir", "o"}}}};
  return *parse_recipe(recipe.dump(), "recipe").adapter;
}

/// An adapter on a model of this type, as a run of this section leaves it.
struct Left {
  Left(const char* type, const json& adapter)
      : config(parse_decoder_config(R"({"model_type": ")" + std::string(type) + R"(", "hidden_size": 16,
            "intermediate_size": 24, "moe_intermediate_size": 6, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 40, "num_experts": 4, "num_experts_per_tok": 2,
            "rms_norm_eps": 1e-6, "tie_word_embeddings": false})",
                                    "config.json")),
        decoder(random_decoder(config, 1, rank.context())) {
    stored.directory = "runs/a";
    stored.options = attach_adapter(decoder, section(adapter).options, rank.context()).options;
    for (const auto& [name, tensor] : adapter_tensors(decoder)) {
      stored.tensors[name.substr(std::string(kPeftPrefix).size())] = tensor;
    }
  }
  /// What is said of continuing it with this section; empty: nothing.
  std::string refusal(const json& adapter) const {
    try {
      check_continued(section(adapter), stored, config);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }

  Rank rank;
  DecoderConfig config;
  Decoder decoder;
  PeftAdapter stored;
};

TEST(ContinuedAdapter, ModulesToSaveMayHaveTheNamesOfTheFilesOrOfPeft) {
  const Left left("mixtral", {{"target_modules", {"q_proj"}}, {"modules_to_save", {"mlp.gate"}}});
  EXPECT_EQ(left.refusal({{"modules_to_save", {"block_sparse_moe.gate"}}}), "");
  EXPECT_NE(left.refusal({{"modules_to_save", {"block_sparse_moe"}}}), "");
}

TEST(ContinuedAdapter, KeysThatSayAnotherOneAreRefusedWithBothValues) {
  const Left left("llama", {{"r", 4}, {"lora_alpha", 8}, {"target_modules", {"q_proj", "v_proj"}}});
  const std::string config = ", and adapter_config.json of runs/a says ",
                    end = "; leave the key out or give the same value";
  EXPECT_EQ(left.refusal({{"r", 8}}), "adapter.r: is 8" + config + "4" + end);
  EXPECT_EQ(left.refusal({{"lora_alpha", 16}}), "adapter.lora_alpha: is 16" + config + "8" + end);
  EXPECT_EQ(left.refusal({{"init_lora_weights", "pissa"}}),
            "adapter.init_lora_weights: is \"pissa\"" + config + "true" + end);
  EXPECT_EQ(left.refusal({{"target_modules", {"q_proj"}}}),
            "adapter.target_modules: is [\"q_proj\"]" + config + "[\"q_proj\",\"v_proj\"]" + end);
  EXPECT_EQ(left.refusal({{"target_modules", "all-linear"}}),
            "adapter.target_modules: is \"all-linear\"" + config + "[\"q_proj\",\"v_proj\"]" + end);
  EXPECT_EQ(left.refusal({{"exclude_modules", {"v_proj"}}}),
            "adapter.exclude_modules: is [\"v_proj\"]" + config + "null" + end);
  // The key that differs is named, not what stands before it and only says the same in other words.
  EXPECT_EQ(left.refusal({{"target_modules", ".*\\.[qv]_proj"}, {"rank_pattern", {{"v_proj", 2}}}}),
            "adapter.rank_pattern: is {\"v_proj\":2}" + config + "{}" + end);
  EXPECT_EQ(left.refusal({{"layers_to_transform", 0}}), "adapter.layers_to_transform: is [0]" + config + "null" + end);
  EXPECT_EQ(left.refusal({{"trainable_token_indices", {3}}}),
            "adapter.trainable_token_indices: is [3]" + config + "null" + end);
}

TEST(ContinuedAdapter, TheRecipeThatMadeItAndOtherWordsForTheSameAgree) {
  const json made = {{"r", 4},
                     {"lora_alpha", 8},
                     {"target_modules", "all-linear"},
                     {"lora_dropout", 0.1},
                     {"trainable_token_indices", {3, 5}},
                     {"modules_to_save", json::array()}};
  const Left left("llama", made);
  EXPECT_EQ(left.refusal(made), "");
  EXPECT_EQ(left.refusal({{"lora_dropout", 0.5}, {"trainable_token_indices", {{"embed_tokens", {5, 3}}}}}), "");
  EXPECT_EQ(left.refusal({{"target_modules", R"(.*\.layers\..*)"}, {"rank_pattern", {{".*", 4}}}}), "");

  const json on_experts = {{"r", 2}, {"lora_alpha", 4}, {"target_modules", "all-linear"}};
  const Left mixture("qwen3_moe", on_experts);
  EXPECT_EQ(mixture.refusal(on_experts), "");
  const json by_names = {{"target_modules", {"q_proj", "gate_proj", "up_proj", "down_proj"}}};
  EXPECT_EQ(Left("qwen3_moe", by_names).refusal(by_names), "");
  EXPECT_NE(mixture.refusal(by_names), "");
  const json alone = {{"target_modules", json::array()}, {"target_parameters", {"mlp.experts.down_proj"}}};
  EXPECT_EQ(Left("qwen3_moe", alone).refusal(alone), "");
  EXPECT_EQ(Left("qwen3_moe", alone).refusal({{"path", "runs/a"}, {"target_modules", json::array()}}), "");
}

// Rows of tokens that were added to the tokenizer come by themselves.
TEST(ContinuedAdapter, AddedTokensNeedNotBeGiven) {
  Left left("llama", {{"target_modules", {"q_proj"}}, {"trainable_token_indices", {3, 38, 39}}});
  left.config.vocab_size = 38;
  EXPECT_EQ(left.refusal({{"trainable_token_indices", {3}}}), "");
  EXPECT_NE(left.refusal({{"trainable_token_indices", {4}}}), "");
}

}  // namespace
}  // namespace nibble
