// Hybrids with gated delta nets: Qwen3.5 and Qwen3-Next, OLMo Hybrid, and Kimi delta attention beside latent attention.

#include <algorithm>

#include "nibble/core/models/families/expert_families.h"
#include "nibble/core/models/families/expert_rules.h"
#include "nibble/core/models/families/family_rules.h"
#include "nibble/core/models/families/hybrid_rules.h"
#include "nibble/core/models/families/latent_families.h"

namespace nibble {

namespace {

const std::vector<std::string> kConvolutions = {"q_conv1d", "k_conv1d", "v_conv1d"};

// Which layers have attention: layer_types, or else `absent(l)`.
template <typename Absent>
std::vector<bool> attention_or(const ConfigReader& file, const DecoderConfig& config, const Absent& absent) {
  std::vector<bool> attention = attention_layers(file, config, {"full_attention"}, {"linear_attention"});
  for (int64_t l = 0; attention.size() < config.layer.size(); ++l) attention.push_back(absent(l));
  return attention;
}

// Sizes by the keys of Qwen3.5; key_heads, heads, size: what a file without them means, size 0 by the width.
GatedDeltaConfig read_delta(const ConfigReader& file, const DecoderConfig& config, int64_t key_heads, int64_t heads,
                            int64_t size) {
  GatedDeltaConfig delta;
  delta.width = config.width;
  delta.key_heads = file.integer("linear_num_key_heads", 1, kMaxWidth, key_heads);
  delta.heads = file.integer("linear_num_value_heads", 1, kMaxWidth, heads);
  if (delta.heads % delta.key_heads != 0) file.fail("linear_num_key_heads", "does not divide linear_num_value_heads");
  const int64_t by_width = std::max<int64_t>(1, 3 * config.width / (4 * delta.key_heads));
  delta.key_size = file.integer("linear_key_head_dim", 1, 65536, size > 0 ? size : by_width);
  delta.value_size = file.integer("linear_value_head_dim", 1, 65536, size > 0 ? size : 2 * delta.key_size);
  if (delta.heads * delta.value_size > kMaxWidth || delta.key_heads * delta.key_size > kMaxWidth) {
    file.fail("linear_value_head_dim", "is too large for so many heads");
  }
  delta.taps = file.integer("linear_conv_kernel_dim", 1, kMaxTaps, 4);
  delta.activation = config.activation;
  return delta;
}

// Heads of one size for queries, keys and values; decays by channel.
GatedDeltaConfig kimi_delta(const ConfigReader& file, const DecoderConfig& config, int64_t heads, int64_t size,
                            int64_t taps) {
  if (heads * size > kMaxWidth) file.fail("head_dim", "is too large for so many heads");
  return {.width = config.width,
          .key_heads = heads,
          .heads = heads,
          .key_size = size,
          .value_size = size,
          .taps = taps,
          .eps = config.norm.eps,
          .activation = config.activation,
          .apart = true,
          .decay_shape = {},
          .channel_decay = true,
          .sigmoid_gate = true};
}

void read_kimi_experts(const ConfigReader& file, DecoderConfig& config, int64_t groups, int64_t top_groups,
                       double scale, int64_t dense) {
  read_experts(file, config, "num_experts|num_local_experts|n_routed_experts", "moe_intermediate_size",
               "num_experts_per_token|num_experts_per_tok");
  read_sigmoid_router(file, config, scale, groups, top_groups);
  read_shared_experts(file, config);
  use_experts_after_dense(file, config, dense);
  config.tied_head = false;  // whatever tie_word_embeddings says
}

}  // namespace

std::unique_ptr<Mixer> GatedDeltaMaker::operator()(const DecoderConfig&, int64_t, const std::string& prefix,
                                                   const Makers& makers) const {
  return std::make_unique<GatedDelta>(prefix + module + ".", names, config, makers);
}

TensorNames olmo_hybrid_names() {
  TensorNames names;
  names.block.attention_norm = "attention_layer_norm";
  names.block.mlp_norm = "feedforward_layer_norm";
  return names;
}

TensorNames qwen3_next_names() {
  TensorNames names = qwen2_moe_names();
  names.block.experts.peft_translates = true;
  return names;
}

TensorNames kimi_names() {
  TensorNames names = mixtral_names();
  ExpertNames& experts = names.block.experts;
  experts.correction = "block_sparse_moe.gate.e_score_correction_bias";
  experts.shared = mlp_below("block_sparse_moe.shared_experts");
  experts.peft_translates = false;
  names.block.mlp = mlp_below("block_sparse_moe");
  return names;
}

TensorNames bailing_names() {
  TensorNames names = deepseek_v3_names();
  names.embedding = "model.word_embeddings";
  names.block.experts.correction = "mlp.gate.expert_bias";
  names.block.experts.peft_correction = "mlp.gate.e_score_correction_bias";
  names.block.experts.peft_translates = false;
  return names;
}

TensorNames lara_mini_names() {
  TensorNames names = qwen2_moe_names();
  names.block.experts.shared_gate = "";
  return names;
}

void finish_qwen3_5(const ConfigReader& file, DecoderConfig& config) {
  config.attention_gate = OutputGate::in_query;
  config.mlp_bias = false;
  const std::vector<bool> attention = attention_or(
      file, config, [&](int64_t l) { return (l + 1) % file.integer("full_attention_interval", 1, 65536, 4) == 0; });
  GatedDeltaConfig delta = read_delta(file, config, 16, 32, 128);
  delta.eps = config.norm.eps;
  delta.fused = config.model_type == "qwen3_next";
  set_mixers(config, attention, GatedDeltaMaker{"linear_attn", {}, delta});
}

// Layers of experts are those that mlp_only_layers does not name.
void finish_qwen3_next(const ConfigReader& file, DecoderConfig& config) {
  finish_qwen3_5(file, config);
  if (file.integer("num_experts", 0, 65536, 512) == 0) return;
  ExpertsConfig& experts = read_experts(file, config, "num_experts|num_local_experts", "moe_intermediate_size");
  experts.routing.normalize = file.boolean("norm_topk_prob", true);
  experts.shared_hidden = file.integer("shared_expert_intermediate_size", 1, kMaxWidth, 512);
  use_experts_by_step(file, config);
}

void finish_qwen3_5_moe(const ConfigReader& file, DecoderConfig& config) {
  finish_qwen3_5(file, config);
  ExpertsConfig& experts = read_experts(file, config, "num_experts|num_local_experts", "moe_intermediate_size");
  experts.routing.normalize = true;
  experts.shared_hidden = file.integer("shared_expert_intermediate_size", 1, kMaxWidth, 512);
  use_experts_everywhere(config);
}

// Layers with a window have rope, those that see everything do not.
void finish_lara_mini(const ConfigReader& file, DecoderConfig& config) {
  constexpr std::string_view kKinds[] = {"", "sliding_attention", "", "full_attention", "sliding_attention"};
  std::vector<std::string> types = file.texts("layer_types");
  std::vector<bool> attention =
      attention_layers(file, config, {"full_attention", "sliding_attention"}, {"linear_attention"});
  for (size_t l = types.size(); l < config.layer.size(); ++l) {
    types.emplace_back(kKinds[l % std::size(kKinds)]);
    attention.push_back(!types.back().empty());
  }
  const int64_t window = file.integer("sliding_window", 1, int64_t{1} << 30, 512);
  for (size_t l = 0; l < types.size(); ++l) {
    const bool slides = types[l] == "sliding_attention";
    config.layer[l].window = slides ? window : 0;
    if (!slides) config.layer[l].rotary = -1;
  }
  GatedDeltaConfig delta = read_delta(file, config, 8, 16, 128);
  delta.eps = config.norm.eps;
  set_mixers(config, attention, GatedDeltaMaker{"linear_attn", {.attention = {.norm = "out_norm"}}, delta});
  ExpertsConfig& experts = read_experts(file, config, "num_experts|num_local_experts", "moe_intermediate_size");
  experts.routing.normalize = file.boolean("norm_topk_prob", true);
  experts.shared_hidden = file.integer("shared_expert_intermediate_size", 1, kMaxWidth, 512);
  use_experts_everywhere(config);
  const int64_t keys = delta.key_heads * delta.key_size, values = delta.heads * delta.value_size;
  config.fused_tensors = {{"linear_attn.in_proj",
                           {{"linear_attn.in_proj_qkv", 2 * keys + values},
                            {"linear_attn.in_proj_z", values},
                            {"linear_attn.in_proj_b", delta.heads},
                            {"linear_attn.in_proj_a", delta.heads}}}};
  config.adapter_names = {{".linear_attn.out_norm.", ".linear_attn.norm."}};
}

// Norms before the sublayers of delta layers, after those of attention layers, where rope may be left out by null.
void finish_olmo_hybrid(const ConfigReader& file, DecoderConfig& config) {
  const bool last_is_fourth = config.layers >= 4;
  const std::vector<bool> attention =
      attention_or(file, config, [&](int64_t l) { return l % 4 == 3 || (!last_is_fourth && l == config.layers - 1); });
  GatedDeltaConfig delta = read_delta(file, config, config.heads, config.heads, 0);
  delta.eps = 1e-5f;
  delta.apart = true;
  if (file.boolean("linear_allow_neg_eigval", true)) delta.beta_scale = 2;
  const GatedDeltaNames names = {.output = "o_proj", .attention = {.conv_parts = kConvolutions, .norm = "o_norm"}};
  set_mixers(config, attention, GatedDeltaMaker{"linear_attn", names, delta});
  const NormNames after = {.attention_norm = "",
                           .post_attention_norm = "post_attention_layernorm",
                           .mlp_norm = "",
                           .post_mlp_norm = "post_feedforward_layernorm"};
  const std::optional<ConfigReader> rope = file.object("rope_parameters");
  const bool turns = file.has("rope_theta") || (rope && rope->has("rope_theta"));
  for (size_t l = 0; l < attention.size(); ++l) {
    if (!turns) config.layer[l].rotary = -1;
    if (attention[l]) config.layer[l].norms = after;
  }
}

// Transformers saves the norm after attention under the name of the other layers' norm before the MLP.
void match_olmo_hybrid(const TensorShapes& files, DecoderConfig& config) {
  for (size_t l = 0; l < config.layer.size(); ++l) {
    std::optional<NormNames>& norms = config.layer[l].norms;
    const std::string saved = "feedforward_layer_norm";
    const std::string prefix = config.names.layers + std::to_string(l) + ".";
    if (norms && files(prefix + saved + ".weight")) norms->post_attention_norm = saved;
  }
}

// Published files name the layers, counted from 1, in an object of their own.
void finish_kimi_linear(const ConfigReader& file, DecoderConfig& config) {
  const std::optional<ConfigReader> own = file.object("linear_attn_config");
  const std::vector<double> full = own ? own->numbers("full_attn_layers", 1, 1e6) : std::vector<double>();
  const std::vector<bool> attention = attention_or(file, config, [&](int64_t l) {
    if (!own || !own->has("full_attn_layers")) return l > 0 && l % 4 == 0;
    return std::find(full.begin(), full.end(), static_cast<double>(l + 1)) != full.end();
  });
  const auto size = [&](std::string_view key, std::string_view published, int64_t absent) {
    absent = file.integer(key, 1, 65536, absent);
    return own ? own->integer(published, 1, 65536, absent) : absent;
  };
  GatedDeltaConfig delta =
      kimi_delta(file, config, size("linear_num_heads", "num_heads", 32), size("linear_head_dim", "head_dim", 128),
                 size("linear_conv_kernel_dim", "short_conv_kernel_size", 4));
  delta.decay_shape = {1, 1, delta.heads, 1};
  const GatedDeltaNames names = {.gate = "g_b_proj",
                                 .decay = "f_b_proj",
                                 .first_gate = "g_a_proj",
                                 .first_decay = "f_a_proj",
                                 .output = "o_proj",
                                 .attention = {.conv_parts = kConvolutions, .norm = "o_norm"}};
  use_latent_attention(file, config);
  set_mixers(config, attention, GatedDeltaMaker{"self_attn", names, delta});
  read_kimi_experts(file, config, 1, 1, 2.446, 1);
  config.adapter_names = {{".self_attn.f_", ".self_attn.forget_gate.f_"},
                          {".self_attn.A_log", ".self_attn.forget_gate.A_log"},
                          {".self_attn.dt_bias", ".self_attn.forget_gate.dt_bias"},
                          {".block_sparse_moe.", ".mlp."}};
}

// Published dense layers have an MLP of the usual name, which Transformers saves under that of the experts.
void match_kimi_linear(const TensorShapes& files, DecoderConfig& config) {
  if (!files(config.names.layers + "0.mlp.gate_proj.weight")) return;
  config.names.block.mlp = {};
  config.adapter_names.pop_back();  // of the layers with experts alone
  for (const char* part : {"gate.", "shared_experts.", "experts."}) {
    config.adapter_names.emplace_back(std::string(".block_sparse_moe.") + part, std::string(".mlp.") + part);
  }
}

void finish_bailing_hybrid(const ConfigReader& file, DecoderConfig& config) {
  const int64_t period = file.integer("layer_group_size", 1, 65536, 6);
  const std::vector<bool> attention = attention_or(file, config, [&](int64_t l) { return (l + 1) % period == 0; });
  // Transformers saves the size of what is turned as head_dim
  const int64_t size = file.integer("linear_head_dim|head_dim", 1, 65536, 128);
  GatedDeltaConfig delta =
      kimi_delta(file, config, config.heads, size, file.integer("short_conv_kernel_size", 1, kMaxTaps, 4));
  if (file.boolean("kda_safe_gate", true)) {
    delta.least_decay = static_cast<float>(file.number("kda_lower_bound", -1e6, -1e-6, -5));
  }
  const GatedDeltaNames names = {
      .decay = "f_proj", .output = "dense", .attention = {.conv_parts = kConvolutions, .norm = "o_norm"}};
  LatentAttentionNames latent = LatentAttentionNames::below("attention");
  latent.output = "attention.dense";
  use_latent_attention(file, config, latent, true);
  set_mixers(config, attention, GatedDeltaMaker{"attention", names, delta});
  read_kimi_experts(file, config, 8, 4, 2.5, 2);
  config.adapter_names = {{".word_embeddings.", ".embed_tokens."},
                          {".attention.f_proj.", ".self_attn.forget_gate.f_proj."},
                          {".attention.A_log", ".self_attn.forget_gate.A_log"},
                          {".attention.dt_bias", ".self_attn.forget_gate.dt_bias"},
                          {".attention.", ".self_attn."},
                          {".dense.", ".o_proj."}};
}

}  // namespace nibble
