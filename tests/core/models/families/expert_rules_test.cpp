#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nibble/core/base/error.h"
#include "nibble/core/models/decoder_config.h"
#include "nibble/core/models/families/families.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::string config(const std::string& type, const std::string& more) {
  return R"({"model_type": ")" + type + R"(", "hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 6,
      "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 40)" +
         more + "}";
}

std::string refusal(const std::string& type, const std::string& more) {
  try {
    parse_decoder_config(config(type, more), "config.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ExpertRules, ImpossibleNumbersAreRefusedByKey) {
  EXPECT_THAT(refusal("mixtral", R"(, "num_local_experts": 0, "num_experts_per_tok": 1)"),
              HasSubstr("num_local_experts"));
  EXPECT_THAT(refusal("mixtral", R"(, "num_local_experts": 4, "num_experts_per_tok": 5)"),
              HasSubstr("num_experts_per_tok is 5, more than there are experts, 4"));
  EXPECT_THAT(refusal("mixtral", R"(, "num_local_experts": 4, "num_experts_per_tok": 0)"),
              HasSubstr("num_experts_per_tok"));
  EXPECT_THAT(refusal("mixtral", R"(, "num_experts_per_tok": 1)"), HasSubstr("num_local_experts"));
  const std::string glm = R"(, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": )";
  EXPECT_THAT(refusal("glm4_moe", glm + R"(3, "topk_group": 1)"), HasSubstr("n_group is 3"));
  EXPECT_THAT(refusal("glm4_moe", glm + R"(4, "topk_group": 5)"), HasSubstr("topk_group"));
  EXPECT_THAT(refusal("glm4_moe", glm + R"(4, "topk_group": 1)"), HasSubstr("leaves 2 experts"));
  EXPECT_THAT(refusal("gpt_oss", R"(, "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_alpha": 2)"),
              HasSubstr("swiglu_alpha"));
}

TEST(ExpertRules, ChunksOfLlama4FollowLayerTypesOrElseRope) {
  const std::string experts = R"(, "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 24)";
  const auto chunks = [&](const std::string& more) {
    std::vector<int64_t> result;
    for (const LayerConfig& layer : parse_decoder_config(config("llama4_text", experts + more), "config.json").layer)
      result.push_back(layer.chunk);
    return result;
  };
  EXPECT_THAT(chunks(""), ::testing::ElementsAre(8192, 8192, 8192, 0));
  EXPECT_THAT(chunks(R"(, "no_rope_layers": [1, 0, 1, 1], "attention_chunk_size": 16)"),
              ::testing::ElementsAre(16, 0, 16, 16));
  EXPECT_THAT(chunks(R"(, "layer_types": ["full_attention", "chunked_attention", "full_attention",
                         "chunked_attention"])"),
              ::testing::ElementsAre(0, 8192, 0, 8192));
  EXPECT_THAT(refusal("llama4_text", experts + R"(, "layer_types": ["full_attention"])"),
              HasSubstr("layer_types has 1 entries for 4 layers"));
}

// The first published files say 4 for true.
TEST(ExpertRules, QueriesOfLlama4GrowWhereTheFileSaysSoInEitherWay) {
  const std::string experts = R"(, "intermediate_size_mlp": 24, "num_local_experts": 4, "num_experts_per_tok": 1,
      "attn_temperature_tuning": )";
  for (const auto& [said, beta] : {std::pair{"true", 0.1}, {"4", 0.1}, {"false", 0.0}, {"0", 0.0}}) {
    EXPECT_EQ(parse_decoder_config(config("llama4_text", experts + said), "c").query_scaling.beta, beta) << said;
  }
  EXPECT_THAT(refusal("llama4_text", experts + R"("yes")"), HasSubstr("attn_temperature_tuning is \"yes\""));
}

TEST(ExpertRules, BothSpellingsOfTheNumberOfExperts) {
  for (const char* key : {"num_experts", "num_local_experts"}) {
    const DecoderConfig read = parse_decoder_config(
        config("qwen3_moe", R"(, ")" + std::string(key) + R"(": 8, "num_experts_per_tok": 3)"), "config.json");
    EXPECT_EQ(read.experts.value().experts, 8);
  }
}

