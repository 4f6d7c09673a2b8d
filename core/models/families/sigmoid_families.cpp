// Mixtures whose router weighs experts by the sigmoid of their logits, as DeepSeek V3's does.

#include <algorithm>
#include <cmath>

#include "nibble/core/models/families/expert_families.h"
#include "nibble/core/models/families/expert_rules.h"
#include "nibble/core/models/families/family_names.h"
#include "nibble/core/models/families/gguf/gguf_rules.h"
#include "nibble/core/models/families/latent_families.h"

namespace nibble {

namespace {

constexpr std::string_view kRoutedExperts = "n_routed_experts|num_local_experts|num_experts";
constexpr const char* kCorrection = "mlp.gate.e_score_correction_bias";

// Experts of DeepSeek V3's kind: router, shared MLP, dense layers before them.
ExpertsConfig& read_deepseek(const ConfigReader& file, DecoderConfig& config, double scale, int64_t dense,
                             int64_t shared = 1) {
  read_experts(file, config, kRoutedExperts, "moe_intermediate_size");
  read_sigmoid_router(file, config, scale);
  read_shared_experts(file, config, shared);
  use_experts_after_dense(file, config, dense);
  return *config.experts;
}

void finish_glm4_moe_lite(const ConfigReader& file, DecoderConfig& config) {
  use_latent_attention(file, config);
  read_deepseek(file, config, 1.8, 1);
}

void finish_sarvam_mla(const ConfigReader& file, DecoderConfig& config) {
  use_latent_attention(file, config);
  read_deepseek(file, config, 2.5, 1);
}

void finish_sarvam_moe(const ConfigReader& file, DecoderConfig& config) {
  if (!file.boolean("use_qk_norm", true)) config.qk_norm.reset();
  read_deepseek(file, config, 2.5, 1);
  const int64_t queries = config.heads * config.head_size, keys = config.kv_heads * config.head_size;
  config.fused_tensors = {{"attention.query_key_value",
                           {{"attention.q_proj", queries}, {"attention.k_proj", keys}, {"attention.v_proj", keys}}}};
  config.adapter_names = {{".word_embeddings.", ".embed_tokens."},
                          {".attention.", ".self_attn."},
                          {".dense.", ".o_proj."},
                          {".query_layernorm.", ".q_norm."},
                          {".key_layernorm.", ".k_norm."}};
}

// The norm after the experts is theirs: dense layers have none.
void finish_axk1(const ConfigReader& file, DecoderConfig& config) {
  use_latent_attention(file, config);
  read_deepseek(file, config, 2.5, 1);
  if (file.integer("moe_layer_freq", 1, 65536, 1) != 1) file.fail("moe_layer_freq", "is not 1");
  for (LayerConfig& layer : config.layer) layer.post_mlp_norm = static_cast<bool>(layer.feed_forward);
  config.adapter_names = {{".post_mlp_layernorm.", ".mlp.post_mlp_layernorm."}};
}

void finish_dots1(const ConfigReader& file, DecoderConfig& config) {
  const bool normalized = file.boolean("norm_topk_prob", false);
  read_deepseek(file, config, 1, 0, 0).routing.normalize = normalized;
}

void finish_solar_open(const ConfigReader& file, DecoderConfig& config) {
  config.output_bias = false;
  read_deepseek(file, config, 1, 0);
}

void finish_exaone_moe(const ConfigReader& file, DecoderConfig& config) { read_deepseek(file, config, 2.5, 1); }

void finish_hy_v3(const ConfigReader& file, DecoderConfig& config) {
  config.adapter_names = {{".mlp.shared_mlp.", ".mlp.shared_experts."}};
  ExpertsConfig& experts = read_deepseek(file, config, 1, 1);
  experts.routing.scale = static_cast<float>(file.number("router_scaling_factor", 1e-9, 1e9, 2.826));
}

void finish_minimax_m2(const ConfigReader& file, DecoderConfig& config) {
  read_experts(file, config, kRoutedExperts, "intermediate_size");
  read_sigmoid_router(file, config, 1);
  config.experts->routing.epsilon = 0;
  config.experts->routing.normalize = true;
  use_experts_everywhere(config);
  config.layers_passed_over = file.integer("num_nextn_predict_layers|num_mtp_modules", 0, 64, 0);
  RopeConfig& rope = config.rope.at(0);  // published files say how many elements of a head are turned
  rope.size = file.integer("rotary_dim", 2, config.head_size, rope.size);
  if (rope.size % 2 != 0) file.fail("rotary_dim", "is " + std::to_string(rope.size) + ", which must be even");
}

void finish_afmoe(const ConfigReader& file, DecoderConfig& config) {
  config.attention_gate = OutputGate::own;
  if (file.boolean("mup_enabled", false)) config.embedding_scale = std::sqrt(static_cast<float>(config.width));
  config.noise_is_scaled = true;
  ExpertsConfig& experts = read_deepseek(file, config, 1, 1, 2);
  experts.routing.scale = static_cast<float>(file.number("route_scale", 1e-9, 1e9, 1));
  experts.routing.normalize = file.boolean("route_norm", true);
}

// Layers 0 and 1 and the last see everything, and every fourth from the second on.
void finish_flint(const ConfigReader& file, DecoderConfig& config) {
  config.attention_sinks = true;
  config.adapter_names = {{".self_attn.softmax_offset", ".self_attn.sinks"}};
  for (int64_t l = 0; l < config.layers && !file.has("layer_types"); ++l) {
    if (l >= 2 && l % 4 != 1 && l != config.layers - 1) continue;
    LayerConfig& layer = config.layer[static_cast<size_t>(l)];
    layer.window = 0;
    layer.rotary = -1;
  }
  ExpertsConfig& experts = read_experts(file, config, kRoutedExperts, "moe_intermediate_size");
  read_sigmoid_router(file, config, 1);
  experts.routing.epsilon = 0;
  experts.shared_hidden = file.integer("shared_expert_intermediate_size", 1, int64_t{1} << 20, 1024);
  if (file.has("mlp_only_layers")) return use_experts_by_step(file, config);
  for (int64_t l = 2; l < config.layers; ++l) config.use_experts(l);
}

// Heads differ in number by layer, and every one has a gate.
void finish_laguna(const ConfigReader& file, DecoderConfig& config) {
  if (!file.has("rope_parameters")) file.fail("rope_parameters", "is missing");
  if (file.is_text("gating") ? file.text("gating", "") != "per-head" : !file.boolean("gating", true)) {
    file.fail("gating", "is not per head", "nibble computes no other gates of this family");
  }
  if (file.boolean("moe_apply_router_weight_on_input", false) ||
      file.number("moe_router_logit_softcapping", 0, 1e9, 0) > 0) {
    file.fail("moe_router_logit_softcapping|moe_apply_router_weight_on_input", "is not what nibble computes");
  }
  config.attention_gate = OutputGate::heads_softplus;
  config.adapter_names = {{".mlp.shared_expert.", ".mlp.shared_experts."}};
  const std::vector<double> heads = file.numbers("num_attention_heads_per_layer", 1, 65536);
  if (!heads.empty() && heads.size() != config.layer.size()) {
    file.fail("num_attention_heads_per_layer", "has another number of entries than there are layers");
  }
  for (size_t l = 0; l < heads.size(); ++l) {
    config.layer[l].heads = static_cast<int64_t>(heads[l]);
    if (config.layer[l].heads * config.head_size > int64_t{1} << 20) {
      file.fail("num_attention_heads_per_layer", "holds a number that is too large for such heads");
    }
    if (config.layer[l].heads % config.kv_heads != 0) {
      file.fail("num_attention_heads_per_layer", "holds a number that num_key_value_heads does not divide");
    }
  }
  ExpertsConfig& experts = read_experts(file, config, kRoutedExperts, "moe_intermediate_size");
  read_sigmoid_router(file, config, 1);
  experts.routing.epsilon = 0;
  experts.routing.normalize = true;
  experts.routing.scale = static_cast<float>(file.number("moe_routed_scaling_factor", 1e-9, 1e9, 1));
  experts.shared_hidden = file.integer("shared_expert_intermediate_size", 1, int64_t{1} << 20, 512);
  use_experts_after_dense(file, config, 1);
}

// Indexers choose the keys that a token sees: all of them in texts of no more than index_topk tokens.
void finish_deepseek_v32(const ConfigReader& file, DecoderConfig& config) {
  use_latent_attention(file, config);
  read_experts(file, config, kRoutedExperts, "moe_intermediate_size");
  const bool deepseek = config.model_type == "deepseek_v32";
  read_sigmoid_router(file, config, 2.5, deepseek ? 8 : 1, deepseek ? 4 : 1);
  read_shared_experts(file, config);
  use_experts_after_dense(file, config, 3);
  config.passed_over = ".self_attn.indexer.";
  config.longest_text = file.integer("index_topk", 1, int64_t{1} << 30, 2048);
  config.max_positions = std::min(config.max_positions, config.longest_text);
}

void finish_kolibri1(const ConfigReader& file, DecoderConfig& config) {
  ExpertsConfig& experts = read_experts(file, config, kRoutedExperts, "moe_intermediate_size");
  read_sigmoid_router(file, config, 1);
  experts.routing.normalize = file.boolean("norm_topk_prob", false);
  experts.routing.epsilon = 0;
  experts.routing.logits_choose = true;
  experts.shared_hidden = file.integer("shared_expert_intermediate_size", 1, int64_t{1} << 20, 512);
  use_experts_everywhere(config);
}

// Layers with a window have a sink and twice the heads of keys.
void finish_mimo_v2_flash(const ConfigReader& file, DecoderConfig& config) {
  config.attention_sinks = true;
  config.output_bias = false;
  config.value_size = file.integer("v_head_dim", 1, config.head_size, 128);
  config.value_scale = static_cast<float>(
      file.is_null("attention_value_scale") ? 1 : file.number("attention_value_scale", 1e-9, 1e9, 0.707));
  const int64_t wide = 2 * config.kv_heads;
  if (config.heads % wide != 0) file.fail("num_attention_heads", "is no multiple of twice num_key_value_heads");
  for (size_t l = 0; l < config.layer.size(); ++l) {
    LayerConfig& layer = config.layer[l];
    if (!file.has("layer_types") && l == 0) layer.window = layer.rotary = 0;
    layer.sinks = layer.window > 0;
    if (!layer.sinks) continue;
    layer.kv_heads = wide;
    if (file.has("sliding_window_size")) layer.window = file.integer("sliding_window_size", 0, 1 << 30) + 1;
  }
  read_deepseek(file, config, 1, 1, 0).shared_hidden = 0;
}

TensorNames with_correction(TensorNames names, const std::string& correction, const std::string& peft = "") {
  names.block.experts.correction = correction;
  names.block.experts.peft_correction = peft;
  return names;
}

TensorNames axk1_names() {
  TensorNames names = deepseek_v3_names();
  names.block.post_mlp_norm = "post_mlp_layernorm";
  names.block.experts.peft_translates = false;
  return names;
}

TensorNames sarvam_moe_names() {
  TensorNames names = with_correction(deepseek_v3_names(), "mlp.gate.expert_bias", "mlp.gate.e_score_correction_bias");
  names.embedding = "model.word_embeddings";
  names.block.experts.peft_translates = false;
  names.block.attention = attention_below("attention", "dense");
  names.block.attention.q_norm = "attention.query_layernorm";
  names.block.attention.k_norm = "attention.key_layernorm";
  return names;
}

TensorNames hy_v3_names() {
  TensorNames names = with_correction({}, "mlp.expert_bias", "mlp.e_score_correction_bias");
  names.block.experts.peft_translates = false;
  names.block.experts.router = "mlp.router.gate";
  names.block.experts.shared = mlp_below("mlp.shared_mlp");
  return names;
}

TensorNames afmoe_names() {
  TensorNames names = with_correction(deepseek_v3_names(), "mlp.expert_bias");
  names.block.post_attention_norm = "post_attention_layernorm";
  names.block.mlp_norm = "pre_mlp_layernorm";
  names.block.post_mlp_norm = "post_mlp_layernorm";
  names.block.experts.router = names.block.experts.peft_router = "mlp.router.gate";
  return names;
}

TensorNames flint_names() {
  TensorNames names = qwen2_moe_names();
  names.block.experts.shared_gate = "";
  names.block.attention.sinks = "self_attn.softmax_offset";
  return names;
}

TensorNames kolibri1_names() {
  TensorNames names = with_correction(deepseek_v3_names(), "moe.router.expert_bias", kCorrection);
  names.block.post_attention_norm = "post_attn_norm";
  names.block.post_mlp_norm = "post_ffn_norm";
  names.block.experts.peft_translates = false;
  return names;
}

TensorNames laguna_names() {
  TensorNames names = with_correction(flint_names(), "mlp.experts.e_score_correction_bias", kCorrection);
  names.block.attention.gate = "self_attn.g_proj";
  return names;
}

TensorNames mimo_names() {
  TensorNames names = deepseek_v3_names();
  names.block.attention.sinks = "self_attn.attention_sink_bias";
  names.block.experts.peft_translates = false;
  return names;
}

}  // namespace

std::vector<Family> sigmoid_families() {
  return {
      {.model_type = "glm4_moe_lite",
       .architecture = "Glm4MoeLiteForCausalLM",
       .names = deepseek_v3_names(),
       .keys = {.head_size = kLatentHeadKey, .kv_heads = ""},
       .norm = kRms5,
       .head_size = 64,
       .max_positions = 202752,
       .rope_pairs = ops::RopePairs::neighbours,
       .finish = finish_glm4_moe_lite,
       .gguf = kDeepseek2},
      {.model_type = "sarvam_mla",
       .architecture = "SarvamMLAForCausalLM|DeepseekV3ForCausalLM",
       .names = deepseek_v3_names(),
       .keys = {.head_size = kLatentHeadKey, .kv_heads = ""},
       .head_size = 64,
       .max_positions = 4096,
       .rope_pairs = ops::RopePairs::neighbours,
       .finish = finish_sarvam_mla},
      {.model_type = "sarvam_moe",
       .architecture = "SarvamMoEForCausalLM|Glm4MoeForCausalLM",
       .pad_id = 0,
       .names = sarvam_moe_names(),
       .keys = {.qkv_bias = "use_qkv_bias|attention_bias", .output_bias = ""},
       .qk_norm = HeadNormKind::head,
       .kv_heads = 4,
       .head_size = 64,
       .max_positions = 131072,
       .rope_base = 8e6,
       .finish = finish_sarvam_moe},
      {.model_type = "axk1",
       .architecture = "AXK1ForCausalLM",
       .names = axk1_names(),
       .keys = {.head_size = kLatentHeadKey, .kv_heads = ""},
       .head_size = 64,
       .max_positions = 131072,
       .rope_pairs = ops::RopePairs::neighbours,
       .finish = finish_axk1},
      {.model_type = "dots1",
       .architecture = "Dots1ForCausalLM",
       .names = deepseek_v3_names(),
       .qk_norm = HeadNormKind::head,
       .kv_heads = 32,
       .window_rule = WindowRule::after,
       .window = 4096,
       .finish = finish_dots1,
       .gguf = {.architecture = "dots1", .own_head = true, .mixture = true, .says_routes = true, .config = gguf_dots1}},
      {.model_type = "solar_open",
       .architecture = "SolarOpenForCausalLM",
       .names = deepseek_v3_names(),
       .keys = {.mlp_width = "moe_intermediate_size"},
       .norm = kRms5,
       .kv_heads = 8,
       .head_size = 128,
       .max_positions = 131072,
       .rope_base = 1e6,
       .finish = finish_solar_open},
      {.model_type = "exaone_moe",
       .architecture = "ExaoneMoeForCausalLM",
       .pad_id = 0,
       .names = with_correction(deepseek_v3_names(), "mlp.e_score_correction_bias", kCorrection),
       .keys = {.qkv_bias = "", .output_bias = "", .mlp_bias = ""},
       .norm = kRms5,
       .qk_norm = HeadNormKind::head,
       .kv_heads = 32,
       .rope = RopeRule::windowed_or_all,
       .window_rule = WindowRule::period,
       .window = 4096,
       .window_period = 4,
       .finish = finish_exaone_moe},
      {.model_type = "hy_v3",
       .architecture = "HYV3ForCausalLM",
       .names = hy_v3_names(),
       .norm = kRms5,
       .qk_norm = HeadNormKind::head,
       .kv_heads = 8,
       .head_size = 128,
       .max_positions = 131072,
       .rope_base = 11158840,
       .finish = finish_hy_v3},
      {.model_type = "minimax_m2",
       .architecture = "MiniMaxM2ForCausalLM",
       .names =
           with_correction(mixtral_names(), "block_sparse_moe.e_score_correction_bias", "mlp.e_score_correction_bias"),
       .qk_norm = HeadNormKind::whole,
       .kv_heads = 8,
       .head_size = 128,
       .max_positions = 196608,
       .rope_base = 5e6,
       .finish = finish_minimax_m2,
       .router_noise = "router_jitter_noise",
       .aux_loss_coef = 0.001},
      {.model_type = "afmoe",
       .architecture = "AfmoeForCausalLM",
       .names = afmoe_names(),
       .keys = {.window_period = "global_attn_every_n_layers"},
       .norm = kRms5,
       .qk_norm = HeadNormKind::head,
       .head_size = 128,
       .max_positions = 16384,
       .rope = RopeRule::windowed,
       .window_rule = WindowRule::period,
       .window = 1024,
       .window_period = 4,
       .finish = finish_afmoe},
      {.model_type = "flint",
       .architecture = "FlintForCausalLM",
       .names = flint_names(),
       .qk_norm = HeadNormKind::head,
       .kv_heads = 4,
       .head_size = 128,
       .max_positions = 262144,
       .rope = RopeRule::windowed,
       .window_rule = WindowRule::types,
       .window = 513,
       .finish = finish_flint,
       .aux_loss_coef = 0.0005},
      {.model_type = "laguna",
       .architecture = "LagunaForCausalLM",
       .names = laguna_names(),
       .qk_norm = HeadNormKind::head,
       .kv_heads = 8,
       .head_size = 128,
       .max_positions = 131072,
       .rope_base = 500000,
       .window_rule = WindowRule::listed,
       .window = 512,
       .finish = finish_laguna,
       .aux_loss_coef = 0.001},
      {.model_type = "deepseek_v32",
       .architecture = "DeepseekV32ForCausalLM",
       .names = deepseek_v3_names(),
       .keys = {.head_size = kLatentHeadKey, .kv_heads = "", .mlp_bias = ""},
       .head_size = 64,
       .max_positions = 163840,
       .rope_pairs = ops::RopePairs::neighbours,
       .finish = finish_deepseek_v32},
      {.model_type = "glm_moe_dsa",
       .architecture = "GlmMoeDsaForCausalLM",
       .names = deepseek_v3_names(),
       .keys = {.head_size = kLatentHeadKey, .kv_heads = "", .mlp_bias = ""},
       .norm = kRms5,
       .head_size = 64,
       .max_positions = 202752,
       .rope_pairs = ops::RopePairs::neighbours,
       .finish = finish_deepseek_v32},
      {.model_type = "kolibri1",
       .architecture = "Kolibri1ForCausalLM",
       .names = kolibri1_names(),
       .keys = {.mlp_width = "moe_intermediate_size", .qkv_bias = "", .output_bias = "", .mlp_bias = ""},
       .qk_norm = HeadNormKind::head,
       .kv_heads = 4,
       .head_size = 128,
       .max_positions = 262144,
       .rope = RopeRule::windowed_or_all,
       .window_rule = WindowRule::period,
       .window = 513,
       .window_period = 5,
       .finish = finish_kolibri1},
      {.model_type = "mimo_v2_flash",
       .architecture = "MiMoV2FlashForCausalLM",
       .names = mimo_names(),
       .norm = kRms5,
       .kv_heads = 4,
       .head_size = 192,
       .max_positions = 131072,
       .rope_base = 5e6,
       .rotary_share = 0.334,
       .local_rope_base = 10000,
       .window_rule = WindowRule::period,
       .window = 129,
       .window_period = 6,
       .finish = finish_mimo_v2_flash},
  };
}

}  // namespace nibble
