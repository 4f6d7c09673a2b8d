// Dense families with rope and RMS norms.

#include "nibble/core/models/families/config_reader.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/models/families/family_names.h"
#include "nibble/core/models/families/family_rules.h"

namespace nibble {

namespace {

constexpr NormConfig kRms5 = {.kind = NormKind::rms, .eps = 1e-5f};

TensorNames vaultgemma_names() {
  TensorNames names;
  names.block.mlp_norm = "pre_feedforward_layernorm";
  return names;
}

TensorNames glm_names(bool norms_after) {
  TensorNames names;
  names.block.mlp.gate_up = "mlp.gate_up_proj";
  if (!norms_after) return names;
  names.block.post_attention_norm = "post_self_attn_layernorm";
  names.block.post_mlp_norm = "post_mlp_layernorm";
  return names;
}

TensorNames nanochat_names() {
  TensorNames names;
  names.embedding_norm = names.final_norm;  // without weight, as all its norms
  names.block.mlp.up = "mlp.fc1";
  names.block.mlp.down = "mlp.fc2";
  return names;
}

TensorNames apertus_names() {
  TensorNames names;
  names.block.attention_norm = "attention_layernorm";
  names.block.mlp_norm = "feedforward_layernorm";
  return names;
}

TensorNames hyperclovax_names() {
  TensorNames names;
  names.block.post_attention_norm = "post_norm1";
  names.block.post_mlp_norm = "post_norm2";
  return names;
}

void finish_nanochat(const ConfigReader& file, DecoderConfig& config) {
  if (!file.is_null("final_logit_softcapping")) {
    config.logit_softcap = static_cast<float>(file.number("final_logit_softcapping", 0, 1e9, 15));
  }
}

Family glm(std::string_view model_type, std::string_view architecture, bool norms_after) {
  return {.model_type = model_type,
          .architecture = architecture,
          .pad_id = 151329,
          .names = glm_names(norms_after),
          .keys = {.output_bias = "", .mlp_bias = ""},
          .norm = {.kind = NormKind::rms, .eps = 1.5625e-7f},
          .qkv_bias = true,
          .kv_heads = 2,
          .head_size = 128,
          .max_positions = 131072,
          .rotary_share = 0.5,
          .rope_pairs = ops::RopePairs::neighbours};
}

}  // namespace

std::vector<Family> rms_norm_families() {
  return {
      {.model_type = "internlm3",
       .architecture = "InternLM3ForCausalLM|LlamaForCausalLM",
       .pad_id = 2,
       .keys = {.qkv_bias = "qkv_bias|attention_bias",
                .output_bias = "qkv_bias|attention_bias",
                .mlp_bias = "bias|mlp_bias"},
       .norm = kRms5,
       .kv_heads = 2,
       .head_size = 128,
       .max_positions = 32768},
      {.model_type = "iquestcoder",
       .architecture = "IQuestCoderForCausalLM|LlamaForCausalLM",
       .norm = kRms5,
       .kv_heads = 8,
       .head_size = 128,
       .max_positions = 131072},
      {.model_type = "ministral",
       .architecture = "MinistralForCausalLM",
       .keys = {.qkv_bias = "", .output_bias = "", .mlp_bias = ""},
       .kv_heads = 8,
       .max_positions = 131072,
       .window_rule = WindowRule::types,
       .window = 4096},
      {.model_type = "ministral3",
       .architecture = "Ministral3ForCausalLM",
       .pad_id = 11,
       .keys = {.qkv_bias = "", .output_bias = "", .mlp_bias = ""},
       .norm = kRms5,
       .kv_heads = 8,
       .head_size = 128,
       .max_positions = 262144,
       .rope_parameters = R"({"rope_type": "yarn", "rope_theta": 1e6, "factor": 16, "beta_fast": 32, "beta_slow": 1,
                              "original_max_position_embeddings": 16384, "mscale": 1, "mscale_all_dim": 1,
                              "llama_4_scaling_beta": 0.1})",
       .scaled_queries = true,
       .window_rule = WindowRule::every},
      {.model_type = "seed_oss",
       .architecture = "SeedOssForCausalLM",
       .pad_id = 1,
       .keys = {.output_bias = "attention_out_bias"},
       .qkv_bias = true,
       .kv_heads = 8,
       .head_size = 128,
       .max_positions = 524288},
      {.model_type = "exaone4",
       .architecture = "Exaone4ForCausalLM",
       .names = olmo2_names(),
       .keys = {.qkv_bias = "", .output_bias = "", .mlp_bias = ""},
       .norm = kRms5,
       .qk_norm = HeadNormKind::head,
       .kv_heads = 32,
       .rope = RopeRule::windowed_or_all,
       .window_rule = WindowRule::period,
       .window = 4096,
       .window_period = 4},
      {.model_type = "cwm",
       .architecture = "CwmForCausalLM",
       .keys = {.qkv_bias = "", .output_bias = ""},
       .norm = kRms5,
       .kv_heads = 8,
       .head_size = 128,
       .max_positions = 131072,
       .rope_base = 1e6,
       .rope_parameters = R"({"rope_type": "llama3", "rope_theta": 1e6, "factor": 16, "low_freq_factor": 1,
                              "high_freq_factor": 4, "original_max_position_embeddings": 8192})",
       .window_rule = WindowRule::but_first,
       .window = 8192,
       .window_period = 4},
      {.model_type = "arcee",
       .architecture = "ArceeForCausalLM",
       .norm = kRms5,
       .activation = "relu2",
       .gated_mlp = false,
       .max_positions = 4096},
      {.model_type = "vaultgemma",
       .architecture = "VaultGemmaForCausalLM",
       .pad_id = 0,
       .names = vaultgemma_names(),
       .keys = {.activation = "hidden_activation"},
       .norm = {.kind = NormKind::rms, .eps = 1e-6f, .weight_offset = 1},
       .activation = "gelu_pytorch_tanh",
       .tied_head = true,
       .scaled_embedding = true,
       .kv_heads = 4,
       .head_size = 256,
       .max_positions = 8192,
       .window_rule = WindowRule::even,
       .window = 4096,
       .finish = finish_gemma2},
      {.model_type = "olmo3",
       .architecture = "Olmo3ForCausalLM",
       .pad_id = 1,
       .names = olmo2_names(),
       .norm = kRms5,
       .qk_norm = HeadNormKind::whole,
       .rope_base = 500000,
       .local_rope_base = 500000,
       .window_rule = WindowRule::period,
       .window = 4096,
       .window_period = 4},
      {.model_type = "ernie4_5",
       .architecture = "Ernie4_5ForCausalLM",
       .pad_id = 0,
       .keys = {.qkv_bias = "use_bias", .output_bias = "use_bias", .mlp_bias = "use_bias"},
       .norm = kRms5,
       .tied_head = true,
       .kv_heads = 2,
       .head_size = 128,
       .max_positions = 131072,
       .rope_base = 500000,
       .rope_pairs = ops::RopePairs::neighbours},
      glm("glm", "GlmForCausalLM", false),
      glm("glm4", "Glm4ForCausalLM", true),
      {.model_type = "hunyuan_v1_dense",
       .architecture = "HunYuanDenseV1ForCausalLM",
       .pad_id = 0,
       .names = hunyuan_names(),
       .keys = {.head_size = "head_dim|attention_head_dim", .mlp_bias = ""},
       .norm = kRms5,
       .qk_norm = HeadNormKind::head,
       .qk_norm_after_rope = true,
       .rope_alpha = true},
      {.model_type = "helium",
       .architecture = "HeliumForCausalLM",
       .pad_id = 3,
       .keys = {.output_bias = ""},
       .norm = {.kind = NormKind::rms, .eps = 1e-8f},
       .kv_heads = 20,
       .head_size = 128,
       .max_positions = 4096,
       .rope_base = 100000,
       .rope_pairs = ops::RopePairs::neighbours},
      {.model_type = "nanochat",
       .architecture = "NanoChatForCausalLM",
       .pad_id = 1,
       .names = nanochat_names(),
       .keys = {.mlp_bias = ""},
       .norm = {.kind = NormKind::rms, .eps = 1e-6f, .weight = false},
       .activation = "relu2",
       .gated_mlp = false,
       .qk_norm = HeadNormKind::head,
       .qk_norm_after_rope = true,
       .qk_norm_weight = false,
       .rope_backwards = true,
       .finish = finish_nanochat},
      {.model_type = "apertus",
       .architecture = "ApertusForCausalLM",
       .pad_id = 3,
       .names = apertus_names(),
       .keys = {.mlp_bias = ""},
       .norm = kRms5,
       .activation = "xielu",
       .gated_mlp = false,
       .qk_norm = HeadNormKind::head,
       .max_positions = 65536,
       .rope_base = 12e6,
       .rope_parameters = R"({"rope_type": "llama3", "rope_theta": 12e6, "factor": 8, "low_freq_factor": 1,
                              "high_freq_factor": 4, "original_max_position_embeddings": 8192})"},
      {.model_type = "bitnet",
       .architecture = "BitNetForCausalLM",
       .keys = {.mlp_bias = ""},
       .norm = kRms5,
       .activation = "relu2",
       .sublayer_norms = true,
       .kv_heads = 5,
       .rope_base = 500000},
      {.model_type = "granite_swa",
       .architecture = "GraniteSWAForCausalLM",
       .norm = kRms5,
       .tied_head = true,
       .kv_heads = 4,
       .max_positions = 8192,
       .window_rule = WindowRule::but_first,
       .window = 128,
       .window_period = 4,
       .finish = finish_granite_swa},
      {.model_type = "hyperclovax",
       .architecture = "HyperCLOVAXForCausalLM",
       .names = hyperclovax_names(),
       .finish = finish_hyperclovax},
  };
}

}  // namespace nibble
