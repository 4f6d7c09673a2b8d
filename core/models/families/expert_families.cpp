#include "nibble/core/models/families/expert_families.h"

#include "nibble/core/models/families/expert_rules.h"
#include "nibble/core/models/families/latent_families.h"

namespace nibble {

namespace {

MlpNames mlp_below(const std::string& module) {
  return {.gate = module + ".gate_proj", .up = module + ".up_proj", .down = module + ".down_proj", .gate_up = ""};
}

}  // namespace

TensorNames qwen2_moe_names() {
  TensorNames names;
  names.block.experts.shared = mlp_below("mlp.shared_expert");
  names.block.experts.shared_gate = "mlp.shared_expert_gate";
  return names;
}

namespace {

TensorNames mixtral_names() {
  TensorNames names;
  ExpertNames& experts = names.block.experts;
  experts.router = "block_sparse_moe.gate";
  experts.experts = "block_sparse_moe.experts";
  experts.gate = "w1";
  experts.up = "w3";
  experts.down = "w2";
  return names;
}

TensorNames granitemoe_names() {
  TensorNames names;
  name_granite_experts(names.block);
  return names;
}

TensorNames deepseek_v3_names() {
  TensorNames names;
  names.block.experts.correction = "mlp.gate.e_score_correction_bias";
  names.block.experts.shared = mlp_below("mlp.shared_experts");
  return names;
}

// Tensors of all experts in files as in Transformers' modules.
void fuse(TensorNames& names, const std::string& module, const std::string& router) {
  ExpertNames& experts = names.block.experts;
  experts.router = experts.peft_router = router;
  experts.fused_gate_up = experts.peft_gate_up = module + ".gate_up_proj";
  experts.fused_down = experts.peft_down = module + ".down_proj";
  experts.peft_translates = false;
}

TensorNames gpt_oss_names() {
  TensorNames names;
  fuse(names, "mlp.experts", "mlp.router");
  return names;
}

TensorNames llama4_names() {
  TensorNames names;
  fuse(names, "feed_forward.experts", "feed_forward.router");
  names.block.mlp = mlp_below("feed_forward");
  names.block.experts.shared = mlp_below("feed_forward.shared_expert");
  return names;
}

Family granitemoe(std::string_view model_type, std::string_view architecture,
                  void (*finish)(const ConfigReader&, DecoderConfig&)) {
  return {.model_type = model_type, .architecture = architecture, .names = granitemoe_names(), .finish = finish};
}

}  // namespace

std::vector<Family> expert_families() {
  return {
      {.model_type = "mixtral",
       .architecture = "MixtralForCausalLM",
       .names = mixtral_names(),
       .norm = {.kind = NormKind::rms, .eps = 1e-5f},
       .kv_heads = 8,
       .max_positions = 131072,
       .rope_base = 1e6,
       .window_rule = WindowRule::every,
       .finish = finish_mixtral},
      {.model_type = "qwen2_moe",
       .architecture = "Qwen2MoeForCausalLM",
       .names = qwen2_moe_names(),
       .qkv_bias = true,
       .kv_heads = 16,
       .max_positions = 32768,
       .window_rule = WindowRule::from_layer,
       .window = 4096,
       .finish = finish_qwen2_moe},
      {.model_type = "qwen3_moe",
       .architecture = "Qwen3MoeForCausalLM",
       .qk_norm = HeadNormKind::head,
       .kv_heads = 4,
       .max_positions = 32768,
       .window_rule = WindowRule::every,
       .window = 4096,
       .finish = finish_qwen3_moe},
      {.model_type = "olmoe",
       .architecture = "OlmoeForCausalLM",
       .norm = {.kind = NormKind::rms, .eps = 1e-5f},
       .qk_norm = HeadNormKind::whole,
       .max_positions = 4096,
       .finish = finish_olmoe},
      granitemoe("granitemoe", "GraniteMoeForCausalLM", finish_granitemoe),
      granitemoe("granitemoeshared", "GraniteMoeSharedForCausalLM", finish_granitemoeshared),
      {.model_type = "glm4_moe",
       .architecture = "Glm4MoeForCausalLM",
       .names = deepseek_v3_names(),
       .norm = {.kind = NormKind::rms, .eps = 1e-5f},
       .kv_heads = 8,
       .max_positions = 131072,
       .rotary_share = 0.5,
       .finish = finish_glm4_moe},
      {.model_type = "deepseek_v3",
       .architecture = "DeepseekV3ForCausalLM",
       .names = deepseek_v3_names(),
       .keys = {.head_size = kLatentHeadKey, .kv_heads = ""},
       .head_size = 64,
       .max_positions = 4096,
       .rope_pairs = ops::RopePairs::neighbours,
       .finish = finish_deepseek_v3},
      {.model_type = "gpt_oss",
       .architecture = "GptOssForCausalLM",
       .names = gpt_oss_names(),
       .norm = {.kind = NormKind::rms, .eps = 1e-5f},
       .qkv_bias = true,
       .output_bias = true,
       .kv_heads = 8,
       .head_size = 64,
       .max_positions = 131072,
       .rope_base = 150000,
       .window_rule = WindowRule::even,
       .window = 128,
       .finish = finish_gpt_oss},
      {.model_type = "llama4_text",
       .architecture = "Llama4ForCausalLM",
       .names = llama4_names(),
       .keys = {.mlp_width = "intermediate_size_mlp"},
       .norm = {.kind = NormKind::rms, .eps = 1e-5f},
       .qk_norm = HeadNormKind::head,
       .qk_norm_after_rope = true,
       .qk_norm_weight = false,
       .kv_heads = 8,
       .head_size = 128,
       .max_positions = 131072,
       .rope = RopeRule::listed,
       .rope_base = 500000,
       .rope_pairs = ops::RopePairs::neighbours,
       .finish = finish_llama4},
  };
}

}  // namespace nibble
