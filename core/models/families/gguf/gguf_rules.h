#pragma once
// What config.json says of a family besides sizes, from the keys and tensors of its GGUF file (GgufForm::config).

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "nibble/core/models/families/gguf/gguf_form.h"
#include "nibble/core/models/families/gguf/gguf_keys.h"

namespace nibble {

/// The share of which Transformers' rounding makes this number of rotated elements.
double rotary_share(int64_t rotated, int64_t head_size);

/// How a family spells what routers are; null: it does not say it.
struct RouteNames {
  const char* experts = "n_routed_experts";
  const char* chosen = "num_experts_per_tok";
  const char* shared = "n_shared_experts";
  const char* dense = "first_k_dense_replace";
};
/// Of a family that says everything about them (GgufForm::says_routes).
void gguf_routes(const GgufKeys& keys, nlohmann::ordered_json& config, const RouteNames& names, bool normalizes);
/// What latent attention has.
void gguf_latents(const GgufKeys& keys, nlohmann::ordered_json& config);

void gguf_deepseek2(const GgufKeys& keys, nlohmann::ordered_json& config);

/// Latent attention, with experts or without (DeepSeek V2 and V3, GLM-4.7-Flash, Youtu).
inline constexpr GgufForm kDeepseek2 = {.architecture = "deepseek2",
                                        .mixture = true,
                                        .says_routes = true,
                                        .yarn = true,
                                        .no_adapters = true,
                                        .config = gguf_deepseek2};

void gguf_biases(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_attention_bias(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_experts(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_qwen2_moe(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_qwen3_moe(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_gemma2(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_gemma3(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_phi3(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_gpt_neox(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_falcon(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_stablelm(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_starcoder2(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_olmo(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_olmoe(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_granite(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_bigcode(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_cohere(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_cohere2(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_granitemoe(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_gemma4(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_glm4_moe(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_dots1(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_ernie4_5_moe(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_gpt_oss(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_llama4(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_lfm2(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_lfm2_moe(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_mamba(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_mamba2(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_jamba(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_qwen3_5(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_qwen3_next(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_kimi_linear(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_falcon_h1(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_bamba(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_granite_hybrid(const GgufKeys& keys, nlohmann::ordered_json& config);
void gguf_nemotron_h(const GgufKeys& keys, nlohmann::ordered_json& config);

}  // namespace nibble
