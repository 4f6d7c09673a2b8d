#include "nibble/core/models/families/gguf/gguf_rules.h"

#include <algorithm>
#include <cmath>
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

double rotary_share(int64_t rotated, int64_t head_size) {
  double share = static_cast<double>(rotated) / static_cast<double>(head_size);
  while (static_cast<int64_t>(static_cast<double>(head_size) * share) < rotated) share = std::nextafter(share, 2.0);
  return share;
}

void gguf_routes(const GgufKeys& keys, Json& config, const RouteNames& names, bool normalizes) {
  config[names.experts] = keys.needed("expert_count");
  config[names.chosen] = keys.needed("expert_used_count");
  config["moe_intermediate_size"] = keys.needed("expert_feed_forward_length");
  config["norm_topk_prob"] = keys.flag("expert_weights_norm", normalizes);
  const double scale = keys.number("expert_weights_scale").value_or(0.0);
  config["routed_scaling_factor"] = scale > 0 ? scale : 1.0;
  config["n_group"] = keys.integer("expert_group_count").value_or(1);
  config["topk_group"] = keys.integer("expert_group_used_count").value_or(1);
  if (names.shared) config[names.shared] = keys.integer("expert_shared_count").value_or(0);
  if (names.dense) config[names.dense] = keys.integer("leading_dense_block_count").value_or(0);
}

void gguf_latents(const GgufKeys& keys, Json& config) {
  const int64_t rotated = keys.needed("rope.dimension_count"), rank = keys.integer("attention.q_lora_rank").value_or(0);
  config["num_key_value_heads"] = config.at("num_attention_heads");
  config["q_lora_rank"] = rank > 0 ? Json(rank) : Json();
  config["kv_lora_rank"] = keys.needed("attention.kv_lora_rank");
  config["qk_nope_head_dim"] = keys.needed("attention.key_length_mla") - rotated;
  config["v_head_dim"] = keys.needed("attention.value_length_mla");
}

void gguf_deepseek2(const GgufKeys& keys, Json& config) {
  gguf_latents(keys, config);
  if (config.at("model_type") == "youtu") return;
  gguf_routes(keys, config, {}, false);
  if (config.at("model_type") != "deepseek_v2") return;
  config["topk_method"] = config.at("n_group") == 1 ? "greedy" : "group_limited_greedy";
}

void gguf_glm4_moe(const GgufKeys& keys, Json& config) {
  gguf_routes(keys, config, {}, false);
  gguf_attention_bias(keys, config);
  config["use_qk_norm"] = keys.has("blk.0.attn_q_norm.weight");
}

void gguf_dots1(const GgufKeys& keys, Json& config) {
  gguf_routes(keys, config, {}, false);
  config["sliding_window"] = nullptr;
}

void gguf_ernie4_5_moe(const GgufKeys& keys, Json& config) {
  gguf_routes(keys, config, {"moe_num_experts", "moe_k", "moe_num_shared_experts", "moe_layer_start_index"}, true);
  config["moe_layer_interval"] = 1;
  config["use_bias"] = keys.has("blk.0.attn_q.bias");
}

// Whose ramp of yarn, as published, lies between pairs; files of llama.cpp's converter do not say it.
void gguf_gpt_oss(const GgufKeys& keys, Json& config) {
  config["num_local_experts"] = keys.needed("expert_count");
  config["num_experts_per_tok"] = keys.needed("expert_used_count");
  config["sliding_window"] = window(keys);
  Json& scaling = config["rope_scaling"];
  if (scaling.is_object() && !scaling.contains("truncate")) scaling["truncate"] = false;
  if (scaling.is_null()) scaling = {{"rope_type", "default"}};
}

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

// Of layers that see everything heads have another size, their first pairs alone turn, and values may be the keys.
void gguf_gemma4(const GgufKeys& keys, Json& config) {
  gguf_gemma(keys, config);
  const std::vector<int64_t> slides = keys.by_layer("attention.sliding_window_pattern"),
                             heads = keys.by_layer("attention.head_count_kv"),
                             widths = keys.by_layer("feed_forward_length");
  const int64_t sharing = keys.integer("attention.shared_kv_layers").value_or(0), size = config.at("head_dim");
  Json types = Json::array();
  bool values_are_keys = false;
  for (size_t l = 0; l < slides.size(); ++l) {
    const std::string attention = "blk." + std::to_string(l) + ".attn_";
    types.push_back(slides[l] ? "sliding_attention" : "full_attention");
    if (slides[l]) config["num_key_value_heads"] = heads.at(l);
    if (!slides[l]) config["num_global_key_value_heads"] = heads.at(l);
    values_are_keys = values_are_keys || (keys.has(attention + "k.weight") && !keys.has(attention + "v.weight"));
  }
  if (!values_are_keys && config.contains("num_global_key_value_heads") &&
      config["num_global_key_value_heads"] != config["num_key_value_heads"])
    keys.fail("attention.head_count_kv", "has other numbers for layers that see everything, whose values are not keys");
  if (!values_are_keys) config["num_global_key_value_heads"] = nullptr;
  config["layer_types"] = types;
  config["attention_k_eq_v"] = values_are_keys;
  config["num_kv_shared_layers"] = sharing;
  config["intermediate_size"] = widths.front();
  config["use_double_wide_mlp"] = sharing > 0 && widths.back() == 2 * widths.front();
  config["head_dim"] = keys.needed("attention.key_length_swa");
  config["global_head_dim"] = size;
  config["hidden_size_per_layer_input"] = keys.integer("embedding_length_per_layer_input").value_or(0);
  config["vocab_size_per_layer_input"] = config.at("vocab_size");
  const std::vector<float> factors = keys.values("rope_freqs.weight");
  const int64_t still = std::ranges::count_if(factors, [](float factor) { return factor > 1; });
  Json full = {{"rope_type", "proportional"}, {"rope_theta", config.at("rope_theta")}};
  full["partial_rotary_factor"] = rotary_share(size - 2 * still, size);
  const Json sliding = {{"rope_type", "default"}, {"rope_theta", keys.number("rope.freq_base_swa").value_or(10000.0)}};
  config["rope_parameters"] = {{"full_attention", full}, {"sliding_attention", sliding}};
  config.erase("rope_theta");
  config.erase("rope_scaling");
  config["enable_moe_block"] = keys.has_experts();
  if (!keys.has_experts()) return;
  config["num_experts"] = keys.needed("expert_count");
  config["top_k_experts"] = keys.needed("expert_used_count");
  config["moe_intermediate_size"] = keys.needed("expert_feed_forward_length");
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
