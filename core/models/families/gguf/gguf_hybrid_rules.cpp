// config.json of families with state spaces, delta nets and short convolutions, from their GGUF files.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "nibble/core/models/families/gguf/gguf_rules.h"

namespace nibble {

namespace {

using Json = nlohmann::ordered_json;

// Attention has heads in the layers that have it.
std::vector<bool> attending(const GgufKeys& keys) {
  std::vector<bool> result;
  for (const int64_t heads : keys.by_layer("attention.head_count_kv")) result.push_back(heads > 0);
  if (result.empty()) keys.fail("attention.head_count_kv", "is missing");
  return result;
}

Json layer_types(const std::vector<bool>& attending, const char* attention, const char* other) {
  Json types = Json::array();
  for (const bool attends : attending) types.push_back(attends ? attention : other);
  return types;
}

// Every period-th layer, from `offset` on. No layer is one of a period longer than the model.
void say_period(const GgufKeys& keys, const std::vector<bool>& layers, const std::string& kind, Json& config) {
  const auto count = static_cast<int64_t>(layers.size());
  for (int64_t period = 1; period <= count + 1; ++period) {
    for (int64_t offset = 0; offset < period; ++offset) {
      int64_t l = 0;
      while (l < count && layers[static_cast<size_t>(l)] == (l % period == offset)) ++l;
      if (l < count) continue;
      config[kind + "_layer_period"] = period;
      config[kind + "_layer_offset"] = offset;
      return;
    }
  }
  keys.fail("block_count", "is of layers of kind \"" + kind + "\" without a period");
}

int64_t quotient(const GgufKeys& keys, const std::string& key, int64_t by) {
  const int64_t value = keys.needed(key);
  if (value % by != 0) keys.fail(key, "is no multiple of " + std::to_string(by));
  return value / by;
}

int64_t expansion(const GgufKeys& keys, const Json& config) {
  return quotient(keys, "ssm.inner_size", config.at("hidden_size"));
}

// A Mamba-2 as Falcon-H1, Bamba and Granite 4 spell it.
void say_mamba2(const GgufKeys& keys, Json& config) {
  const int64_t heads = keys.needed("ssm.time_step_rank");
  config["mamba_n_heads"] = heads;
  config["mamba_d_head"] = quotient(keys, "ssm.inner_size", heads);
  config["mamba_n_groups"] = keys.needed("ssm.group_count");
  config["mamba_d_state"] = keys.needed("ssm.state_size");
  config["mamba_d_conv"] = keys.needed("ssm.conv_kernel");
  config["mamba_conv_bias"] = true;
  config["mamba_proj_bias"] = false;
}

}  // namespace

void gguf_lfm2(const GgufKeys& keys, Json& config) {
  config["block_auto_adjust_ff_dim"] = false;
  config["layer_types"] = layer_types(attending(keys), "full_attention", "conv");
  config["conv_L_cache"] = keys.needed("shortconv.l_cache");
  config["conv_bias"] = false;
}

void gguf_lfm2_moe(const GgufKeys& keys, Json& config) {
  gguf_lfm2(keys, config);
  gguf_routes(
      keys, config,
      {.experts = "num_experts", .chosen = "num_experts_per_tok", .shared = nullptr, .dense = "num_dense_layers"},
      true);
  config["use_expert_bias"] = true;
}

void gguf_mamba(const GgufKeys& keys, Json& config) {
  config["state_size"] = keys.needed("ssm.state_size");
  config["conv_kernel"] = keys.needed("ssm.conv_kernel");
  config["expand"] = expansion(keys, config);
  config["time_step_rank"] = keys.needed("ssm.time_step_rank");
  config["use_conv_bias"] = true;
  config["use_bias"] = false;
  if (const auto eps = keys.number("ssm.dt_b_c_rms_epsilon")) config["mixer_rms_eps"] = *eps;
}

void gguf_mamba2(const GgufKeys& keys, Json& config) {
  gguf_mamba(keys, config);
  const int64_t heads = keys.needed("ssm.time_step_rank");
  config["num_heads"] = heads;
  config["head_dim"] = quotient(keys, "ssm.inner_size", heads);
  config["n_groups"] = keys.needed("ssm.group_count");
}

void gguf_jamba(const GgufKeys& keys, Json& config) {
  config["mamba_d_state"] = keys.needed("ssm.state_size");
  config["mamba_d_conv"] = keys.needed("ssm.conv_kernel");
  config["mamba_expand"] = expansion(keys, config);
  config["mamba_dt_rank"] = keys.needed("ssm.time_step_rank");
  config["mamba_conv_bias"] = true;
  config["mamba_proj_bias"] = false;
  say_period(keys, attending(keys), "attn", config);
  config["num_experts"] = std::max<int64_t>(1, keys.integer("expert_count").value_or(1));
  config["num_experts_per_tok"] = std::max<int64_t>(1, keys.integer("expert_used_count").value_or(1));
  std::vector<bool> sparse;
  for (int64_t l = 0; l < keys.layers(); ++l)
    sparse.push_back(keys.has("blk." + std::to_string(l) + ".ffn_gate_inp.weight"));
  if (config["num_experts"] > 1) say_period(keys, sparse, "expert", config);
}

void gguf_qwen3_5(const GgufKeys& keys, Json& config) {
  std::vector<bool> attends;
  for (const int64_t recurrent : keys.by_layer("attention.recurrent_layers")) attends.push_back(recurrent == 0);
  const int64_t interval = keys.integer("full_attention_interval").value_or(4);
  for (int64_t l = static_cast<int64_t>(attends.size()); l < keys.layers(); ++l)
    attends.push_back((l + 1) % interval == 0);
  const int64_t heads = keys.needed("ssm.time_step_rank");
  config["layer_types"] = layer_types(attends, "full_attention", "linear_attention");
  config["linear_conv_kernel_dim"] = keys.needed("ssm.conv_kernel");
  config["linear_num_key_heads"] = keys.needed("ssm.group_count");
  config["linear_num_value_heads"] = heads;
  config["linear_key_head_dim"] = keys.needed("ssm.state_size");
  config["linear_value_head_dim"] = quotient(keys, "ssm.inner_size", heads);
  if (!keys.has_experts()) return;
  gguf_experts(keys, config);
  config["norm_topk_prob"] = true;
  config["shared_expert_intermediate_size"] = keys.needed("expert_shared_feed_forward_length");
}

void gguf_qwen3_next(const GgufKeys& keys, Json& config) {
  gguf_qwen3_5(keys, config);
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = Json::array();
  if (!keys.has_experts()) config["num_experts"] = 0;
}

void gguf_kimi_linear(const GgufKeys& keys, Json& config) {
  gguf_latents(keys, config);
  gguf_routes(keys, config, {"num_experts", "num_experts_per_token", "num_shared_experts", "first_k_dense_replace"},
              true);
  config["layer_types"] = layer_types(attending(keys), "full_attention", "linear_attention");
  config["linear_num_heads"] = config.at("num_attention_heads");
  config["linear_head_dim"] = keys.needed("kda.head_dim");
  config["linear_conv_kernel_dim"] = keys.needed("ssm.conv_kernel");
}

// The file's weights have the multipliers in them: those of the model are 1.
void gguf_falcon_h1(const GgufKeys& keys, Json& config) {
  say_mamba2(keys, config);
  config["mamba_d_ssm"] = keys.needed("ssm.inner_size");
  config["mamba_rms_norm"] = keys.has("blk.0.ssm_norm.weight");
  config["mamba_norm_before_gate"] = false;
  config["projectors_bias"] = false;
}

void gguf_bamba(const GgufKeys& keys, Json& config) {
  const int64_t width = config.at("hidden_size"), heads = config.at("num_attention_heads");
  if (2 * keys.integer("rope.dimension_count").value_or(0) * heads != width)
    keys.fail("rope.dimension_count", "is not half a head, of which the rows of queries and keys are in order");
  say_mamba2(keys, config);
  config["mamba_expand"] = expansion(keys, config);
  const std::vector<bool> attends = attending(keys);
  Json indices = Json::array();
  for (size_t l = 0; l < attends.size(); ++l) {
    if (attends[l]) indices.push_back(l);
  }
  config["attn_layer_indices"] = indices;
}

void gguf_granite_hybrid(const GgufKeys& keys, Json& config) {
  gguf_granite(keys, config);
  const bool spaces = keys.says("ssm.state_size");
  if (spaces) say_mamba2(keys, config);
  config["mamba_expand"] = spaces ? expansion(keys, config) : 2;
  if (!spaces) config["mamba_n_heads"] = config.at("num_attention_heads");  // is asked for all the same
  config["layer_types"] = layer_types(attending(keys), "attention", "mamba");
  config["position_embedding_type"] = keys.flag("rope.scaling.finetuned", true) ? "rope" : "nope";
  config["num_local_experts"] = keys.integer("expert_count").value_or(0);
  if (!keys.has_experts()) return;
  config["num_experts_per_tok"] = keys.needed("expert_used_count");
  config["intermediate_size"] = config.at("shared_intermediate_size");
  config["shared_intermediate_size"] = keys.needed("expert_shared_feed_forward_length");
}

void gguf_nemotron_h(const GgufKeys& keys, Json& config) {
  const std::vector<bool> attends = attending(keys);
  const std::vector<int64_t> widths = keys.by_layer("feed_forward_length");
  const int64_t heads = keys.needed("ssm.time_step_rank");
  std::string kinds;
  for (size_t l = 0; l < attends.size(); ++l) {
    const bool sparse = keys.has("blk." + std::to_string(l) + ".ffn_gate_inp.weight");
    kinds += attends[l] ? '*' : widths.at(l) == 0 ? 'M' : sparse ? 'E' : '-';
    if (kinds.back() == '-') config["intermediate_size"] = widths[l];
  }
  config["hybrid_override_pattern"] = kinds;
  config["mamba_num_heads"] = heads;
  config["mamba_head_dim"] = quotient(keys, "ssm.inner_size", heads);
  config["n_groups"] = keys.needed("ssm.group_count");
  config["ssm_state_size"] = keys.needed("ssm.state_size");
  config["conv_kernel"] = keys.needed("ssm.conv_kernel");
  config["use_conv_bias"] = true;
  config["use_bias"] = false;
  config["mlp_bias"] = false;
  if (!keys.has_experts()) return;
  gguf_routes(keys, config, {.dense = nullptr}, false);
  config["moe_shared_expert_intermediate_size"] = keys.needed("expert_shared_feed_forward_length");
  if (const auto latent = keys.integer("moe_latent_size")) config["moe_latent_size"] = *latent;
}

}  // namespace nibble
