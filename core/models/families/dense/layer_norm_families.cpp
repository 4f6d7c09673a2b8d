// Dense families with rope and LayerNorm.

#include <algorithm>

#include "nibble/core/models/families/config_reader.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/models/families/family_names.h"
#include "nibble/core/models/families/family_rules.h"
#include "nibble/core/models/families/gguf/gguf_rules.h"

namespace nibble {

namespace {

TensorNames gpt_neox_japanese_names() {
  TensorNames names = gpt_neox_names();
  names.embedding = "gpt_neox_japanese.embed_in";
  names.layers = "gpt_neox_japanese.layers.";
  names.final_norm = "gpt_neox_japanese.final_layer_norm";
  return names;
}

TensorNames persimmon_names() {
  TensorNames names = stablelm_names();
  names.final_norm = "model.final_layernorm";
  names.block.attention.qkv = "self_attn.query_key_value";
  names.block.attention.output = "self_attn.dense";
  names.block.mlp.up = "mlp.dense_h_to_4h";
  names.block.mlp.down = "mlp.dense_4h_to_h";
  return names;
}

// Of all biases of Linears there is one: of the last layer's attention, under a name of its own.
void finish_gpt_neox_japanese(const ConfigReader& file, DecoderConfig& config) {
  config.qkv_groups = config.heads;
  const double times = file.number("intermediate_multiple_size", 1e-3, 1e3, 4);
  config.mlp_width = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(config.width) * times));
  config.layer.back().mixer_attends = true;
  config.layer.back().mixer = [](const DecoderConfig& all, int64_t l, const std::string& prefix, const Makers& makers) {
    AttentionConfig own = all.attention(l);
    own.output_bias = true;
    const Makers renamed = {.linear = makers.linear, .parameter = [&](const std::string& name, const Shape& shape) {
                              const bool bias = name == prefix + "attention.dense.bias";
                              return makers.parameter(bias ? prefix + "attention.dense_bias" : name, shape);
                            }};
    return std::make_unique<Attention>(prefix, all.names.block.attention, own, renamed);
  };
}

void finish_persimmon(const ConfigReader& file, DecoderConfig& config) {
  config.qkv_groups = config.heads;
  if (!file.boolean("qk_layernorm", true)) config.qk_norm.reset();
}

// Sections of the rope that turn by the axes of a picture turn alike in texts; a type of layer may have none.
void finish_cohere_compass(const ConfigReader& file, DecoderConfig& config) {
  config.logit_scale = static_cast<float>(file.number("logit_scale", 1e-9, 1e9, 1));
  const std::optional<ConfigReader> ropes = file.object("rope_parameters");
  if (!ropes) file.fail("rope_parameters", "is missing");
  for (LayerConfig& layer : config.layer) {
    if (!ropes->has(layer.window > 0 ? "sliding_attention" : "full_attention")) layer.rotary = -1;
  }
}

}  // namespace

