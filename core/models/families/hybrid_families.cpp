#include "nibble/core/models/families/families.h"
#include "nibble/core/models/families/hybrid_rules.h"

namespace nibble {

std::vector<Family> hybrid_families() {
  constexpr NormConfig kNorm = {.kind = NormKind::rms, .eps = 1e-5f};
  return {
      {.model_type = "lfm2",
       .architecture = "Lfm2ForCausalLM",
       .names = lfm2_names(),
       .keys = {.mlp_width = "block_ff_dim|intermediate_size", .norm_eps = "norm_eps", .activation = ""},
       .norm = kNorm,
       .qk_norm = HeadNormKind::head,
       .tied_head = true,
       .kv_heads = 8,
       .max_positions = 128000,
       .rope_base = 1e6,
       .finish = finish_lfm2},
      {.model_type = "qwen3_5_text",
       .architecture = "Qwen3_5ForCausalLM",
       .norm = {.kind = NormKind::rms, .eps = 1e-6f, .weight_offset = 1},
       .qk_norm = HeadNormKind::head,
       .kv_heads = 4,
       .head_size = 256,
       .max_positions = 32768,
       .rotary_share = 0.25,
       .finish = finish_qwen3_5},
      {.model_type = "falcon_h1",
       .architecture = "FalconH1ForCausalLM",
       .names = bamba_names(),
       .norm = kNorm,
       .kv_heads = 8,
       .max_positions = 8192,
       .finish = finish_falcon_h1},
      {.model_type = "bamba",
       .architecture = "BambaForCausalLM",
       .names = bamba_names(),
       .norm = kNorm,
       .kv_heads = 8,
       .max_positions = 262144,
       .rotary_share = 0.5,
       .finish = finish_bamba},
      {.model_type = "granitemoehybrid",
       .architecture = "GraniteMoeHybridForCausalLM",
       .names = granite_hybrid_names(),
       .keys = {.mlp_width = "shared_intermediate_size"},
       .finish = finish_granite_hybrid},
      {.model_type = "nemotron_h",
       .architecture = "NemotronHForCausalLM",
       .names = nemotron_h_names(),
       .keys = {.norm_eps = "layer_norm_epsilon", .activation = "mlp_hidden_act"},
       .norm = kNorm,
       .activation = "relu2",
       .gated_mlp = false,
       .kv_heads = 8,
       .head_size = 128,
       .max_positions = 4096,
       .rope = RopeRule::none,
       .finish = finish_nemotron_h},
  };
}

}  // namespace nibble
