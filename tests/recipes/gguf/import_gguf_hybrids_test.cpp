// Families whose tensors GGUF files have in another form: decays, orders of heads, lists of layers.

#include <algorithm>
#include <cmath>

#include "nibble/tests/recipes/gguf/import_gguf_fixture.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSizes = R"("hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 40, "max_position_embeddings": 64)";

class ImportGgufHybrids : public ImportGguf {
 protected:
  // bf16: the same bits. f32: the same where the file has the values themselves; of 1 + w and exp(w) the same f32.
  void expect_back(const std::string& config) {
    SCOPED_TRACE(config);
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const fs::path model = random_model(config, dtype);
      const std::string type = dtype == DType::f32 ? "f32" : "bf16";
      const fs::path file = exported(model, type);
      const std::string bytes = test::read_bytes(file);
      const fs::path back = imported(file);
      dtype == DType::bf16 ? expect_same_weights(back, model) : expect_same_in_file(back, model);
      expect_same_config(read_decoder_config(back), read_decoder_config(model));
      EXPECT_EQ(read_decoder_config(back).max_positions, read_decoder_config(model).max_positions);
      EXPECT_TRUE(test::read_bytes(exported(back, type)) == bytes) << "another file of what came back";
    }
  }

  void expect_same_in_file(const fs::path& got, const fs::path& want) {
    const CheckpointDir a(got), b(want);
    ASSERT_EQ(a.names(), b.names());
    const float offset = read_decoder_config(want).norm.weight_offset;
    for (const std::string& name : b.names()) {
      ASSERT_EQ(a.at(name).shape(), b.at(name).shape()) << name;
      const auto x = a.at(name).span<const float>(), y = b.at(name).span<const float>();
      const bool is_log = name.ends_with("A_log");
      const bool is_sum = offset != 0 && name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight");
      const auto in_file = [&](float value) { return is_log ? std::exp(value) : is_sum ? value + offset : value; };
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(in_file(x[i]), in_file(y[i])) << name << " " << i;
        const double near = is_sum ? 2.4e-7 : is_log && std::abs(y[i]) < 1 ? 6e-8 : 0;
        ASSERT_NEAR(x[i], y[i], near) << name << " " << i;
      }
    }
  }

  void expect_back(const std::string& model_type, const std::string& keys) {
    expect_back("{\"model_type\": \"" + model_type + "\", " + keys + "}");
  }
};

TEST_F(ImportGgufHybrids, MambaComesBack) {
  const std::string sizes = R"("hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 40, "state_size": 8)";
  expect_back("mamba", sizes + R"(, "time_step_rank": 6, "conv_kernel": 3, "layer_norm_epsilon": 1e-4)");
  expect_back("mamba", sizes + R"(, "tie_word_embeddings": false)");
  expect_back("falcon_mamba", sizes + R"(, "mixer_rms_eps": 1e-3)");
  expect_back("mamba2", sizes + R"(, "num_heads": 4, "head_dim": 16, "n_groups": 2, "tie_word_embeddings": true)");
}

TEST_F(ImportGgufHybrids, Lfm2ComesBack) {
  const std::string layers = R"(, "layer_types": ["conv", "full_attention", "conv", "conv"], "conv_L_cache": 4)";
  expect_back("lfm2", kSizes + layers + R"(, "block_auto_adjust_ff_dim": false, "norm_eps": 1e-4)");
  expect_back("lfm2", kSizes + layers + R"(, "block_multiple_of": 8, "tie_embedding": false)");
  expect_back("lfm2_moe", kSizes + layers + R"(, "num_experts": 4, "num_experts_per_tok": 2, "num_dense_layers": 1,
      "moe_intermediate_size": 12, "routed_scaling_factor": 1.5)");
}

constexpr const char* kMamba2 = R"(, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 8,
    "mamba_d_conv": 4, "mamba_expand": 2)";

