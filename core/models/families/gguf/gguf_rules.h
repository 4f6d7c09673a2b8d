#pragma once
// What config.json says of a family besides sizes, from the keys and tensors of its GGUF file (GgufForm::config).

#include <nlohmann/json_fwd.hpp>

#include "nibble/core/models/families/gguf/gguf_form.h"
#include "nibble/core/models/families/gguf/gguf_keys.h"

namespace nibble {

/// Latent attention, with experts or without (DeepSeek V2 and V3, GLM-4.7-Flash, Youtu).
inline constexpr GgufForm kDeepseek2 = {.architecture = "deepseek2",
                                        .mixture = true,
                                        .says_routes = true,
                                        .yarn = true,
                                        .no_adapters = true,
                                        .export_only = true};

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

}  // namespace nibble
