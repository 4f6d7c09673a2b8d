#include "nibble/core/models/families/expert_families.h"

#include <algorithm>

#include "nibble/core/models/families/expert_rules.h"
#include "nibble/core/models/families/family_names.h"
#include "nibble/core/models/families/family_rules.h"
#include "nibble/core/models/families/gguf/gguf_rules.h"
#include "nibble/core/models/families/latent_families.h"

namespace nibble {

MlpNames mlp_below(const std::string& module) {
  return {.gate = module + ".gate_proj", .up = module + ".up_proj", .down = module + ".down_proj", .gate_up = ""};
}

TensorNames qwen2_moe_names() {
  TensorNames names;
  names.block.experts.shared = mlp_below("mlp.shared_expert");
  names.block.experts.shared_gate = "mlp.shared_expert_gate";
  names.block.experts.peft_translates = false;
  return names;
}

TensorNames deepseek_v3_names() {
  TensorNames names;
  names.block.experts.correction = "mlp.gate.e_score_correction_bias";
  names.block.experts.shared = mlp_below("mlp.shared_experts");
  return names;
}

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

namespace {

constexpr std::string_view kExperts = "num_local_experts|num_experts";
constexpr int64_t kMostLayers = 65536;

TensorNames granitemoe_names() {
  TensorNames names;
  name_granite_experts(names.block);
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

TensorNames granitemoe_swa_names() {
  TensorNames names;
  name_granite_experts(names.block);
  fuse(names, "block_sparse_moe.experts", "block_sparse_moe.router");
  return names;
}

TensorNames hunyuan_moe_names() {
  TensorNames names = hunyuan_names();
  names.block.experts.router = names.block.experts.peft_router = "mlp.gate.wg";
  names.block.experts.shared = mlp_below("mlp.shared_mlp");
  return names;
}

TensorNames phimoe_names() {
  TensorNames names = mixtral_names();
  names.block.experts.peft_router = "mlp.router";
  names.block.experts.peft_translates = false;
  return names;
}

TensorNames ernie_names() {
  TensorNames names = deepseek_v3_names();
  names.block.experts.correction = "mlp.moe_statics.e_score_correction_bias";
  names.block.experts.peft_correction = "mlp.gate.moe_statics.e_score_correction_bias";
  return names;
}

TensorNames aria_names() {
  TensorNames names;
  fuse(names, "mlp.experts", "mlp.router");
  names.block.experts.fused_gate_up = "mlp.experts.fc1.weight";
  names.block.experts.fused_down = "mlp.experts.fc2.weight";
  names.block.experts.shared = mlp_below("mlp.shared_experts");
  return names;
}

TensorNames cohere2_moe_names() {
  TensorNames names = cohere_names();
  names.block.experts.shared = mlp_below("mlp.shared_experts");
  return names;
}

void finish_flex_olmo(const ConfigReader& file, DecoderConfig& config) {
  read_experts(file, config, kExperts, "intermediate_size").routing.normalize = file.boolean("norm_topk_prob", false);
  use_experts_everywhere(config);
}

void finish_mellum(const ConfigReader& file, DecoderConfig& config) {
  read_experts(file, config, kExperts, "moe_intermediate_size").routing.normalize =
      file.boolean("norm_topk_prob", true);
  use_experts_after_dense(file, config, 0);
}

// Published files say k and the widths layer by layer.
void finish_hunyuan_moe(const ConfigReader& file, DecoderConfig& config) {
  const std::string_view kChosen = "moe_topk|num_experts_per_tok";
  const std::vector<int32_t> chosen = file.ids(kChosen);
  for (const int32_t k : chosen) {
    if (k != chosen.front()) file.fail(kChosen, "differs between layers");
  }
  ExpertsConfig& experts = read_experts(file, config, kExperts, "intermediate_size", "");
  experts.routing.k = chosen.empty() ? 1 : chosen.front();
  if (experts.routing.k < 1) file.fail(kChosen, "is 0, allowed are 1 and more");
  if (experts.routing.k > experts.experts) file.fail(kChosen, "is more than there are experts");
  experts.routing.normalize = true;
  experts.shared_hidden = experts.hidden;
  use_experts_everywhere(config);
}

void finish_ernie4_5_moe(const ConfigReader& file, DecoderConfig& config) {
  ExpertsConfig& experts = read_experts(file, config, "moe_num_experts|num_local_experts|num_experts",
                                        "moe_intermediate_size", "moe_k|num_experts_per_tok");
  experts.routing.normalize = true;
  experts.correction_row = true;
  if (file.number("moe_norm_min", 0, 1, 1e-12) > 1e-9) file.fail("moe_norm_min", "is larger than any sum of chances");
  if (config.mlp_bias) file.fail("use_bias", "is true: biases of experts are not there");
  read_shared_experts(file, config, 2);
  const int64_t first = file.integer("moe_layer_start_index", 0, kMostLayers, 1),
                interval = file.integer("moe_layer_interval", 1, kMostLayers, 1);
  int64_t last = file.integer("moe_layer_end_index", -1, kMostLayers, -1);
  if (last < 0) last = config.layers - 1;
  for (int64_t l = first; l <= std::min(last, config.layers - 1); ++l) {
    if ((l + 1) % interval == 0) config.use_experts(l);
  }
}

void finish_aria(const ConfigReader& file, DecoderConfig& config) {
  ExpertsConfig& experts = read_experts(file, config, "moe_num_experts", "intermediate_size", "moe_topk");
  experts.routing.score = ops::RouterScore::chosen_softmax;
  experts.transposed = true;
  read_shared_experts(file, config, 2);
  use_experts_everywhere(config);
}

// Without a group limit the published files say so by topk_method.
void finish_deepseek_v2(const ConfigReader& file, DecoderConfig& config) {
  use_latent_attention(file, config);
  ExpertsConfig& experts = read_experts(file, config, "n_routed_experts|num_experts", "moe_intermediate_size");
  experts.routing.scale = static_cast<float>(file.number("routed_scaling_factor", 1e-9, 1e9, 1));
  const std::string method = file.text("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    read_groups(file, experts, 1, 1);
  } else if (method != "greedy") {
    file.fail("topk_method", "is unknown: " + method, "known: greedy, group_limited_greedy");
  }
  read_shared_experts(file, config, 2);
  use_experts_after_dense(file, config, 0);
}

// The router's noise in training is left out: the same experts as in inference.
void finish_phimoe(const ConfigReader& file, DecoderConfig& config) {
  ExpertsConfig& experts = read_experts(file, config, kExperts, "intermediate_size");
  if (experts.routing.k != 2) file.fail("num_experts_per_tok", "is not 2");
  if (experts.experts < 2) file.fail(kExperts, "is less than 2");
  experts.routing.score = ops::RouterScore::sparse_mixer;
  experts.routing.jitter = static_cast<float>(file.number("router_jitter_noise", 0, 1e3, 0.01));
  config.head_bias = file.boolean("lm_head_bias", false);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const std::optional<ConfigReader> rope = file.object(key);
    if (!rope || !rope->has("short_mscale")) continue;
    const double magnitude = rope->number("short_mscale", 1e-6, 1e6);
    if (rope->number("long_mscale", 1e-6, 1e6, magnitude) != magnitude)
      rope->fail("long_mscale", "is not short_mscale");
    config.rope.at(0).magnitude = magnitude;
  }
  use_experts_everywhere(config);
}

void finish_granitemoe_swa(const ConfigReader& file, DecoderConfig& config) {
  finish_granitemoeshared(file, config);
  finish_granite_swa(file, config);
}

// Parallel to attention; shared experts and the others may be averaged. Dense layers come first and may all have rope.
void finish_cohere2_moe(const ConfigReader& file, DecoderConfig& config) {
  finish_cohere(file, config);
  if (!file.is_null("rms_norm_eps") && file.has("rms_norm_eps")) {
    config.norm = {.kind = NormKind::rms, .eps = static_cast<float>(file.number("rms_norm_eps", 1e-12, 1))};
  }
  ExpertsConfig& experts = read_experts(file, config, kExperts, "intermediate_size");
  const std::string score = file.text("expert_selection_fn", "softmax");
  if (score != "softmax" && score != "sigmoid") {
    file.fail("expert_selection_fn", "is unknown: " + score, "known: softmax, sigmoid");
  }
  experts.routing.score = score == "softmax" ? ops::RouterScore::chosen_softmax : ops::RouterScore::sigmoid;
  experts.routing.normalize = score == "sigmoid" && file.boolean("norm_topk_prob", true);
  read_shared_experts(file, config, 0);
  if (experts.shared_hidden > 0 && file.text("shared_expert_combination_strategy", "average") == "average") {
    experts.routing.scale = experts.shared_scale = 0.5f;
  }
  if (!file.is_null("prefix_dense_intermediate_size")) {
    config.mlp_width = file.integer("prefix_dense_intermediate_size", 1, kMostLayers << 8, config.mlp_width);
  }
  use_experts_after_dense(file, config, 0);
  const bool all_turn = file.integer("prefix_dense_sliding_window_pattern", 1, kMostLayers, 1) == 1;
  for (LayerConfig& layer : config.layer) {
    if (all_turn && !layer.feed_forward) layer.rotary = 0;
  }
}

TensorNames deepseek_v2_names() {
  TensorNames names = deepseek_v3_names();
  names.block.experts.correction = "";
  return names;
}

Family granitemoe(std::string_view model_type, std::string_view architecture,
                  void (*finish)(const ConfigReader&, DecoderConfig&)) {
  return {.model_type = model_type,
          .architecture = architecture,
          .names = granitemoe_names(),
          .finish = finish,
          .gguf = {.architecture = "granitemoe",
                   .rope_pairs = true,
                   .scales = true,
                   .mixture = true,
                   .normalizes_routes = true,
                   .config = gguf_granitemoe},
          .aux_loss_coef = 0.001};
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
       .finish = finish_mixtral,
       .gguf = {.architecture = "llama",
                .rope_pairs = true,
                .biases = true,
                .mixture = true,
                .normalizes_routes = true,
                .config = gguf_experts},
       .peft_targets = {"q_proj", "v_proj"},
       .router_noise = "router_jitter_noise",
       .aux_loss_coef = 0.001},
      {.model_type = "phimoe",
       .architecture = "PhimoeForCausalLM|PhiMoEForCausalLM",
       .names = phimoe_names(),
       .norm = {.kind = NormKind::layer, .eps = 1e-5f, .bias = true},
       .kv_heads = 8,
       .max_positions = 131072,
       .rope_base = 1e6,
       .window_rule = WindowRule::every,
       .finish = finish_phimoe,
       .draws_experts = true,
       .aux_loss_coef = 0.001},
      {.model_type = "qwen2_moe",
       .architecture = "Qwen2MoeForCausalLM",
       .names = qwen2_moe_names(),
       .qkv_bias = true,
       .kv_heads = 16,
       .max_positions = 32768,
       .window_rule = WindowRule::from_layer,
       .window = 4096,
       .finish = finish_qwen2_moe,
       .gguf = {.architecture = "qwen2moe",
                .biases = true,
                .mixture = true,
                .says_expert_width = true,
                .config = gguf_qwen2_moe},
       .aux_loss_coef = 0.001},
      {.model_type = "qwen3_moe",
       .architecture = "Qwen3MoeForCausalLM",
       .qk_norm = HeadNormKind::head,
       .kv_heads = 4,
       .max_positions = 32768,
       .window_rule = WindowRule::every,
       .window = 4096,
       .finish = finish_qwen3_moe,
       .gguf = {.architecture = "qwen3moe",
                .mixture = true,
                .normalizes_routes = true,
                .says_expert_width = true,
                .config = gguf_qwen3_moe},
       .aux_loss_coef = 0.001},
      {.model_type = "olmoe",
       .architecture = "OlmoeForCausalLM",
       .pad_id = 1,
       .norm = {.kind = NormKind::rms, .eps = 1e-5f},
       .qk_norm = HeadNormKind::whole,
       .max_positions = 4096,
       .finish = finish_olmoe,
       .gguf = {.architecture = "olmoe", .mixture = true, .config = gguf_olmoe},
       .aux_loss_coef = 0.01},
      granitemoe("granitemoe", "GraniteMoeForCausalLM", finish_granitemoe),
      granitemoe("granitemoeshared", "GraniteMoeSharedForCausalLM", finish_granitemoeshared),
      {.model_type = "granitemoe_swa",
       .architecture = "GraniteMoeSWAForCausalLM",
       .names = granitemoe_swa_names(),
       .window_rule = WindowRule::but_first,
       .window = 128,
       .window_period = 4,
       .finish = finish_granitemoe_swa,
       .aux_loss_coef = 0.001},
      {.model_type = "flex_olmo",
       .architecture = "FlexOlmoForCausalLM",
       .pad_id = 100277,
       .names = olmo2_names(),
       .qk_norm = HeadNormKind::whole,
       .max_positions = 4096,
       .rope_base = 500000,
       .finish = finish_flex_olmo,
       .aux_loss_coef = 0.01},
      {.model_type = "mellum",
       .architecture = "MellumForCausalLM",
       .qk_norm = HeadNormKind::head,
       .kv_heads = 4,
       .head_size = 128,
       .max_positions = 131072,
       .rope_base = 500000,
       .local_rope_base = 10000,
       .window_rule = WindowRule::listed,
       .window = 1024,
       .finish = finish_mellum,
       .aux_loss_coef = 0.001},
      {.model_type = "hunyuan_v1_moe",
       .architecture = "HunYuanMoEV1ForCausalLM",
       .pad_id = 0,
       .names = hunyuan_moe_names(),
       .keys = {.head_size = "head_dim|attention_head_dim", .mlp_bias = ""},
       .norm = {.kind = NormKind::rms, .eps = 1e-5f},
       .qk_norm = HeadNormKind::head,
       .qk_norm_after_rope = true,
       .rope_alpha = true,
       .finish = finish_hunyuan_moe},
      {.model_type = "ernie4_5_moe",
       .architecture = "Ernie4_5_MoeForCausalLM",
       .pad_id = 0,
       .names = ernie_names(),
       .keys = {.qkv_bias = "use_bias", .output_bias = "use_bias", .mlp_bias = "use_bias"},
       .norm = {.kind = NormKind::rms, .eps = 1e-5f},
       .tied_head = true,
       .kv_heads = 4,
       .max_positions = 131072,
       .rope_base = 500000,
       .rope_pairs = ops::RopePairs::neighbours,
       .finish = finish_ernie4_5_moe,
       .gguf = {.architecture = "ernie4_5-moe",
                .mixture = true,
                .normalizes_routes = true,
                .says_routes = true,
                .config = gguf_ernie4_5_moe},
       .aux_loss_coef = 0.001},
      {.model_type = "aria_text",
       .architecture = "AriaTextForCausalLM",
       .pad_id = 2,
       .names = aria_names(),
       .finish = finish_aria},
      {.model_type = "cohere2_moe",
       .architecture = "Cohere2MoeForCausalLM",
       .pad_id = 0,
       .names = cohere2_moe_names(),
       .keys = {.norm_eps = "layer_norm_eps"},
       .norm = {.kind = NormKind::layer, .eps = 1e-5f},
       .parallel_residual = true,
       .tied_head = true,
       .head_size = 128,
       .max_positions = 8192,
       .rope = RopeRule::windowed,
       .rope_pairs = ops::RopePairs::neighbours,
       .window_rule = WindowRule::period,
       .window = 4096,
       .window_period = 4,
       .finish = finish_cohere2_moe},
      {.model_type = "deepseek_v2",
       .architecture = "DeepseekV2ForCausalLM",
       .names = deepseek_v2_names(),
       .keys = {.head_size = kLatentHeadKey, .kv_heads = ""},
       .head_size = 64,
       .rope_pairs = ops::RopePairs::neighbours,
       .finish = finish_deepseek_v2,
       .gguf = kDeepseek2},
      {.model_type = "glm4_moe",
       .architecture = "Glm4MoeForCausalLM",
       .names = deepseek_v3_names(),
       .norm = {.kind = NormKind::rms, .eps = 1e-5f},
       .kv_heads = 8,
       .max_positions = 131072,
       .rotary_share = 0.5,
       .finish = finish_glm4_moe,
       .gguf = {.architecture = "glm4moe",
                .biases = true,
                .optional_qk_norm = true,
                .mixture = true,
                .says_routes = true,
                .mlp_norm = "post_attention_norm",
                .config = gguf_glm4_moe}},
      {.model_type = "deepseek_v3",
       .architecture = "DeepseekV3ForCausalLM",
       .names = deepseek_v3_names(),
       .keys = {.head_size = kLatentHeadKey, .kv_heads = ""},
       .head_size = 64,
       .max_positions = 4096,
       .rope_pairs = ops::RopePairs::neighbours,
       .finish = finish_deepseek_v3,
       .gguf = kDeepseek2},
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
       .rope_parameters = R"({"rope_type": "yarn", "factor": 32, "beta_fast": 32, "beta_slow": 1, "truncate": false,
                              "original_max_position_embeddings": 4096})",
       .window_rule = WindowRule::even,
       .window = 128,
       .finish = finish_gpt_oss,
       .gguf = {.architecture = "gpt-oss",
                .biases = true,
                .needs_biases = true,
                .own_head = true,
                .mixture = true,
                .says_routes = true,
                .expert_clamp = 7,
                .yarn = true,
                .mlp_norm = "post_attention_norm",
                .config = gguf_gpt_oss},
       .aux_loss_coef = 0.001},
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
       .finish = finish_llama4,
       .gguf = {.architecture = "llama4",
                .mixture = true,
                .says_expert_width = true,
                .weighs_inputs = true,
                .mixed_layers = true,
                .rope_period = 4,
                .config = gguf_llama4}},
  };
}

}  // namespace nibble