TEST_F(ImportGgufHybrids, Granite4ComesBack) {
  const std::string mixed = kMamba2 + std::string(R"(, "layer_types": ["mamba", "attention", "mamba", "mamba"],
      "shared_intermediate_size": 40, "embedding_multiplier": 3.0, "residual_multiplier": 0.5,
      "attention_multiplier": 0.3, "logits_scaling": 2.0)");
  const std::string experts = R"(, "num_local_experts": 4, "num_experts_per_tok": 2)";
  expect_back("granitemoehybrid", kSizes + mixed + R"(, "num_local_experts": 0)");
  expect_back("granitemoehybrid", kSizes + mixed + experts + R"(, "position_embedding_type": "rope")");
  const std::string attention =
      kMamba2 + std::string(R"(, "layer_types": ["attention", "attention", "attention", "attention"],
      "shared_intermediate_size": 40)");
  expect_back("granitemoehybrid", kSizes + attention + R"(, "num_local_experts": 0)");
  expect_back("granitemoehybrid", kSizes + attention + experts + R"(, "position_embedding_type": "rope")");
  expect_back("bamba", kSizes + std::string(kMamba2) + R"(, "attn_layer_indices": [1, 2])");
}

TEST_F(ImportGgufHybrids, JambaComesBack) {
  const std::string mamba = R"(, "mamba_d_state": 8, "mamba_d_conv": 3, "mamba_dt_rank": 5)";
  expect_back("jamba", kSizes + mamba + R"(, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4,
      "expert_layer_period": 3, "expert_layer_offset": 0, "num_experts_per_tok": 2)");
  expect_back("jamba", kSizes + mamba + R"(, "attn_layer_period": 8, "attn_layer_offset": 3, "num_experts": 1)");
}

TEST_F(ImportGgufHybrids, NemotronHComesBack) {
  const std::string mamba = R"(, "head_dim": 8, "mamba_num_heads": 4, "mamba_head_dim": 12, "n_groups": 2,
      "ssm_state_size": 8, "layer_norm_epsilon": 1e-4)";
  expect_back("nemotron_h", kSizes + mamba + R"(, "hybrid_override_pattern": "M-*M")");
  const std::string experts = kSizes + mamba + R"(, "layers_block_type": ["mamba", "moe", "attention", "moe"],
      "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_group": 2, "topk_group": 1,
      "moe_shared_expert_intermediate_size": 24, "routed_scaling_factor": 2.5)";
  expect_back("nemotron_h", experts);
  expect_back("nemotron_h", experts + R"(, "moe_latent_size": 20)");
}

constexpr const char* kDelta = R"(, "head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "partial_rotary_factor": 0.5,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"])";
constexpr const char* kDeltaExperts = R"(, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 16)";

TEST_F(ImportGgufHybrids, Qwen35ComesBack) {
  expect_back("qwen3_5_text", kSizes + std::string(kDelta));
  expect_back("qwen3_5_moe_text", kSizes + std::string(kDelta) + kDeltaExperts);
}

// Two parts of the file have rows of one projection.
TEST_F(ImportGgufHybrids, Qwen3NextComesBack) {
  expect_back("qwen3_next", kSizes + std::string(kDelta) + kDeltaExperts + R"(, "norm_topk_prob": true)");
}

constexpr const char* kLatents =
    R"(, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10)";
constexpr const char* kRouted = R"(, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
    "n_shared_experts": 2, "first_k_dense_replace": 1)";

TEST_F(ImportGgufHybrids, KimiLinearComesBack) {
  expect_back("kimi_linear", kSizes + std::string(kLatents) + R"(, "linear_num_heads": 4, "linear_head_dim": 8,
      "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"], "num_experts": 4,
      "num_experts_per_token": 2, "moe_intermediate_size": 12, "num_shared_experts": 1, "first_k_dense_replace": 2,
      "model_max_length": 64)");
}

// A matrix of keys that is the other way round in the file, and one of values.
TEST_F(ImportGgufHybrids, LatentAttentionComesBack) {
  const std::string all = kSizes + std::string(kLatents);
  expect_back("youtu", all + R"(, "q_lora_rank": 20)");
  expect_back("deepseek_v2", all + kRouted + R"(, "q_lora_rank": null, "topk_method": "greedy", "rope_scaling": {
      "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8, "mscale": 0.707,
      "mscale_all_dim": 0.707})");
  expect_back("deepseek_v3", all + kRouted + R"(, "q_lora_rank": 20, "n_group": 2, "topk_group": 1)");
}

