// Dense families without rope: positions are learned, or fixed ones, or biases of the scores (ALiBi).

#include <algorithm>

#include "nibble/core/models/families/config_reader.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/models/families/family_names.h"
#include "nibble/core/models/families/family_rules.h"
#include "nibble/core/models/families/gguf/gguf_rules.h"

namespace nibble {

namespace {

TensorNames gpt_neo_names() {
  TensorNames names = gpt2_names();
  names.block.attention = attention_below("attn.attention");
  return names;
}

TensorNames biogpt_names() {
  TensorNames names = opt_names();
  names.embedding = "biogpt.embed_tokens";
  names.positions = "biogpt.embed_positions";
  names.layers = "biogpt.layers.";
  names.final_norm = "biogpt.layer_norm";
  names.head = "output_projection";
  return names;
}

TensorNames mpt_names() {
  TensorNames names;
  names.embedding = "transformer.wte";
  names.layers = "transformer.blocks.";
  names.final_norm = "transformer.norm_f";
  names.block.attention_norm = "norm_1";
  names.block.mlp_norm = "norm_2";
  names.block.attention.qkv = "attn.Wqkv";
  names.block.attention.output = "attn.out_proj";
  names.block.mlp.up = "ffn.up_proj";
  names.block.mlp.down = "ffn.down_proj";
  return names;
}

TensorNames openai_gpt_names() {
  TensorNames names = gpt2_names();
  names.embedding = "transformer.tokens_embed";
  names.positions = "transformer.positions_embed";
  names.final_norm = "";
  return names;
}

TensorNames ctrl_names() {
  TensorNames names;
  names.embedding = "transformer.w";
  names.layers = "transformer.h.";
  names.final_norm = "transformer.layernorm";
  BlockNames& block = names.block;
  block.attention_norm = "layernorm1";
  block.mlp_norm = "layernorm2";
  block.attention.q = "multi_head_attention.Wq";
  block.attention.k = "multi_head_attention.Wk";
  block.attention.v = "multi_head_attention.Wv";
  block.attention.output = "multi_head_attention.dense";
  block.mlp.up = "ffn.0";
  block.mlp.down = "ffn.2";
  return names;
}

TensorNames xglm_names() {
  TensorNames names = opt_names();
  names.embedding = "model.embed_tokens";
  names.positions = "";
  names.layers = "model.layers.";
  names.final_norm = "model.layer_norm";
  return names;
}

void finish_ctrl(const ConfigReader&, DecoderConfig& config) {
  config.fixed_positions = FixedPositions::ctrl;
  config.noise_is_scaled = true;
  config.head_bias = true;
}

void finish_xglm(const ConfigReader& file, DecoderConfig& config) {
  config.fixed_positions = FixedPositions::xglm;
  if (config.width < 4) file.fail("d_model", "is too small for its positions");
  if (!file.boolean("scale_embedding", true)) config.embedding_scale = 1;
  if (file.boolean("add_cross_attention", false)) file.fail("add_cross_attention", "is true");
}

void finish_gpt_neo(const ConfigReader& file, DecoderConfig& config) {
  config.attention_scale = 1;
  const std::vector<std::string> kinds = file.texts("attention_layers");
  if (!kinds.empty() && kinds.size() < config.layer.size()) {
    file.fail("attention_layers",
              "has " + std::to_string(kinds.size()) + " entries for " + std::to_string(config.layers) + " layers");
  }
  const int64_t window = file.integer("window_size", 1, int64_t{1} << 30, 256);
  for (size_t l = 0; l < config.layer.size(); ++l) {
    config.layer[l].window = (kinds.empty() ? l % 2 == 1 : kinds[l] == "local") ? window : 0;
  }
}

void finish_biogpt(const ConfigReader& file, DecoderConfig& config) {
  if (!file.boolean("scale_embedding", true)) config.embedding_scale = 1;
}

void finish_mpt(const ConfigReader& file, DecoderConfig& config) {
  config.alibi = Alibi::exact;
  const std::optional<ConfigReader> attention = file.object("attn_config");
  if (!attention) return;
  config.qkv_clip = static_cast<float>(attention->number("clip_qkv", 1e-9, 1e9, 0));
  config.attention_scale =
      static_cast<float>(attention->number("softmax_scale", 1e-9, 1e9, static_cast<double>(config.attention_scale)));
  if (attention->integer("alibi_bias_max", 1, 1 << 20, 8) != 8) attention->fail("alibi_bias_max", "is not 8");
}

// "gelu" is the tanh form here.
void finish_openai_gpt(const ConfigReader& file, DecoderConfig& config) {
  if (file.text("afn", "gelu") == "gelu") config.activation = ops::Activation::gelu_tanh;
  config.norm_place = NormPlace::sum;
  config.transposed_linears = true;
}

}  // namespace

ConfigKeys gpt2_keys(std::string_view mlp_width, std::string_view activation) {
  return {.width = "n_embd|hidden_size",
          .layers = "n_layer|num_hidden_layers",
          .heads = "n_head|num_attention_heads",
          .mlp_width = mlp_width,
          .max_positions = "n_positions|max_position_embeddings",
          .head_size = "",
          .kv_heads = "",
          .norm_eps = "layer_norm_epsilon",
          .activation = activation};
}

std::vector<Family> without_rope_families() {
  return {
      {.model_type = "gpt2",
       .architecture = "GPT2LMHeadModel",
       .padded_table = false,
       .names = gpt2_names(),
       .keys = gpt2_keys(),
       .norm = kLayerNorm,
       .activation = "gelu_new",
       .gated_mlp = false,
       .biases = true,
       .tied_head = true,
       .mlp_share = 4,
       .max_positions = 1024,
       .rope = RopeRule::none,
       .finish = finish_gpt2,
       .gguf = {.architecture = "gpt2", .biases = true},
       .peft_targets = {"c_attn"}},
      {.model_type = "opt",
       .architecture = "OPTForCausalLM",
       .pad_id = 1,
       .names = opt_names(),
       .keys = {.mlp_width = "ffn_dim",
                .head_size = "",
                .kv_heads = "",
                .norm_eps = "layer_norm_eps",
                .activation = "activation_function"},
       .norm = kLayerNorm,
       .activation = "relu",
       .gated_mlp = false,
       .biases = true,
       .tied_head = true,
       .position_offset = 2,
       .rope = RopeRule::none,
       .finish = finish_opt,
       .peft_targets = {"q_proj", "v_proj"}},
      {.model_type = "gpt_bigcode",
       .architecture = "GPTBigCodeForCausalLM",
       .padded_table = false,
       .names = gpt2_names(),
       .keys = gpt2_keys(),
       .norm = kLayerNorm,
       .activation = "gelu_pytorch_tanh",
       .gated_mlp = false,
       .biases = true,
       .tied_head = true,
       .mlp_share = 4,
       .max_positions = 1024,
       .rope = RopeRule::none,
       .finish = finish_gpt_bigcode,
       .gguf = {.architecture = "starcoder", .biases = true, .config = gguf_bigcode},
       .peft_targets = {"c_attn"}},
      {.model_type = "bloom",
       .architecture = "BloomForCausalLM",
       .padded_table = false,
       .names = bloom_names(),
       .keys = {.width = "n_embed|hidden_size",
                .layers = "n_layer|num_hidden_layers",
                .heads = "n_head|num_attention_heads",
                .mlp_width = "",
                .max_positions = "seq_length",
                .head_size = "",
                .kv_heads = "",
                .norm_eps = "layer_norm_epsilon",
                .activation = ""},
       .norm = kLayerNorm,
       .activation = "gelu_pytorch_tanh",
       .gated_mlp = false,
       .biases = true,
       .tied_head = true,
       .mlp_share = 4,
       .rope = RopeRule::none,
       .finish = finish_bloom,
       .gguf = {.architecture = "bloom", .biases = true, .alibi = true},
       .peft_targets = {"query_key_value"}},
      {.model_type = "gpt_neo",
       .architecture = "GPTNeoForCausalLM",
       .padded_table = false,
       .names = gpt_neo_names(),
       .keys = {.layers = "num_layers|num_hidden_layers",
                .heads = "num_heads|num_attention_heads",
                .head_size = "",
                .kv_heads = "",
                .norm_eps = "layer_norm_epsilon",
                .activation = "activation_function",
                .qkv_bias = "",
                .output_bias = "",
                .mlp_bias = ""},
       .norm = kLayerNorm,
       .activation = "gelu_new",
       .gated_mlp = false,
       .output_bias = true,
       .mlp_bias = true,
       .tied_head = true,
       .mlp_share = 4,
       .rope = RopeRule::none,
       .finish = finish_gpt_neo,
       .peft_targets = {"q_proj", "v_proj"}},
      {.model_type = "biogpt",
       .architecture = "BioGptForCausalLM",
       .pad_id = 1,
       .names = biogpt_names(),
       .keys = {.head_size = "", .kv_heads = "", .norm_eps = ""},  // whatever layer_norm_eps says
       .norm = kLayerNorm,
       .activation = "gelu",
       .gated_mlp = false,
       .biases = true,
       .tied_head = true,
       .scaled_embedding = true,
       .max_positions = 1024,
       .position_offset = 2,
       .rope = RopeRule::none,
       .finish = finish_biogpt},
      {.model_type = "mpt",
       .architecture = "MptForCausalLM|MPTForCausalLM",
       .padded_table = false,
       .names = mpt_names(),
       .keys = {.width = "d_model|hidden_size",
                .layers = "n_layers|num_hidden_layers",
                .heads = "n_heads|num_attention_heads",
                .mlp_width = "",
                .max_positions = "max_seq_len",
                .head_size = "",
                .kv_heads = "",
                .norm_eps = "layer_norm_epsilon",
                .activation = "",
                .qkv_bias = "",
                .output_bias = "",
                .mlp_bias = ""},
       .norm = {.kind = NormKind::layer, .eps = 1e-5f},
       .activation = "gelu",
       .gated_mlp = false,
       .tied_head = true,
       .mlp_share = 4,
       .rope = RopeRule::none,
       .finish = finish_mpt,
       .peft_targets = {"Wqkv"}},
      {.model_type = "openai-gpt",
       .architecture = "OpenAIGPTLMHeadModel",
       .padded_table = false,
       .names = openai_gpt_names(),
       .keys = gpt2_keys("", "afn"),
       .norm = kLayerNorm,
       .activation = "gelu",
       .gated_mlp = false,
       .biases = true,
       .tied_head = true,
       .mlp_share = 4,
       .max_positions = 512,
       .rope = RopeRule::none,
       .finish = finish_openai_gpt},
      {.model_type = "ctrl",
       .architecture = "CTRLLMHeadModel",
       .padded_table = false,
       .names = ctrl_names(),
       .keys = gpt2_keys("dff", ""),
       .norm = {.kind = NormKind::layer, .eps = 1e-6f, .bias = true},
       .activation = "relu",
       .gated_mlp = false,
       .biases = true,
       .tied_head = true,
       .scaled_embedding = true,
       .max_positions = 256,
       .rope = RopeRule::none,
       .finish = finish_ctrl},
      {.model_type = "xglm",
       .architecture = "XGLMForCausalLM",
       .pad_id = 1,
       .names = xglm_names(),
       .keys = {.width = "d_model|hidden_size",
                .layers = "num_layers|num_hidden_layers",
                .heads = "attention_heads|num_attention_heads",
                .mlp_width = "ffn_dim",
                .head_size = "",
                .kv_heads = "",
                .norm_eps = "",
                .activation = "activation_function"},
       .norm = kLayerNorm,
       .activation = "gelu",
       .gated_mlp = false,
       .biases = true,
       .tied_head = true,
       .scaled_embedding = true,
       .position_offset = 2,
       .rope = RopeRule::none,
       .finish = finish_xglm},
  };
}

}  // namespace nibble
