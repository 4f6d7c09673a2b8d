// Language models that are published beside towers alone. Sections of their rope that turn by the axes of a picture
// turn alike in texts.

#include "nibble/core/models/families/expert_families.h"
#include "nibble/core/models/families/expert_rules.h"
#include "nibble/core/models/families/family_names.h"

namespace nibble {

namespace {

Family qwen2_vl_text(std::string_view model_type, std::string_view architecture) {
  return {.model_type = model_type,
          .architecture = architecture,
          .keys = {.head_size = "", .qkv_bias = "", .output_bias = "", .mlp_bias = ""},
          .norm = kRms5,
          .qkv_bias = true,
          .kv_heads = 8,
          .max_positions = 32768,
          .rope_base = 1e6,
          .window_rule = WindowRule::from_layer,
          .window = 4096,
          .window_from = 80};
}

void finish_glm4v_moe(const ConfigReader& file, DecoderConfig& config) {
  finish_glm4_moe(file, config);
  config.qkv_bias = file.boolean("attention_bias", true);
  config.qk_norm.reset();
}

TensorNames qwen3_vl_moe_names() {
  TensorNames names;
  ExpertNames& experts = names.block.experts;
  experts.fused_gate_up = experts.peft_gate_up;
  experts.fused_down = experts.peft_down;
  experts.peft_translates = false;
  return names;
}

void finish_qwen3_vl_moe(const ConfigReader& file, DecoderConfig& config) {
  read_experts(file, config, "num_experts|num_local_experts", "moe_intermediate_size").routing.normalize = true;
  use_experts_by_step(file, config);
}

// Published files have every matrix of an expert transposed, those that Transformers 5 saves have not.
void match_qwen3_vl_moe(const TensorShapes& files, DecoderConfig& config) {
  ExpertsConfig& experts = config.experts.value();
  for (int64_t l = 0; l < config.layers; ++l) {
    const auto stored = files(config.names.layers + std::to_string(l) + "." + config.names.block.experts.fused_down);
    if (stored) experts.transposed = *stored != Shape{experts.experts, experts.width, experts.hidden};
  }
}

}  // namespace

std::vector<Family> tower_text_families() {
  return {
      qwen2_vl_text("qwen2_vl_text", "Qwen2VLTextModel"),
      qwen2_vl_text("qwen2_5_vl_text", "Qwen2_5_VLTextModel"),
      {.model_type = "qwen3_vl_text",
       .architecture = "Qwen3VLTextModel",
       .qk_norm = HeadNormKind::head,
       .kv_heads = 32,
       .head_size = 128,
       .max_positions = 128000,
       .rope_base = 500000},
      {.model_type = "qwen3_vl_moe_text",
       .architecture = "Qwen3VLMoeTextModel",
       .names = qwen3_vl_moe_names(),
       .qk_norm = HeadNormKind::head,
       .kv_heads = 16,
       .max_positions = 128000,
       .rope_base = 500000,
       .finish = finish_qwen3_vl_moe,
       .match_files = match_qwen3_vl_moe,
       .aux_loss_coef = 0.001},
      {.model_type = "glm4v_text",
       .architecture = "Glm4vTextModel",
       .names = glm_names(true),
       .keys = {.head_size = "", .qkv_bias = "", .output_bias = "", .mlp_bias = ""},
       .norm = kRms5,
       .qkv_bias = true,
       .kv_heads = 2,
       .max_positions = 32768,
       .rope_pairs = ops::RopePairs::neighbours},
      {.model_type = "glm4v_moe_text",
       .architecture = "Glm4vMoeTextModel",
       .names = deepseek_v3_names(),
       .norm = kRms5,
       .kv_heads = 8,
       .max_positions = 65536,
       .rotary_share = 0.5,
       .finish = finish_glm4v_moe,
       .aux_loss_coef = 0.0001},
  };
}

}  // namespace nibble