TEST_F(ImportGgufHybrids, MixturesWithSigmoidRoutersComeBack) {
  const std::string experts = kSizes + std::string(kRouted) + R"(, "head_dim": 8)";
  expect_back("glm4_moe", experts + R"(, "use_qk_norm": true, "attention_bias": true, "n_group": 1, "topk_group": 1)");
  expect_back("dots1", experts + R"(, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5)");
  expect_back("ernie4_5_moe", kSizes + std::string(R"(, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 12,
      "moe_num_shared_experts": 1, "moe_layer_start_index": 1)"));
}

// Gate and up lie in turns, all matrices the other way round.
TEST_F(ImportGgufHybrids, GptOssComesBack) {
  const std::string all = kSizes + std::string(R"(, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
      "sliding_window": 8, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
      "original_max_position_embeddings": 16)");
  expect_back("gpt_oss", all + R"(, "truncate": false})");
  expect_back("gpt_oss", all + "}");
}

TEST_F(ImportGgufHybrids, Gemma4ComesBack) {
  const std::string gemma = std::string(kSizes) + R"(, "head_dim": 8, "global_head_dim": 16, "sliding_window": 8,
      "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
      "final_logit_softcapping": 6.0, "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})";
  const std::string no_inputs = R"(, "hidden_size_per_layer_input": 0)";
  expect_back("gemma4_text", gemma + no_inputs);
  expect_back("gemma4_text", gemma + R"(, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 40,
      "num_kv_shared_layers": 2, "use_double_wide_mlp": true)");
  expect_back("gemma4_text", gemma + no_inputs + R"(, "attention_k_eq_v": true, "num_global_key_value_heads": 1)");
  expect_back("gemma4_text", gemma + no_inputs + R"(, "enable_moe_block": true, "num_experts": 4, "top_k_experts": 2,
      "moe_intermediate_size": 12)");
}

// As DeepSeek V3 is published: the correction of its router decides between experts by less than bf16 holds.
TEST_F(ImportGgufHybrids, WhatIsF32InAModelOfBf16ComesBackSo) {
  const std::string config = "{\"model_type\": \"deepseek_v3\", " + std::string(kSizes) + kLatents + kRouted +
                             R"(, "q_lora_rank": 20, "n_group": 2, "topk_group": 1})";
  const fs::path model =
      random_model(config, DType::bf16, {"e_score_correction_bias", "layers.2.input_layernorm.weight"});
  expect_same_weights(imported(exported(model, "bf16")), model);
}

constexpr const char* kFalconH1 = R"(, "head_dim": 8, "mamba_d_ssm": 48, "mamba_n_heads": 6, "mamba_d_head": 8,
    "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_rms_norm": true, "mamba_norm_before_gate": false)";

TEST_F(ImportGgufHybrids, FalconH1ComesBack) { expect_back("falcon_h1", kSizes + std::string(kFalconH1)); }

// They are in the weights of the file, so in those of the model that is made of it.
TEST_F(ImportGgufHybrids, MultipliersOfFalconH1ComeBackInItsWeights) {
  const fs::path model = random_model("{\"model_type\": \"falcon_h1\", " + std::string(kSizes) + kFalconH1 + R"(,
      "embedding_multiplier": 2.0, "lm_head_multiplier": 0.7, "key_multiplier": 0.6, "mlp_multipliers": [0.8, 1.3],
      "ssm_multipliers": [0.9, 1.1, 0.7, 1.2, 0.8], "ssm_in_multiplier": 1.4, "ssm_out_multiplier": 0.6,
      "attention_in_multiplier": 1.2, "attention_out_multiplier": 0.7, "tie_word_embeddings": true})",
                                      DType::f32);
  const fs::path file = exported(model);
  const std::string bytes = test::read_bytes(file);
  const fs::path back = imported(file);
  EXPECT_TRUE(test::read_bytes(exported(back)) == bytes);
  const DecoderConfig config = read_decoder_config(back);
  EXPECT_EQ(config.logit_scale, 1);
  EXPECT_FALSE(config.tied_head);
  const CheckpointDir got(back), want(model);
  const char* embedding = "model.embed_tokens.weight";
  EXPECT_EQ(got.at(embedding).data<const float>()[5], 2 * want.at(embedding).data<const float>()[5]);
}

}  // namespace
}  // namespace nibble
