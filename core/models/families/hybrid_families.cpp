#include <cmath>

#include "nibble/core/models/families/expert_families.h"
#include "nibble/core/models/families/gguf/gguf_rules.h"
#include "nibble/core/models/families/hybrid_rules.h"
#include "nibble/core/models/families/latent_families.h"

namespace nibble {

namespace {

TensorNames zamba2_names() {
  TensorNames names = bamba_names();
  names.block.mlp.gate_up = "feed_forward.gate_up_proj";
  return names;
}

// Layers behind a block that others share.
std::vector<int64_t> zamba2_hybrid_layers(const ConfigReader& file, const DecoderConfig& config) {
  const std::vector<bool> hybrid = attention_layers(file, config, {"hybrid"}, {"mamba", "linear_attention"});
  if (hybrid.empty() && config.layers != 54) file.fail("layers_block_type", "is missing");
  if (hybrid.empty()) return {6, 12, 18, 24, 30, 36, 42, 47, 51};
  std::vector<int64_t> layers;
  for (int64_t l = 0; l < config.layers; ++l) {
    if (hybrid[static_cast<size_t>(l)]) layers.push_back(l);
  }
  return layers;
}

Mamba2Config zamba2_mamba(const ConfigReader& file, const DecoderConfig& config) {
  constexpr int64_t kMost = int64_t{1} << 20;
  Mamba2Config mamba;
  mamba.width = config.width;
  const int64_t values = file.integer("mamba_expand", 1, 1024, 2) * config.width;
  mamba.heads = file.integer("n_mamba_heads", 1, kMost, 8);
  if (values > kMost || values % mamba.heads != 0) {
    file.fail("n_mamba_heads", "is " + std::to_string(mamba.heads) +
                                   ", which does not divide the state space's width, " + std::to_string(values));
  }
  mamba.head_size = values / mamba.heads;
  mamba.groups = file.integer("mamba_ngroups", 1, mamba.heads, 1);
  if (mamba.heads % mamba.groups != 0) file.fail("mamba_ngroups", "does not divide n_mamba_heads");
  mamba.state_size = file.integer("mamba_d_state", 1, 65536, 64);
  mamba.taps = file.integer("mamba_d_conv", 1, 64, 4);
  mamba.input_bias = mamba.output_bias = config.mlp_bias;
  mamba.limits.low = static_cast<float>(file.number("time_step_min", 0, 1e9, 0.001));
  return mamba;
}

// Hybrid layers take the blocks in turn; Transformers ties none of them where it does not tie the head. Scores are
// scaled as if heads had half their size.
void finish_zamba2(const ConfigReader& file, DecoderConfig& config) {
  config.attention_scale *= std::sqrt(2.0f);
  if (file.boolean("use_long_context", false)) config.max_positions = 16384;
  const bool rotates = file.boolean("use_mem_rope", false);
  if (!rotates) config.rope.clear();
  SharedBlockMaker make{.mamba = {zamba2_mamba(file, config), "mamba_decoder.mamba"},
                        .adapters = {.rank = file.integer("adapter_rank", 1, 65536, 128)},
                        .attention_adapters = file.boolean("use_shared_attention_adapter", false)};
  if (make.attention_adapters && config.kv_heads != config.heads) {
    file.fail("num_key_value_heads", "is not num_attention_heads, but adapters of keys have the width of all heads",
              "set use_shared_attention_adapter to false");
  }
  if (make.attention_adapters && config.heads * config.head_size != 2 * config.width) {
    file.fail("attention_head_dim",
              "is " + std::to_string(config.head_size) + ", but adapters of queries have twice the width of the model",
              "set use_shared_attention_adapter to false");
  }
  const Mamba2Maker alone{make.mamba.config, "mamba"};
  for (LayerConfig& layer : config.layer) {
    layer.rotary = rotates ? 0 : -1;
    layer.has_feed_forward = false;
    layer.mixer = alone;
  }
  const std::vector<int64_t> hybrid = zamba2_hybrid_layers(file, config);
  const auto count = static_cast<int64_t>(hybrid.size());
  const int64_t blocks = file.integer("num_mem_blocks", 1, 65536, 1);
  for (int64_t i = 0; i < count; ++i) {
    LayerConfig& layer = config.layer[static_cast<size_t>(hybrid[static_cast<size_t>(i)])];
    make.adapters.uses.clear();
    for (int64_t use = i % blocks; use < count; use += blocks) make.adapters.uses.push_back(use);
    make.adapters.own = i;
    layer.block_of = hybrid[static_cast<size_t>(config.tied_head ? i % blocks : i)];
    layer.mixer = make;
    layer.norms = NormNames{.attention_norm = "", .mlp_norm = ""};  // the block has its own
  }
}

}  // namespace

std::unique_ptr<Mixer> SharedBlockMaker::operator()(const DecoderConfig& all, int64_t l, const std::string& prefix,
                                                    const Makers& makers) const {
  SharedBlockConfig block{.attention = all.attention(l), .mlp = all.mlp(l), .norm = all.norm};
  block.attention.width = 2 * all.width;
  block.attention.out_width = all.width;
  block.mlp.adapters = adapters;
  if (attention_adapters) block.attention.adapters = adapters;
  const BlockNames& names = all.names.block;
  return std::make_unique<SharedBlock>(prefix, names.shared, names.attention, names.mlp, block,
                                       mamba(all, l, prefix, makers), makers);
}

std::vector<Family> hybrid_families() {
  constexpr GgufForm kMambaForm = {.architecture = "mamba", .attends = false, .config = gguf_mamba};
  constexpr GgufForm kQwenForm = {.architecture = "qwen35moe",
                                  .mixture = true,
                                  .normalizes_routes = true,
                                  .says_expert_width = true,
                                  .mlp_norm = "post_attention_norm",
                                  .config = gguf_qwen3_5};
  constexpr auto of = [](GgufForm form, std::string_view architecture, auto config) {
    form.architecture = architecture;
    form.config = config;
    return form;
  };
  // Kernels of Mamba read this weight past its Linear.
  constexpr std::string_view kMambaOutput = "out_proj";
  constexpr NormConfig kNorm = {.kind = NormKind::rms, .eps = 1e-5f};
  constexpr ConfigKeys kMambaKeys = {
      .heads = "", .mlp_width = "", .head_size = "", .kv_heads = "", .norm_eps = "layer_norm_epsilon"};
  return {
      {.model_type = "lfm2",
       .architecture = "Lfm2ForCausalLM",
       .pad_id = 0,
       .names = lfm2_names(),
       .keys = {.mlp_width = "block_ff_dim|intermediate_size", .norm_eps = "norm_eps", .activation = ""},
       .norm = kNorm,
       .qk_norm = HeadNormKind::head,
       .tied_head = true,
       .kv_heads = 8,
       .max_positions = 128000,
       .rope_base = 1e6,
       .finish = finish_lfm2,
       .gguf = {.architecture = "lfm2", .final_norm = "token_embd_norm", .config = gguf_lfm2}},
      {.model_type = "lfm2_moe",
       .architecture = "Lfm2MoeForCausalLM",
       .pad_id = 0,
       .names = lfm2_moe_names(),
       .keys = {.norm_eps = "norm_eps", .activation = ""},
       .norm = kNorm,
       .qk_norm = HeadNormKind::head,
       .tied_head = true,
       .kv_heads = 8,
       .max_positions = 128000,
       .rope_base = 1e6,
       .finish = finish_lfm2_moe,
       .gguf = {.architecture = "lfm2moe",
                .mixture = true,
                .normalizes_routes = true,
                .says_routes = true,
                .final_norm = "token_embd_norm",
                .config = gguf_lfm2_moe}},
      {.model_type = "lfm3",
       .architecture = "Lfm3ForCausalLM",
       .pad_id = 124893,
       .names = lfm3_names(),
       .keys = {.norm_eps = "norm_eps", .activation = ""},
       .norm = kNorm,
       .qk_norm = HeadNormKind::head,
       .tied_head = true,
       .kv_heads = 4,
       .head_size = 128,
       .max_positions = 128000,
       .rope_base = 1e6,
       .local_rope_base = 10000,
       .finish = finish_lfm3},
      {.model_type = "mamba",
       .architecture = "MambaForCausalLM",
       .pad_id = 0,
       .padded_table = false,
       .names = mamba_names(),
       .keys = kMambaKeys,
       .norm = kNorm,
       .tied_head = true,
       .mlp_share = 1,
       .max_positions = 1 << 20,
       .rope = RopeRule::none,
       .finish = finish_mamba,
       .gguf = kMambaForm,
       .peft_refuses = kMambaOutput},
      {.model_type = "falcon_mamba",
       .architecture = "FalconMambaForCausalLM",
       .pad_id = 0,
       .padded_table = false,
       .names = mamba_names(),
       .keys = kMambaKeys,
       .norm = kNorm,
       .tied_head = true,
       .mlp_share = 1,
       .max_positions = 1 << 20,
       .rope = RopeRule::none,
       .finish = finish_mamba,
       .gguf = kMambaForm,
       .peft_refuses = kMambaOutput},
      {.model_type = "jamba",
       .architecture = "JambaForCausalLM",
       .pad_id = 0,
       .names = jamba_names(),
       .kv_heads = 8,
       .max_positions = 262144,
       .rope = RopeRule::none,
       .finish = finish_jamba,
       .gguf = {.architecture = "jamba", .mixture = true, .mixed_layers = true, .config = gguf_jamba},
       .aux_loss_coef = 0.001},
      {.model_type = "mamba2",
       .architecture = "Mamba2ForCausalLM",
       .pad_id = 1,
       .padded_table = false,
       .names = mamba_names(),
       .keys = {.heads = "num_heads", .mlp_width = "", .kv_heads = "", .norm_eps = "layer_norm_epsilon"},
       .norm = kNorm,
       .mlp_share = 1,
       .head_size = 64,
       .rope = RopeRule::none,
       .finish = finish_mamba2,
       .gguf = of(kMambaForm, "mamba2", gguf_mamba2),
       .peft_refuses = kMambaOutput},
      {.model_type = "qwen3_5_text",
       .architecture = "Qwen3_5ForCausalLM",
       .norm = {.kind = NormKind::rms, .eps = 1e-6f, .weight_offset = 1},
       .qk_norm = HeadNormKind::head,
       .kv_heads = 4,
       .head_size = 256,
       .max_positions = 32768,
       .rotary_share = 0.25,
       .finish = finish_qwen3_5,
       .gguf = of(kQwenForm, "qwen35", gguf_qwen3_5)},
      {.model_type = "olmo_hybrid",
       .architecture = "OlmoHybridForCausalLM",
       .pad_id = 100277,
       .names = olmo_hybrid_names(),
       .qk_norm = HeadNormKind::whole,
       .max_positions = 65536,
       .finish = finish_olmo_hybrid,
       .match_files = match_olmo_hybrid},
      {.model_type = "kimi_linear",
       .architecture = "KimiLinearForCausalLM",
       .pad_id = 163839,
       .names = kimi_names(),
       .keys = {.max_positions = "model_max_length|max_position_embeddings",
                .head_size = kLatentHeadKey,
                .kv_heads = ""},
       .norm = kNorm,
       .head_size = 64,
       .max_positions = 1048576,
       .rope = RopeRule::none,
       .finish = finish_kimi_linear,
       .match_files = match_kimi_linear,
       .gguf = {.architecture = "kimi-linear",
                .mixture = true,
                .normalizes_routes = true,
                .says_routes = true,
                .no_adapters = true,
                .config = gguf_kimi_linear}},
      {.model_type = "bailing_hybrid",
       .architecture = "BailingHybridForCausalLM|BailingMoeV3ForCausalLM",
       .pad_id = 156892,
       .names = bailing_names(),
       .keys = {.max_positions = "model_max_length|max_position_embeddings",
                .head_size = kLatentHeadKey,
                .kv_heads = ""},
       .head_size = 64,
       .max_positions = 262144,
       .rope_base = 6e6,
       .rope_pairs = ops::RopePairs::neighbours,
       .finish = finish_bailing_hybrid},
      {.model_type = "qwen3_5_moe_text",
       .architecture = "Qwen3_5MoeForCausalLM",
       .names = qwen2_moe_names(),
       .keys = {.mlp_width = "moe_intermediate_size"},
       .norm = {.kind = NormKind::rms, .eps = 1e-6f, .weight_offset = 1},
       .qk_norm = HeadNormKind::head,
       .kv_heads = 2,
       .head_size = 256,
       .max_positions = 32768,
       .rotary_share = 0.25,
       .finish = finish_qwen3_5_moe,
       .gguf = kQwenForm,
       .aux_loss_coef = 0.001},
      {.model_type = "qwen3_next",
       .architecture = "Qwen3NextForCausalLM",
       .names = qwen3_next_names(),
       .norm = {.kind = NormKind::rms, .eps = 1e-6f, .weight_offset = 1},
       .qk_norm = HeadNormKind::head,
       .kv_heads = 2,
       .head_size = 256,
       .max_positions = 32768,
       .rotary_share = 0.25,
       .finish = finish_qwen3_next,
       .gguf = of(kQwenForm, "qwen3next", gguf_qwen3_next),
       .aux_loss_coef = 0.001},
      {.model_type = "lara_mini",
       .architecture = "LaraMiniForCausalLM",
       .names = lara_mini_names(),
       .keys = {.mlp_width = "moe_intermediate_size"},
       .qk_norm = HeadNormKind::head,
       .tied_head = true,
       .kv_heads = 4,
       .head_size = 128,
       .max_positions = 131072,
       .finish = finish_lara_mini,
       .aux_loss_coef = 0.001},
      {.model_type = "falcon_h1",
       .architecture = "FalconH1ForCausalLM",
       .pad_id = 0,
       .names = bamba_names(),
       .norm = kNorm,
       .kv_heads = 8,
       .max_positions = 8192,
       .finish = finish_falcon_h1,
       .gguf = {.architecture = "falcon-h1",
                .own_head = true,
                .bare_mlp_norm = true,
                .folds_scales = true,
                .config = gguf_falcon_h1},
       .peft_refuses = kMambaOutput},
      {.model_type = "bamba",
       .architecture = "BambaForCausalLM",
       .pad_id = 0,
       .names = bamba_names(),
       .keys = {.rotary_share = ""},  // half a head, whatever partial_rotary_factor says
       .norm = kNorm,
       .kv_heads = 8,
       .max_positions = 262144,
       .rotary_share = 0.5,
       .finish = finish_bamba,
       .gguf = {.architecture = "granitehybrid", .rope_pairs = true, .config = gguf_bamba}},
      {.model_type = "zamba2",
       .architecture = "Zamba2ForCausalLM",
       .pad_id = 0,
       .names = zamba2_names(),
       .keys = {.head_size = "attention_head_dim|head_dim",
                .qkv_bias = "",
                .output_bias = "",
                .mlp_bias = "add_bias_linear"},
       .norm = kNorm,
       .activation = "gelu",
       .tied_head = true,
       .mlp_share = 4,
       .attention_share = 2,
       .max_positions = 4096,
       .finish = finish_zamba2},
      {.model_type = "granitemoehybrid",
       .architecture = "GraniteMoeHybridForCausalLM",
       .names = granite_hybrid_names(),
       .keys = {.mlp_width = "shared_intermediate_size"},
       .finish = finish_granite_hybrid,
       .gguf = {.architecture = "granitehybrid",
                .rope_pairs = true,
                .scales = true,
                .mixture = true,
                .normalizes_routes = true,
                .splits_mlp = true,
                .config = gguf_granite_hybrid},
       .aux_loss_coef = 0.001},
      {.model_type = "nemotron_h",
       .architecture = "NemotronHForCausalLM",
       .pad_id = 0,
       .padded_table = false,
       .names = nemotron_h_names(),
       .keys = {.norm_eps = "layer_norm_epsilon", .activation = "mlp_hidden_act"},
       .norm = kNorm,
       .activation = "relu2",
       .gated_mlp = false,
       .kv_heads = 8,
       .head_size = 128,
       .max_positions = 4096,
       .rope = RopeRule::none,
       .finish = finish_nemotron_h,
       .gguf = {.architecture = "nemotron_h",
                .mixture_architecture = "nemotron_h_moe",
                .rope_pairs = true,
                .mixture = true,
                .says_routes = true,
                .config = gguf_nemotron_h},
       .peft_refuses = kMambaOutput},
  };
}

}  // namespace nibble
