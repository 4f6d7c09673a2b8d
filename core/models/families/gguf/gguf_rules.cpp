#include "nibble/core/models/families/gguf/gguf_rules.h"

#include <nlohmann/json.hpp>

namespace nibble {

namespace {

using Json = nlohmann::ordered_json;

Json window(const GgufKeys& keys) {
  const int64_t size = keys.integer("attention.sliding_window").value_or(0);
  return size > 0 ? Json(size) : Json();
}

Json cap(const GgufKeys& keys, const std::string& key) {
  const std::optional<double> value = keys.number(key);
  return value && *value > 0 ? Json(*value) : Json();
}

void gguf_gemma(const GgufKeys& keys, Json& config) {
  config["sliding_window"] = window(keys);
  config["final_logit_softcapping"] = cap(keys, "final_logit_softcapping");
  config["attention_bias"] = false;
}

}  // namespace

void gguf_biases(const GgufKeys& keys, Json& config) {
  config["attention_bias"] = keys.has("blk.0.attn_q.bias");
  config["mlp_bias"] = keys.has("blk.0.ffn_up.bias");
}

void gguf_attention_bias(const GgufKeys& keys, Json& config) {
  config["attention_bias"] = keys.has("blk.0.attn_q.bias");
}

void gguf_experts(const GgufKeys& keys, Json& config) {
  const std::string type = config.at("model_type");
  config[type.starts_with("qwen") || type == "olmoe" ? "num_experts" : "num_local_experts"] =
      keys.needed("expert_count");
  config["num_experts_per_tok"] = keys.needed("expert_used_count");
  if (!type.starts_with("qwen")) return;
  config["moe_intermediate_size"] = keys.needed("expert_feed_forward_length");
  config["norm_topk_prob"] = type == "qwen3_moe";
}

void gguf_qwen2_moe(const GgufKeys& keys, Json& config) {
  gguf_experts(keys, config);
  config["shared_expert_intermediate_size"] = keys.needed("expert_shared_feed_forward_length");
  config["qkv_bias"] = keys.has("blk.0.attn_q.bias");
}

void gguf_qwen3_moe(const GgufKeys& keys, Json& config) {
  gguf_experts(keys, config);
  gguf_attention_bias(keys, config);
}

void gguf_gemma2(const GgufKeys& keys, Json& config) {
  gguf_gemma(keys, config);
  config["attn_logit_softcapping"] = cap(keys, "attn_logit_softcapping");
}

void gguf_gemma3(const GgufKeys& keys, Json& config) {
  gguf_gemma(keys, config);
  config["rope_local_base_freq"] = keys.number("rope.freq_base_swa").value_or(10000.0);
  config["sliding_window_pattern"] = keys.integer("attention.sliding_window_pattern").value_or(6);
}

void gguf_phi3(const GgufKeys& keys, Json& config) {
  config["sliding_window"] = window(keys);
  config["pad_token_id"] = nullptr;
}

void gguf_gpt_neox(const GgufKeys& keys, Json& config) {
  config["use_parallel_residual"] = keys.flag("use_parallel_residual", true);
  config["attention_bias"] = keys.has("blk.0.attn_qkv.bias");
}

void gguf_falcon(const GgufKeys& keys, Json& config) {
  const int64_t kv_heads = keys.integer("attention.head_count_kv").value_or(1);
  const bool two_norms = keys.has("blk.0.attn_norm_2.weight"), by_group = two_norms || kv_heads > 1;
  config["num_kv_heads"] = kv_heads;
  config["new_decoder_architecture"] = by_group;
  config["num_ln_in_parallel_attn"] = two_norms ? 2 : 1;
  config["multi_query"] = kv_heads == 1;
  config["parallel_attn"] = true;
  config["alibi"] = false;
  config["bias"] = keys.has("blk.0.attn_qkv.bias");
}

void gguf_stablelm(const GgufKeys& keys, Json& config) {
  config["use_parallel_residual"] = !keys.has("blk.0.ffn_norm.weight");
  config["use_qkv_bias"] = keys.has("blk.0.attn_q.bias");
}

void gguf_starcoder2(const GgufKeys& keys, Json& config) { config["use_bias"] = keys.has("blk.0.attn_output.bias"); }

void gguf_olmo(const GgufKeys& keys, Json& config) {
  config["clip_qkv"] = cap(keys, "attention.clamp_kqv");
  gguf_attention_bias(keys, config);
}

void gguf_olmoe(const GgufKeys& keys, Json& config) {
  gguf_experts(keys, config);
  config["norm_topk_prob"] = false;
  gguf_attention_bias(keys, config);
}

void gguf_granite(const GgufKeys& keys, Json& config) {
  config["embedding_multiplier"] = keys.number("embedding_scale").value_or(1.0);
  config["residual_multiplier"] = keys.number("residual_scale").value_or(1.0);
  config["attention_multiplier"] = keys.needed_number("attention.scale");
  config["logits_scaling"] = keys.number("logit_scale").value_or(1.0);
  gguf_biases(keys, config);
}

void gguf_bigcode(const GgufKeys& keys, Json& config) {
  config["multi_query"] = keys.integer("attention.head_count_kv").value_or(1) == 1;
}

void gguf_cohere(const GgufKeys& keys, Json& config) {
  config["logit_scale"] = keys.needed_number("logit_scale");
  gguf_attention_bias(keys, config);
}

void gguf_cohere2(const GgufKeys& keys, Json& config) {
  gguf_cohere(keys, config);
  config["sliding_window"] = window(keys);
  config["sliding_window_pattern"] = keys.integer("attention.sliding_window_pattern").value_or(4);
}

void gguf_granitemoe(const GgufKeys& keys, Json& config) {
  gguf_granite(keys, config);
  gguf_experts(keys, config);
  if (const auto shared = keys.integer("expert_shared_feed_forward_length"))
    config["shared_intermediate_size"] = *shared;
}

}  // namespace nibble
