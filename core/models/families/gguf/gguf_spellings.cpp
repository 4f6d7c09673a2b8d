#include "nibble/core/models/families/gguf/gguf_spellings.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

namespace nibble {

namespace {

struct Spelling {
  std::string_view config;  ///< several, apart by |
  std::string_view file;    ///< below the architecture, or in full
};

// Of several rows that have a key the first one counts whose other key the file has.
constexpr Spelling kSpellings[] = {
    {"num_experts|num_local_experts|n_routed_experts|moe_num_experts", "expert_count"},
    {"num_experts_per_tok|num_experts_per_token|moe_k|top_k_experts", "expert_used_count"},
    {"moe_intermediate_size|intermediate_size", "expert_feed_forward_length"},
    {"shared_expert_intermediate_size|shared_intermediate_size|moe_shared_expert_intermediate_size",
     "expert_shared_feed_forward_length"},
    {"n_shared_experts|num_shared_experts|moe_num_shared_experts", "expert_shared_count"},
    {"first_k_dense_replace|num_dense_layers|moe_layer_start_index", "leading_dense_block_count"},
    {"interleave_moe_layer_step", "interleave_moe_layer_step"},
    {"n_group", "expert_group_count"},
    {"topk_group", "expert_group_used_count"},
    {"routed_scaling_factor", "expert_weights_scale"},
    {"moe_latent_size", "moe_latent_size"},
    {"q_lora_rank", "attention.q_lora_rank"},
    {"kv_lora_rank", "attention.kv_lora_rank"},
    {"qk_nope_head_dim", "attention.key_length_mla"},
    {"v_head_dim", "attention.value_length_mla"},
    {"qk_rope_head_dim", "rope.dimension_count"},
    {"mamba_d_state|state_size|ssm_state_size|linear_key_head_dim", "ssm.state_size"},
    {"mamba_d_conv|conv_kernel|linear_conv_kernel_dim", "ssm.conv_kernel"},
    {"mamba_n_heads|mamba_num_heads|num_heads|linear_num_value_heads|time_step_rank|mamba_dt_rank",
     "ssm.time_step_rank"},
    {"mamba_n_groups|n_groups|linear_num_key_heads", "ssm.group_count"},
    {"mamba_d_ssm|mamba_d_head|mamba_head_dim|mamba_expand|expand|linear_value_head_dim", "ssm.inner_size"},
    {"mixer_rms_eps", "ssm.dt_b_c_rms_epsilon"},
    {"conv_L_cache", "shortconv.l_cache"},
    {"linear_head_dim", "kda.head_dim"},
    {"head_dim", "attention.key_length_swa"},  // Gemma 4
    {"global_head_dim", "attention.key_length"},
    {"num_global_key_value_heads", "attention.head_count_kv"},
    {"num_kv_shared_layers", "attention.shared_kv_layers"},
    {"hidden_size_per_layer_input", "embedding_length_per_layer_input"},
    {"rope_local_base_freq|rope_parameters.sliding_attention.rope_theta", "rope.freq_base_swa"},
    {"rope_parameters.full_attention.rope_theta", "rope.freq_base"},
    {"rope_scaling.factor", "rope.scaling.factor"},
    {"rope_scaling.original_max_position_embeddings|original_max_position_embeddings",
     "rope.scaling.original_context_length"},
    {"rope_scaling.attention_factor", "rope.scaling.attn_factor"},
    {"rope_scaling.beta_fast", "rope.scaling.yarn_beta_fast"},
    {"rope_scaling.beta_slow", "rope.scaling.yarn_beta_slow"},
    {"rope_scaling.mscale|rope_scaling.mscale_all_dim", "rope.scaling.yarn_log_multiplier"},
    {"attn_logit_softcapping", "attn_logit_softcapping"},
    {"final_logit_softcapping", "final_logit_softcapping"},
    {"embedding_multiplier", "embedding_scale"},
    {"residual_multiplier", "residual_scale"},
    {"attention_multiplier", "attention.scale"},
    {"logits_scaling|logit_scale", "logit_scale"},
    {"clip_qkv", "attention.clamp_kqv"},
    {"bos_token_id", "tokenizer.ggml.bos_token_id"},
    {"eos_token_id", "tokenizer.ggml.eos_token_id"},
};

std::vector<Spelling> spellings_of(const ConfigKeys& keys) {
  std::vector<Spelling> rows = {{keys.width, "embedding_length"},
                                {keys.mlp_width, "feed_forward_length"},
                                {keys.layers, "block_count"},
                                {keys.heads, "attention.head_count"},
                                {keys.kv_heads, "attention.head_count_kv"},
                                {keys.max_positions, "context_length"},
                                {keys.norm_eps, "attention.layer_norm_rms_epsilon"},
                                {keys.norm_eps, "attention.layer_norm_epsilon"},
                                {keys.rope_base, "rope.freq_base"},
                                {keys.rotary_share, "rope.dimension_count"},
                                {keys.window, "attention.sliding_window"},
                                {keys.window_period, "attention.sliding_window_pattern"}};
  rows.insert(rows.end(), std::begin(kSpellings), std::end(kSpellings));
  for (const std::string_view size : {keys.head_size, std::string_view("head_dim")}) {
    rows.push_back({size, "attention.key_length"});
    rows.push_back({size, "attention.head_count"});
  }
  return rows;
}

bool has_spelling(std::string_view spellings, std::string_view key) {
  while (!spellings.empty()) {
    const size_t end = std::min(spellings.find('|'), spellings.size());
    if (spellings.substr(0, end) == key) return true;
    spellings.remove_prefix(std::min(end + 1, spellings.size()));
  }
  return false;
}

bool is_of_key(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.'; }

}  // namespace

std::string in_keys_of_file(const std::string& message, const GgufFile& file, const Family& family) {
  const std::string prefix = file.text("general.architecture").value_or("") + ".";
  const std::vector<Spelling> rows = spellings_of(family.keys);
  const auto in_file = [&](const std::string& word) {
    for (const Spelling& row : rows) {
      if (!has_spelling(row.config, word)) continue;
      for (const std::string& key : {prefix + std::string(row.file), std::string(row.file)}) {
        if (file.metadata().contains(key)) return key;
      }
    }
    return word;
  };
  std::string result;
  for (size_t begin = 0; begin < message.size();) {
    size_t end = begin;
    while (end < message.size() && is_of_key(message[end])) ++end;
    result += end > begin ? in_file(message.substr(begin, end - begin)) : message.substr(begin, 1);
    begin = std::max(end, begin + 1);
  }
  return result;
}

}  // namespace nibble