TEST(ExpertRules, SomeLayersAreDense) {
  const auto dense = [](const std::string& type, const std::string& more) {
    const DecoderConfig read =
        parse_decoder_config(config(type, R"(, "num_experts": 8, "num_experts_per_tok": 3)" + more), "config.json");
    std::string result;
    for (const LayerConfig& layer : read.layer) result += layer.feed_forward ? 'x' : '-';
    return result;
  };
  EXPECT_EQ(dense("qwen3_moe", ""), "xxxx");
  EXPECT_EQ(dense("qwen3_moe", R"(, "decoder_sparse_step": 2)"), "-x-x");
  EXPECT_EQ(dense("qwen3_moe", R"(, "mlp_only_layers": [0, 3])"), "-xx-");
  EXPECT_EQ(dense("glm4_moe", R"(, "first_k_dense_replace": 3)"), "---x");
}

TEST(ExpertRules, TheBalanceIsInTheLossWhereTheFileSaysSo) {
  const std::string base = R"(, "num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.5)";
  EXPECT_FALSE(parse_decoder_config(config("mixtral", base), "c").router_balance());
  const auto balance =
      parse_decoder_config(config("mixtral", base + R"(, "output_router_logits": true)"), "c").router_balance();
  ASSERT_TRUE(balance.has_value());
  EXPECT_EQ(balance->coefficient, 0.5);
  EXPECT_EQ(balance->experts(), 4);
  const std::string unsaid = R"(, "num_experts": 4, "num_experts_per_tok": 2, "output_router_logits": true)";
  EXPECT_EQ(parse_decoder_config(config("qwen3_moe", unsaid), "c").router_aux_loss_coef, 0.001f);
  EXPECT_EQ(parse_decoder_config(config("olmoe", unsaid), "c").router_aux_loss_coef, 0.01f);
  EXPECT_EQ(parse_decoder_config(config("flex_olmo", unsaid), "c").router_aux_loss_coef, 0.01f);
  EXPECT_EQ(parse_decoder_config(config("flint", unsaid), "c").router_aux_loss_coef, 0.0005f);
  for (const char* without : {"glm4_moe", "dots1"}) {
    EXPECT_FALSE(
        parse_decoder_config(config(without, base + R"(, "output_router_logits": true)"), "c").router_balance())
        << without;
  }
}

// Those whose modeling file in Transformers 5.24.0 calls load_balancing_loss_func.
TEST(ExpertRules, FamiliesHaveABalanceWhereTransformersHasIt) {
  std::vector<std::string_view> with;
  for (const Family& family : families()) {
    if (family.aux_loss_coef > 0) with.push_back(family.model_type);
  }
  EXPECT_THAT(with,
              UnorderedElementsAre("ernie4_5_moe", "flex_olmo", "flint", "glm4v_moe_text", "gpt_oss", "granitemoe",
                                   "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "jamba", "laguna",
                                   "lara_mini", "mellum", "minimax_m2", "mixtral", "olmoe", "phimoe", "qwen2_moe",
                                   "qwen3_5_moe_text", "qwen3_moe", "qwen3_next", "qwen3_vl_moe_text"));
}

// n_shared_experts of Nemotron-H says no more than that there is one.
TEST(ExpertRules, SharedExpertsHaveTheWidthOfTheirFamily) {
  const std::string some = R"(, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 3,
      "moe_shared_expert_intermediate_size": 10, "hybrid_override_pattern": "EEEE")";
  EXPECT_EQ(parse_decoder_config(config("nemotron_h", some), "c").experts.value().shared_hidden, 10);
  EXPECT_EQ(parse_decoder_config(config("glm4_moe", some), "c").experts.value().shared_hidden, 18);
  for (const char* type : {"nemotron_h", "hy_v3"}) {
    EXPECT_TRUE(parse_decoder_config(config(type, some + R"(, "mlp_bias": true)"), "c").experts->shared_bias) << type;
  }
}

// What the file says and the family has not.
TEST(ExpertRules, DeepseekV32HasNoBiasesInItsMlps) {
  const std::string latent = R"(, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
      "q_lora_rank": 4, "kv_lora_rank": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4)";
  for (const char* type : {"deepseek_v32", "glm_moe_dsa"}) {
    EXPECT_FALSE(parse_decoder_config(config(type, latent + R"(, "mlp_bias": true)"), "c").mlp_bias) << type;
  }
}

}  // namespace
}  // namespace nibble
