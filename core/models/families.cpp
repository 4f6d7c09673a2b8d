#include "nibble/core/models/families.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/models/config_reader.h"

namespace nibble {

namespace {

TensorNames gemma2_names() {
  TensorNames names;  // the prefix "pre_" tells this family's mlp norm from the norm of the attention's output
  names.block.post_attention_norm = "post_attention_layernorm";
  names.block.mlp_norm = "pre_feedforward_layernorm";
  names.block.post_mlp_norm = "post_feedforward_layernorm";
  return names;
}

TensorNames phi3_names() {
  TensorNames names;
  names.block.attention.qkv = "self_attn.qkv_proj";
  names.block.mlp.gate_up = "mlp.gate_up_proj";
  return names;
}

TensorNames gpt_neox_names() {
  TensorNames names{.embedding = "gpt_neox.embed_in",
                    .positions = "",
                    .layers = "gpt_neox.layers.",
                    .final_norm = "gpt_neox.final_layer_norm",
                    .head = "embed_out",
                    .block = {}};
  names.block.attention.qkv = "attention.query_key_value";
  names.block.attention.output = "attention.dense";
  names.block.mlp.up = "mlp.dense_h_to_4h";
  names.block.mlp.down = "mlp.dense_4h_to_h";
  return names;
}

TensorNames falcon_names() {
  TensorNames names{.embedding = "transformer.word_embeddings",
                    .positions = "",
                    .layers = "transformer.h.",
                    .final_norm = "transformer.ln_f",
                    .head = "lm_head",
                    .block = {}};
  names.block.attention.qkv = "self_attention.query_key_value";
  names.block.attention.output = "self_attention.dense";
  names.block.mlp.up = "mlp.dense_h_to_4h";
  names.block.mlp.down = "mlp.dense_4h_to_h";
  return names;
}

TensorNames gpt2_names() {
  TensorNames names{.embedding = "transformer.wte",
                    .positions = "transformer.wpe",
                    .layers = "transformer.h.",
                    .final_norm = "transformer.ln_f",
                    .head = "lm_head",
                    .block = {}};
  names.block.attention_norm = "ln_1";
  names.block.mlp_norm = "ln_2";
  names.block.attention.qkv = "attn.c_attn";
  names.block.attention.output = "attn.c_proj";
  names.block.mlp.up = "mlp.c_fc";
  names.block.mlp.down = "mlp.c_proj";
  return names;
}

TensorNames opt_names() {
  TensorNames names{.embedding = "model.decoder.embed_tokens",
                    .positions = "model.decoder.embed_positions",
                    .layers = "model.decoder.layers.",
                    .final_norm = "model.decoder.final_layer_norm",
                    .head = "lm_head",
                    .block = {}};
  names.block.attention_norm = "self_attn_layer_norm";
  names.block.mlp_norm = "final_layer_norm";
  names.block.attention.output = "self_attn.out_proj";
  names.block.mlp.up = "fc1";
  names.block.mlp.down = "fc2";
  return names;
}

// What this Block cannot compute is refused by the flag's name.
void refuse(const ConfigReader& file, std::string_view flag, bool unsupported, bool absent) {
  if (file.boolean(flag, absent) == unsupported) {
    file.fail(flag, std::string("is ") + (unsupported ? "true" : "false") + ", which nibble cannot compute yet");
  }
}

void finish_gemma2(const ConfigReader& file, DecoderConfig& config) {
  const auto cap = [&](std::string_view key, double absent) {
    return file.is_null(key) ? 0.0f : static_cast<float>(file.number(key, 1e-3, 1e9, absent));
  };
  config.attention_scale = static_cast<float>(1 / std::sqrt(file.number("query_pre_attn_scalar", 1e-3, 1e9, 256)));
  config.attention_softcap = cap("attn_logit_softcapping", 50);
  config.logit_softcap = cap("final_logit_softcapping", 30);
}

void finish_gpt_neox(const ConfigReader& file, DecoderConfig& config) {
  config.parallel_residual = file.boolean("use_parallel_residual", true);
  config.qkv_bias = config.output_bias = file.boolean("attention_bias", true);
  config.qkv_groups = config.heads;
}

void finish_falcon(const ConfigReader& file, DecoderConfig& config) {
  refuse(file, "alibi", true, false);
  refuse(file, "apply_residual_connection_post_layernorm", true, false);
  const bool by_group = file.boolean("new_decoder_architecture", false);  // Falcon 40B
  const bool one_head = !by_group && file.boolean("multi_query", true);
  if (by_group) config.kv_heads = file.integer("num_kv_heads", 1, config.heads, config.heads);
  if (one_head) config.kv_heads = 1;
  if (config.heads % config.kv_heads != 0) file.fail("num_kv_heads", "does not divide num_attention_heads");
  config.qkv_groups = one_head ? 1 : config.kv_heads;
  config.qkv_bias = config.output_bias = config.mlp_bias = file.boolean("bias", false);
  config.parallel_residual = by_group || file.boolean("parallel_attn", true);
  BlockNames& names = config.names.block;
  if (by_group && file.integer("num_ln_in_parallel_attn", 1, 2, 2) == 2) {
    names.attention_norm = "ln_attn";
    names.mlp_norm = "ln_mlp";
  } else if (config.parallel_residual) {
    names.mlp_norm = "";
  }
}

void finish_gpt2(const ConfigReader& file, DecoderConfig& config) {
  refuse(file, "scale_attn_by_inverse_layer_idx", true, false);
  refuse(file, "add_cross_attention", true, false);
  if (!file.boolean("scale_attn_weights", true)) config.attention_scale = 1;
  config.transposed_linears = true;
}

void finish_opt(const ConfigReader& file, DecoderConfig& config) {
  refuse(file, "do_layer_norm_before", false, true);
  refuse(file, "enable_bias", false, true);
  refuse(file, "layer_norm_elementwise_affine", false, true);
  refuse(file, "_remove_final_layer_norm", true, false);
  if (file.integer("word_embed_proj_dim", 1, int64_t{1} << 20, config.width) != config.width) {
    file.fail("word_embed_proj_dim", "is not hidden_size, which nibble cannot compute yet");
  }
}

constexpr NormConfig kLayerNorm = {.kind = NormKind::layer, .eps = 1e-5f, .bias = true};
constexpr NormConfig kGemmaNorm = {.kind = NormKind::rms, .eps = 1e-6f, .weight_offset = 1};
constexpr ConfigKeys kGpt2Keys = {.width = "n_embd",
                                  .layers = "n_layer",
                                  .heads = "n_head",
                                  .mlp_width = "n_inner",
                                  .max_positions = "n_positions",
                                  .norm_eps = "layer_norm_epsilon",
                                  .activation = "activation_function"};

const std::vector<Family>& rows() {
  static const std::vector<Family> table = {
      {.model_type = "llama", .architecture = "LlamaForCausalLM"},
      {.model_type = "mistral",
       .architecture = "MistralForCausalLM",
       .kv_heads = 8,
       .max_positions = 131072,
       .window_rule = WindowRule::every,
       .window = 4096},
      {.model_type = "qwen2",
       .architecture = "Qwen2ForCausalLM",
       .qkv_bias = true,
       .kv_heads = 32,
       .max_positions = 32768,
       .window_rule = WindowRule::from_layer,
       .window = 4096},
      {.model_type = "qwen3",
       .architecture = "Qwen3ForCausalLM",
       .qk_norm = true,
       .kv_heads = 32,
       .head_size = 128,
       .max_positions = 32768,
       .window_rule = WindowRule::from_layer,
       .window = 4096},
      // `hidden_act` of Gemma files says gelu and means the tanh form; hidden_activation says what it means.
      {.model_type = "gemma",
       .architecture = "GemmaForCausalLM",
       .keys = {.activation = "hidden_activation"},
       .norm = kGemmaNorm,
       .activation = "gelu_pytorch_tanh",
       .tied_head = true,
       .scaled_embedding = true,
       .kv_heads = 16,
       .head_size = 256,
       .max_positions = 8192},
      {.model_type = "gemma2",
       .architecture = "Gemma2ForCausalLM",
       .names = gemma2_names(),
       .keys = {.activation = "hidden_activation"},
       .norm = kGemmaNorm,
       .activation = "gelu_pytorch_tanh",
       .tied_head = true,
       .scaled_embedding = true,
       .kv_heads = 4,
       .head_size = 256,
       .max_positions = 8192,
       .window_rule = WindowRule::even,
       .window = 4096,
       .finish = finish_gemma2},
      {.model_type = "phi3",
       .architecture = "Phi3ForCausalLM",
       .names = phi3_names(),
       .norm = {.kind = NormKind::rms, .eps = 1e-5f},
       .max_positions = 4096,
       .window_rule = WindowRule::every},
      {.model_type = "gpt_neox",
       .architecture = "GPTNeoXForCausalLM",
       .names = gpt_neox_names(),
       .keys = {.norm_eps = "layer_norm_eps", .rotary_share = "rotary_pct", .rope_base = "rotary_emb_base"},
       .norm = kLayerNorm,
       .activation = "gelu",
       .gated_mlp = false,
       .biases = true,
       .rotary_share = 0.25,
       .finish = finish_gpt_neox},
      {.model_type = "falcon",
       .architecture = "FalconForCausalLM",
       .names = falcon_names(),
       .keys = {.mlp_width = "ffn_hidden_size",
                .kv_heads = "",
                .norm_eps = "layer_norm_epsilon",
                .activation = "activation"},
       .norm = kLayerNorm,
       .activation = "gelu",
       .gated_mlp = false,
       .tied_head = true,
       .mlp_share = 4,
       .finish = finish_falcon},
      {.model_type = "gpt2",
       .architecture = "GPT2LMHeadModel",
       .names = gpt2_names(),
       .keys = kGpt2Keys,
       .norm = kLayerNorm,
       .activation = "gelu_new",
       .gated_mlp = false,
       .biases = true,
       .tied_head = true,
       .mlp_share = 4,
       .max_positions = 1024,
       .rope = false,
       .finish = finish_gpt2},
      {.model_type = "opt",
       .architecture = "OPTForCausalLM",
       .names = opt_names(),
       .keys = {.mlp_width = "ffn_dim", .norm_eps = "layer_norm_eps", .activation = "activation_function"},
       .norm = kLayerNorm,
       .activation = "relu",
       .gated_mlp = false,
       .biases = true,
       .tied_head = true,
       .position_offset = 2,
       .rope = false,
       .finish = finish_opt},
  };
  return table;
}
std::string known() {
  std::string list;
  for (const Family& family : rows()) list += (list.empty() ? "" : ", ") + std::string(family.model_type);
  return list;
}

bool same_letters(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

std::span<const Family> families() { return rows(); }

const Family& find_family(std::string_view model_type, std::string_view architecture, const std::string& place) {
  for (const Family& family : rows()) {
    const bool type_fits = model_type.empty() ? !architecture.empty() : model_type == family.model_type;
    // The first conversions of Llama wrote LLaMAForCausalLM.
    const bool architecture_fits = architecture.empty() || same_letters(architecture, family.architecture);
    if (type_fits && architecture_fits) return family;
  }
  const std::string asked = model_type.empty()     ? std::string(architecture)
                            : architecture.empty() ? std::string(model_type)
                                                   : std::string(model_type) + " (" + std::string(architecture) + ")";
  throw InputError(place, asked.empty() ? "says neither model_type nor architectures" : "unknown architecture " + asked,
                   "known: " + known());
}

}  // namespace nibble