std::vector<Family> layer_norm_families() {
  return {
      {.model_type = "gpt_neox",
       .architecture = "GPTNeoXForCausalLM",
       .padded_table = false,
       .names = gpt_neox_names(),
       .keys = {.head_size = "",
                .kv_heads = "",
                .norm_eps = "layer_norm_eps",
                .rotary_share = "rotary_pct",
                .rope_base = "rotary_emb_base"},
       .norm = kLayerNorm,
       .activation = "gelu",
       .gated_mlp = false,
       .biases = true,
       .rotary_share = 0.25,
       .finish = finish_gpt_neox,
       .gguf = {.architecture = "gptneox",
                .biases = true,
                .needs_biases = true,
                .own_head = true,
                .says_parallel = true,
                .config = gguf_gpt_neox},
       .peft_targets = {"query_key_value"}},
      {.model_type = "falcon",
       .architecture = "FalconForCausalLM",
       .padded_table = false,
       .names = falcon_names(),
       .keys = {.width = "n_embed|hidden_size",
                .mlp_width = "ffn_hidden_size",
                .head_size = "",
                .kv_heads = "",
                .norm_eps = "layer_norm_epsilon",
                .activation = "activation"},
       .norm = kLayerNorm,
       .activation = "gelu",
       .gated_mlp = false,
       .tied_head = true,
       .mlp_share = 4,
       .finish = finish_falcon,
       .gguf = {.architecture = "falcon",
                .only_parallel = true,
                .attn_norm_2 = true,
                .own_mix = true,
                .config = gguf_falcon},
       .peft_targets = {"query_key_value"}},
      {.model_type = "stablelm",
       .architecture = "StableLmForCausalLM",
       .names = stablelm_names(),
       .keys = {.head_size = "", .norm_eps = "layer_norm_eps"},
       .norm = kLayerNorm,
       .kv_heads = 32,
       .max_positions = 4096,
       .rotary_share = 0.25,
       .finish = finish_stablelm,
       .gguf = {.architecture = "stablelm",
                .biases = true,
                .own_head = true,
                .says_parallel = true,
                .config = gguf_stablelm},
       .peft_targets = {"q_proj", "v_proj"}},
      {.model_type = "olmo",
       .architecture = "OlmoForCausalLM",
       .pad_id = 1,
       .keys = {.norm_eps = ""},
       .norm = {.kind = NormKind::layer, .eps = 1e-5f, .weight = false},
       .finish = finish_olmo,
       .gguf = {.architecture = "olmo", .rope_pairs = true, .clipped_qkv = true, .config = gguf_olmo}},
      {.model_type = "starcoder2",
       .architecture = "Starcoder2ForCausalLM",
       .names = starcoder2_names(),
       .keys = {.norm_eps = "norm_epsilon"},
       .norm = kLayerNorm,
       .activation = "gelu_pytorch_tanh",
       .gated_mlp = false,
       .tied_head = true,
       .kv_heads = 2,
       .max_positions = 4096,
       .window_rule = WindowRule::every,
       .finish = finish_starcoder2,
       .gguf = {.architecture = "starcoder2", .biases = true, .needs_biases = true, .config = gguf_starcoder2}},
      {.model_type = "gptj",
       .architecture = "GPTJForCausalLM",
       .padded_table = false,
       .names = gptj_names(),
       .keys = gpt2_keys(),
       .norm = kLayerNorm,
       .activation = "gelu_new",
       .gated_mlp = false,
       .parallel_residual = true,
       .mlp_share = 4,
       .rope = RopeRule::own,
       .finish = finish_gptj,
       .peft_targets = {"q_proj", "v_proj"}},
      {.model_type = "codegen",
       .architecture = "CodeGenForCausalLM",
       .padded_table = false,
       .names = codegen_names(),
       .keys = gpt2_keys(),
       .norm = kLayerNorm,
       .activation = "gelu_new",
       .gated_mlp = false,
       .parallel_residual = true,
       .mlp_share = 4,
       .rope = RopeRule::own,
       .finish = finish_codegen,
       .peft_targets = {"qkv_proj"}},
      {.model_type = "phi",
       .architecture = "PhiForCausalLM",
       .names = phi_names(),
       .keys = {.norm_eps = "layer_norm_eps"},
       .norm = kLayerNorm,
       .activation = "gelu_new",
       .gated_mlp = false,
       .parallel_residual = true,
       .biases = true,
       .rotary_share = 0.5,
       .finish = finish_phi,
       .gguf = {.architecture = "phi2", .biases = true, .own_head = true},
       .peft_targets = {"q_proj", "v_proj", "fc1", "fc2"}},
      {.model_type = "cohere",
       .architecture = "CohereForCausalLM",
       .pad_id = 0,
       .names = cohere_names(),
       .keys = {.norm_eps = "layer_norm_eps"},
       .norm = {.kind = NormKind::layer, .eps = 1e-5f},
       .parallel_residual = true,
       .tied_head = true,
       .max_positions = 8192,
       .rope_base = 500000,
       .rope_pairs = ops::RopePairs::neighbours,
       .finish = finish_cohere,
       .gguf = {.architecture = "command-r", .only_tied = true, .logit_scale = true, .config = gguf_cohere}},
      {.model_type = "cohere2",
       .architecture = "Cohere2ForCausalLM",
       .pad_id = 0,
       .names = cohere_names(),
       .keys = {.norm_eps = "layer_norm_eps"},
       .norm = {.kind = NormKind::layer, .eps = 1e-5f},
       .parallel_residual = true,
       .tied_head = true,
       .max_positions = 8192,
       .rope = RopeRule::windowed,
       .rope_pairs = ops::RopePairs::neighbours,
       .window_rule = WindowRule::period,
       .window = 4096,
       .window_period = 4,
       .finish = finish_cohere,
       .gguf = {.architecture = "cohere2", .only_tied = true, .logit_scale = true, .config = gguf_cohere2}},
      {.model_type = "gpt_neox_japanese",
       .architecture = "GPTNeoXJapaneseForCausalLM",
       .padded_table = false,
       .names = gpt_neox_japanese_names(),
       .keys = {.mlp_width = "",
                .head_size = "",
                .kv_heads = "",
                .norm_eps = "layer_norm_eps",
                .rotary_share = "rotary_pct",
                .rope_base = "rotary_emb_base",
                .qkv_bias = "",
                .output_bias = "",
                .mlp_bias = ""},
       .norm = kLayerNorm,
       .activation = "gelu",
       .gated_mlp = false,
       .tied_head = true,
       .mlp_share = 4,
       .finish = finish_gpt_neox_japanese},
      {.model_type = "persimmon",
       .architecture = "PersimmonForCausalLM",
       .names = persimmon_names(),
       .keys = {.head_size = "", .kv_heads = "", .norm_eps = "layer_norm_eps"},
       .norm = kLayerNorm,
       .activation = "relu2",
       .gated_mlp = false,
       .qk_norm = HeadNormKind::head,
       .biases = true,
       .max_positions = 16384,
       .rope_base = 25000,
       .rotary_share = 0.5,
       .finish = finish_persimmon},
      {.model_type = "jais2",
       .architecture = "Jais2ForCausalLM",
       .keys = {.norm_eps = "layer_norm_eps"},
       .norm = kLayerNorm,
       .activation = "relu2",
       .gated_mlp = false,
       .qkv_bias = true,
       .output_bias = true,
       .mlp_bias = true,
       .max_positions = 8192},
      {.model_type = "nemotron",
       .architecture = "NemotronForCausalLM",
       .keys = {.norm_eps = "norm_eps"},
       .norm = {.kind = NormKind::layer, .eps = 1e-5f, .weight_offset = 1, .bias = true},
       .activation = "relu2",
       .gated_mlp = false,
       .max_positions = 4096,
       .rotary_share = 0.5},
      {.model_type = "cohere_compass_text",
       .architecture = "CohereCompassForCausalLM",
       .pad_id = 0,
       .names = cohere_names(),
       .keys = {.norm_eps = "layer_norm_eps"},
       .norm = {.kind = NormKind::layer, .eps = 1e-5f},
       .parallel_residual = true,
       .tied_head = true,
       .max_positions = 8192,
       .local_rope_base = 10000,
       .window_rule = WindowRule::listed,
       .window = 4096,
       .finish = finish_cohere_compass},
  };
}

}  // namespace nibble
