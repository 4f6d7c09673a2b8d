#include "nibble/core/models/families/expert_rules.h"

#include <algorithm>

#include "nibble/core/models/families/family_rules.h"
#include "nibble/core/models/families/latent_families.h"

namespace nibble {

namespace {

constexpr int64_t kMostExperts = 65536;
constexpr int64_t kMostWidth = int64_t{1} << 20;

}  // namespace

void read_groups(const ConfigReader& file, ExpertsConfig& experts, int64_t groups, int64_t top_groups) {
  ops::Routing& routing = experts.routing;
  routing.groups = file.integer("n_group|num_expert_group", 1, experts.experts, groups);
  routing.top_groups = file.integer("topk_group", 1, routing.groups, top_groups);
  if (experts.experts % routing.groups != 0) {
    file.fail("n_group", "is " + std::to_string(routing.groups) + ", which does not divide the " +
                             std::to_string(experts.experts) + " experts");
  }
  const int64_t allowed = experts.experts / routing.groups * routing.top_groups;
  if (routing.k > allowed) {
    file.fail("num_experts_per_tok", "is " + std::to_string(routing.k) + ", but topk_group leaves " +
                                         std::to_string(allowed) + " experts to choose from");
  }
}

void use_experts_everywhere(DecoderConfig& config) {
  for (int64_t l = 0; l < config.layers; ++l) config.use_experts(l);
}

void use_experts_by_step(const ConfigReader& file, DecoderConfig& config) {
  const int64_t step = file.integer("decoder_sparse_step", 1, kMostExperts, 1);
  const std::vector<double> dense = file.numbers("mlp_only_layers", 0, 1e6);
  for (int64_t l = 0; l < config.layers; ++l) {
    const bool listed = std::find(dense.begin(), dense.end(), static_cast<double>(l)) != dense.end();
    if (!listed && (l + 1) % step == 0) config.use_experts(l);
  }
}

ExpertsConfig& read_experts(const ConfigReader& file, DecoderConfig& config, std::string_view experts,
                            std::string_view hidden, std::string_view chosen) {
  ExpertsConfig result;
  result.width = config.width;
  result.experts = file.integer(experts, 1, kMostExperts);
  if (!chosen.empty()) result.routing.k = file.integer(chosen, 1, kMostExperts);
  if (result.routing.k > result.experts) {
    file.fail(chosen, "is " + std::to_string(result.routing.k) + ", more than there are experts, " +
                          std::to_string(result.experts));
  }
  result.hidden = file.integer(hidden, 1, kMostWidth);
  result.activation = config.activation;
  result.gated = config.gated_mlp;
  return config.experts.emplace(result);
}

void read_balance(const ConfigReader& file, DecoderConfig& config, double absent) {
  if (!config.experts || absent == 0 || !file.boolean("output_router_logits", false)) return;
  config.router_aux_loss_coef = static_cast<float>(file.number("router_aux_loss_coef", 0, 1e6, absent));
}

void read_sigmoid_router(const ConfigReader& file, DecoderConfig& config, double scale, int64_t groups,
                         int64_t top_groups) {
  ExpertsConfig& experts = config.experts.value();
  ops::Routing& routing = experts.routing;
  routing.score = ops::RouterScore::sigmoid;
  routing.group_score = ops::GroupScore::two_best;
  routing.normalize = file.boolean("norm_topk_prob|moe_renormalize", true);
  routing.epsilon = 1e-20f;
  routing.scale = static_cast<float>(file.number("routed_scaling_factor", 1e-9, 1e9, scale));
  read_groups(file, experts, groups, top_groups);
}

void match_fused_experts(const TensorShapes& files, DecoderConfig& config) {
  ExpertNames& names = config.names.block.experts;
  const std::string &layers = config.names.layers, &gate_up = names.peft_gate_up;
  int64_t l = 0;
  while (l < config.layers && !files(layers + std::to_string(l) + "." + gate_up)) ++l;
  if (l == config.layers) return;
  names.fused_gate_up = gate_up;
  names.fused_down = names.peft_down;
  if (files(layers + std::to_string(l) + "." + names.peft_router + ".weight")) names.router = names.peft_router;
}

void read_shared_experts(const ConfigReader& file, DecoderConfig& config, int64_t absent) {
  constexpr std::string_view kKey = "n_shared_experts|num_shared_experts|moe_num_shared_experts";
  ExpertsConfig& experts = config.experts.value();
  experts.shared_hidden = file.is_null(kKey) ? 0 : file.integer(kKey, 0, 1024, absent) * experts.hidden;
  experts.shared_bias = config.mlp_bias;
}

void use_experts_after_dense(const ConfigReader& file, DecoderConfig& config, int64_t absent) {
  const std::vector<std::string> types = file.texts("mlp_layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != config.layers) {
    file.fail("mlp_layer_types",
              "has " + std::to_string(types.size()) + " entries for " + std::to_string(config.layers) + " layers");
  }
  const int64_t dense = file.integer("first_k_dense_replace|num_dense_layers", 0, int64_t{1} << 20, absent);
  for (int64_t l = 0; l < config.layers; ++l) {
    if (types.empty() ? l >= dense : types[static_cast<size_t>(l)] == "sparse") config.use_experts(l);
  }
  config.layers_passed_over = file.integer("num_nextn_predict_layers", 0, 64, 0);
}

void name_granite_experts(BlockNames& names) {
  ExpertNames& experts = names.experts;
  experts.router = "block_sparse_moe.router.layer";
  experts.fused_gate_up = "block_sparse_moe.input_linear.weight";
  experts.fused_down = "block_sparse_moe.output_linear.weight";
  experts.peft_router = "block_sparse_moe.router";
  experts.peft_gate_up = "block_sparse_moe.experts.gate_up_proj";
  experts.peft_down = "block_sparse_moe.experts.down_proj";
  experts.shared = {.gate = "", .up = "", .down = "shared_mlp.output_linear", .gate_up = "shared_mlp.input_linear"};
  experts.peft_translates = false;
}

void finish_mixtral(const ConfigReader& file, DecoderConfig& config) {
  read_experts(file, config, "num_local_experts|num_experts", "intermediate_size").routing.normalize = true;
  use_experts_everywhere(config);
}

void finish_qwen2_moe(const ConfigReader& file, DecoderConfig& config) {
  config.qkv_bias = file.boolean("qkv_bias", true);
  ExpertsConfig& experts = read_experts(file, config, "num_experts|num_local_experts", "moe_intermediate_size");
  experts.routing.normalize = file.boolean("norm_topk_prob", false);
  experts.shared_hidden = file.integer("shared_expert_intermediate_size", 1, kMostWidth, 5632);
  use_experts_by_step(file, config);
}

void finish_qwen3_moe(const ConfigReader& file, DecoderConfig& config) {
  read_experts(file, config, "num_experts|num_local_experts", "moe_intermediate_size").routing.normalize =
      file.boolean("norm_topk_prob", false);
  use_experts_by_step(file, config);
  if (file.boolean("use_sliding_window", false)) return;
  for (LayerConfig& layer : config.layer) layer.window = 0;
}

void finish_olmoe(const ConfigReader& file, DecoderConfig& config) {
  finish_olmo(file, config);
  read_experts(file, config, "num_experts|num_local_experts", "intermediate_size").routing.normalize =
      file.boolean("norm_topk_prob", false);
  use_experts_everywhere(config);
}

void finish_granitemoe(const ConfigReader& file, DecoderConfig& config) {
  finish_granite(file, config);
  read_experts(file, config, "num_local_experts|num_experts", "intermediate_size").routing.score =
      ops::RouterScore::chosen_softmax;
  use_experts_everywhere(config);
}

void finish_granitemoeshared(const ConfigReader& file, DecoderConfig& config) {
  finish_granitemoe(file, config);
  config.experts->shared_hidden = file.integer("shared_intermediate_size", 0, kMostWidth, 0);
}

void finish_glm4_moe(const ConfigReader& file, DecoderConfig& config) {
  config.qkv_bias = file.boolean("attention_bias", false);
  config.output_bias = false;
  if (file.boolean("use_qk_norm", false)) config.qk_norm = HeadNormConfig{HeadNormKind::head, config.norm};
  read_experts(file, config, "n_routed_experts|num_local_experts|num_experts", "moe_intermediate_size");
  read_sigmoid_router(file, config, 1);
  read_shared_experts(file, config);
  use_experts_after_dense(file, config, 1);
}

void finish_deepseek_v3(const ConfigReader& file, DecoderConfig& config) {
  use_latent_attention(file, config);
  read_experts(file, config, "n_routed_experts|num_local_experts|num_experts", "moe_intermediate_size");
  read_sigmoid_router(file, config, 2.5, 8, 4);
  read_shared_experts(file, config);
  use_experts_after_dense(file, config, 3);
}

void finish_gpt_oss(const ConfigReader& file, DecoderConfig& config) {
  constexpr double kAlpha = 1.702;  // of ops::Activation::gelu_sigmoid
  config.attention_sinks = true;
  ExpertsConfig& experts = read_experts(file, config, "num_local_experts|num_experts", "intermediate_size");
  experts.routing.score = ops::RouterScore::chosen_softmax;
  experts.activation = ops::Activation::gelu_sigmoid;
  if (file.number("swiglu_alpha", 0, 1e6, kAlpha) != kAlpha) {
    file.fail("swiglu_alpha", "is not 1.702, which is all that nibble can compute");
  }
  experts.clamp = static_cast<float>(file.number("swiglu_limit", 1e-6, 1e9, 7));
  experts.bias = experts.router_bias = experts.transposed = experts.interleaved = true;
  use_experts_everywhere(config);
}

void finish_llama4(const ConfigReader& file, DecoderConfig& config) {
  if (!file.boolean("use_qk_norm", true)) config.qk_norm.reset();
  const int64_t chunk =
      file.is_null("attention_chunk_size") ? 0 : file.integer("attention_chunk_size", 1, int64_t{1} << 30, 8192);
  if (file.boolean_or_number("attn_temperature_tuning", true)) {  // 4 as first published
    config.query_scaling = {.beta = file.number("attn_scale", 0, 1e6, 0.1),
                            .length = file.integer("floor_scale", 1, int64_t{1} << 30, 8192),
                            .offset = 1};
  }
  const std::vector<std::string> types = file.texts("layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != config.layers) {
    file.fail("layer_types",
              "has " + std::to_string(types.size()) + " entries for " + std::to_string(config.layers) + " layers");
  }
  for (size_t l = 0; l < config.layer.size(); ++l) {
    LayerConfig& layer = config.layer[l];
    const bool rotated = layer.rotary >= 0;
    layer.qk_norm = rotated;
    layer.chunk = (types.empty() ? rotated : types[l] == "chunked_attention") ? chunk : 0;
    layer.scaled_queries = !rotated && config.query_scaling.beta != 0;
  }
  ExpertsConfig& experts = read_experts(file, config, "num_local_experts|num_experts", "intermediate_size");
  experts.routing.score = ops::RouterScore::sigmoid;
  experts.transposed = experts.weighted_input = true;
  experts.shared_hidden = experts.hidden;
  const std::vector<double> listed = file.numbers("moe_layers", 0, 1e6);
  const int64_t step = file.integer("interleave_moe_layer_step", 1, kMostExperts, 1);
  for (int64_t l = 0; l < config.layers; ++l) {
    const bool is_listed = std::find(listed.begin(), listed.end(), static_cast<double>(l)) != listed.end();
    if (listed.empty() ? (l + 1) % step == 0 : is_listed) config.use_experts(l);
  }
}

}  // namespace nibble
