#include "nibble/core/models/families/family_rules.h"

#include <algorithm>
#include <cmath>

namespace nibble {

namespace {

// What this Block cannot compute is refused by the flag's name.
void refuse(const ConfigReader& file, std::string_view flag, bool unsupported, bool absent) {
  if (file.boolean(flag, absent) == unsupported) {
    file.fail(flag, std::string("is ") + (unsupported ? "true" : "false") + ", which nibble cannot compute",
              "take a causal language model: every token sees those before it, and no other text");
  }
}

float read_cap(const ConfigReader& file, std::string_view key, double absent) {
  return file.is_null(key) ? 0.0f : static_cast<float>(file.number(key, 0, 1e9, absent));
}

}  // namespace

// `hidden_act` of published Gemma 1 files says gelu and means the tanh form.
void finish_gemma(const ConfigReader& file, DecoderConfig& config) {
  if (file.text("hidden_act", "gelu") == "gelu") config.activation = ops::Activation::gelu_tanh;
  refuse(file, "use_bidirectional_attention", true, false);
}

void finish_gemma2(const ConfigReader& file, DecoderConfig& config) {
  refuse(file, "use_bidirectional_attention", true, false);
  config.attention_scale = static_cast<float>(1 / std::sqrt(file.number("query_pre_attn_scalar", 1e-3, 1e9, 256)));
  config.attention_softcap = read_cap(file, "attn_logit_softcapping", 50);
  config.logit_softcap = read_cap(file, "final_logit_softcapping", 30);
}

// Transformers reads attn_logit_softcapping of Gemma 3 and does not use it.
void finish_gemma3(const ConfigReader& file, DecoderConfig& config) {
  refuse(file, "use_bidirectional_attention", true, false);
  config.attention_scale = static_cast<float>(1 / std::sqrt(file.number("query_pre_attn_scalar", 1e-3, 1e9, 256)));
  config.logit_softcap = read_cap(file, "final_logit_softcapping", 0);
}

void finish_stablelm(const ConfigReader& file, DecoderConfig& config) {
  config.qkv_bias = file.boolean("use_qkv_bias", false);
  config.output_bias = false;
  config.parallel_residual = file.boolean("use_parallel_residual", false);
  if (config.parallel_residual) config.names.block.mlp_norm = "";
  if (!file.boolean("qk_layernorm", false)) return;
  config.qk_norm = HeadNormConfig{.kind = HeadNormKind::every_head, .norm = config.norm};
  config.qk_norm->norm.bias = false;
}

void finish_phi(const ConfigReader& file, DecoderConfig& config) {
  config.head_bias = true;
  if (file.boolean("qk_layernorm", false)) {
    config.qk_norm = HeadNormConfig{.kind = HeadNormKind::head, .norm = config.norm};
  }
}

void finish_olmo(const ConfigReader& file, DecoderConfig& config) {
  config.qkv_clip = static_cast<float>(file.number("clip_qkv", 1e-9, 1e9, 0));
}

void finish_granite(const ConfigReader& file, DecoderConfig& config) {
  const auto read = [&](std::string_view key) { return static_cast<float>(file.number(key, 1e-9, 1e9, 1)); };
  config.embedding_scale = read("embedding_multiplier");
  config.noise_is_scaled = true;
  config.residual_scale = read("residual_multiplier");
  config.attention_scale = read("attention_multiplier");
  config.logit_scale = 1 / read("logits_scaling");
}

// A sink for every head, and a base of the rope for every layer: 0 is none.
void finish_granite_swa(const ConfigReader& file, DecoderConfig& config) {
  finish_granite(file, config);
  config.attention_sinks = true;
  const std::vector<double> bases = file.numbers("layer_rope_theta", 0, 1e12);
  if (bases.empty()) return;
  if (bases.size() != config.layer.size()) {
    file.fail("layer_rope_theta",
              "has " + std::to_string(bases.size()) + " entries for " + std::to_string(config.layers) + " layers");
  }
  const RopeConfig whole = config.rope.at(0);
  config.rope.clear();
  for (size_t l = 0; l < bases.size(); ++l) {
    const auto same = [&](const RopeConfig& rope) { return rope.base == bases[l]; };
    const auto found = std::find_if(config.rope.begin(), config.rope.end(), same);
    config.layer[l].rotary = bases[l] == 0 ? -1 : static_cast<int>(found - config.rope.begin());
    if (bases[l] == 0 || found != config.rope.end()) continue;
    config.rope.push_back(whole);
    config.rope.back().base = bases[l];
  }
}

void finish_hyperclovax(const ConfigReader& file, DecoderConfig& config) {
  const float natural = config.attention_scale;
  finish_granite(file, config);
  config.logit_scale = 1 / config.logit_scale;  // logits are multiplied where Granite divides them
  if (!file.has("attention_multiplier")) config.attention_scale = natural;
  if (!file.boolean("use_post_norm", true)) {
    config.names.block.post_attention_norm = config.names.block.post_mlp_norm = "";
  }
}

void finish_cohere(const ConfigReader& file, DecoderConfig& config) {
  config.logit_scale = static_cast<float>(file.number("logit_scale", 1e-9, 1e9, 0.0625));
  if (file.boolean("use_qk_norm", false)) config.qk_norm = HeadNormConfig{HeadNormKind::rows, config.norm};
}

void finish_starcoder2(const ConfigReader& file, DecoderConfig& config) {
  config.qkv_bias = config.output_bias = config.mlp_bias = file.boolean("use_bias", true);
}

void finish_gpt_bigcode(const ConfigReader& file, DecoderConfig& config) {
  refuse(file, "add_cross_attention", true, false);
  if (!file.boolean("scale_attn_weights", true)) config.attention_scale = 1;
  const bool one_head = file.boolean("multi_query", true);
  config.kv_heads = one_head ? 1 : config.heads;
  config.qkv_groups = config.kv_heads;
}

void finish_bloom(const ConfigReader& file, DecoderConfig& config) {
  config.qkv_groups = config.heads;
  config.alibi = Alibi::exact;
  if (file.boolean("apply_residual_connection_post_layernorm", false)) config.norm_place = NormPlace::stream;
}

void finish_gptj(const ConfigReader& file, DecoderConfig& config) {
  config.qkv_bias = config.output_bias = false;
  config.mlp_bias = config.head_bias = true;
  RopeConfig rope;
  rope.pairs = ops::RopePairs::neighbours;
  rope.size = file.integer("rotary_dim", 2, 65536, 64);
  if (rope.size > config.head_size || rope.size % 2 != 0) {
    file.fail("rotary_dim", "is " + std::to_string(rope.size) + ", which must be even and at most the head size, " +
                                std::to_string(config.head_size));
  }
  config.rope = {rope};
}

void finish_codegen(const ConfigReader& file, DecoderConfig& config) {
  constexpr int64_t kGroups = 4;  // the parts that the first CodeGen was trained in
  finish_gptj(file, config);
  if (config.heads % kGroups != 0) file.fail("n_head|num_attention_heads", "is no multiple of 4");
  config.qkv_groups = kGroups;
  config.value_before_key = true;
}

void finish_gpt_neox(const ConfigReader& file, DecoderConfig& config) {
  config.parallel_residual = file.boolean("use_parallel_residual", true);
  config.qkv_bias = config.output_bias = file.boolean("attention_bias", true);
  config.qkv_groups = config.heads;
  config.adapter_names = {{"embed_out.", "lm_head."}};
}

void finish_falcon(const ConfigReader& file, DecoderConfig& config) {
  if (file.boolean("alibi", false)) {
    config.alibi = Alibi::rounded;
    config.rope.clear();
    for (LayerConfig& layer : config.layer) layer.rotary = -1;
  }
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
  refuse(file, "add_cross_attention", true, false);
  if (!file.boolean("scale_attn_weights", true)) config.attention_scale = 1;
  if (file.boolean("scale_attn_by_inverse_layer_idx", false)) {
    for (size_t l = 0; l < config.layer.size(); ++l) {
      config.layer[l].attention_scale = config.attention_scale / static_cast<float>(l + 1);
    }
  }
  config.transposed_linears = true;
}

void finish_opt(const ConfigReader& file, DecoderConfig& config) {
  TensorNames& names = config.names;
  config.norm.eps = 1e-5f;
  config.qkv_bias = config.output_bias = config.mlp_bias = file.boolean("enable_bias", true);
  config.norm.weight = config.norm.bias = file.boolean("layer_norm_elementwise_affine", true);
  const bool before = file.boolean("do_layer_norm_before", true);
  if (!before) config.norm_place = NormPlace::sum;  // OPT 350M
  if (!before || file.boolean("_remove_final_layer_norm", false)) names.final_norm = "";
  config.embedding_width = file.integer("word_embed_proj_dim", 1, int64_t{1} << 20, config.width);
  if (config.embedding_width != config.width) {
    names.project_in = "model.decoder.project_in";
    names.project_out = "model.decoder.project_out";
  }
}

}  // namespace nibble
