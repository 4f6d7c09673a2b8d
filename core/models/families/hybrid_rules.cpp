#include "nibble/core/models/families/hybrid_rules.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/models/families/expert_families.h"
#include "nibble/core/models/families/expert_rules.h"
#include "nibble/core/models/families/family_rules.h"
#include "nibble/core/nn/mixers/side_by_side.h"

namespace nibble {

namespace {

float multiplier(const ConfigReader& file, std::string_view key) {
  return static_cast<float>(file.number(key, -1e9, 1e9, 1));
}

// `count` multipliers under `key`; ones where it is absent.
std::vector<float> multipliers(const ConfigReader& file, std::string_view key, size_t count) {
  const std::vector<double> listed = file.numbers(key, -1e9, 1e9);
  if (listed.empty()) return std::vector<float>(count, 1.0f);
  if (listed.size() != count) {
    file.fail(key, "has " + std::to_string(listed.size()) + " entries, not " + std::to_string(count));
  }
  return {listed.begin(), listed.end()};
}

void set_short_convolutions(const ConfigReader& file, DecoderConfig& config, const std::vector<bool>& attention,
                            int64_t taps) {
  const ShortConvConfig conv{.width = config.width,
                             .taps = file.integer("conv_L_cache", 1, kMaxTaps, taps),
                             .bias = file.boolean("conv_bias", false)};
  set_mixers(config, attention, ShortConvMaker{conv});
}

// [0, infinity] where nothing is said.
ops::TimeStepLimits read_limits(const ConfigReader& file) {
  const std::vector<double> limits = file.numbers("time_step_limit", 0, static_cast<double>(ops::kAnyStep.high));
  if (limits.empty()) return ops::kAnyStep;
  if (limits.size() != 2 || limits[0] > limits[1]) file.fail("time_step_limit", "is no pair of limits");
  return {static_cast<float>(limits[0]), static_cast<float>(limits[1])};
}

// What a head holds of `values` columns, "auto" or a number.
int64_t read_head_size(const ConfigReader& file, int64_t values, int64_t heads) {
  if (values % heads != 0) {
    file.fail("mamba_n_heads", "is " + std::to_string(heads) + ", which does not divide the state space's width, " +
                                   std::to_string(values));
  }
  if (!file.has("mamba_d_head") || file.is_text("mamba_d_head")) return values / heads;
  const int64_t size = file.integer("mamba_d_head", 1, kMaxWidth);
  if (size * heads != values) {
    file.fail("mamba_d_head", "is " + std::to_string(size) + ", not the state space's width over its heads, " +
                                  std::to_string(values / heads));
  }
  return size;
}

// Keys as Falcon-H1, Bamba and Granite 4 spell them; values: columns of x, 0 where mamba_expand says it.
Mamba2Config read_mamba2(const ConfigReader& file, const DecoderConfig& config, int64_t values) {
  Mamba2Config result;
  result.width = config.width;
  if (values == 0) values = file.integer("mamba_expand", 1, 1024, 2) * config.width;
  if (values > kMaxWidth) file.fail("mamba_expand", "makes a state space that is too wide");
  result.heads = file.integer("mamba_n_heads", 1, kMaxWidth, 128);
  result.head_size = read_head_size(file, values, result.heads);
  result.groups = file.integer("mamba_n_groups", 1, result.heads, 1);
  if (result.heads % result.groups != 0) file.fail("mamba_n_groups", "does not divide mamba_n_heads");
  result.state_size = file.integer("mamba_d_state", 1, 65536, 256);
  result.taps = file.integer("mamba_d_conv", 1, kMaxTaps, 4);
  result.conv_bias = file.boolean("mamba_conv_bias", true);
  result.input_bias = result.output_bias = file.boolean("mamba_proj_bias", false);
  result.activation = config.activation;
  result.limits = read_limits(file);
  result.eps = config.norm.eps;
  return result;
}

}  // namespace

std::unique_ptr<Mixer> ShortConvMaker::operator()(const DecoderConfig&, int64_t, const std::string& prefix,
                                                  const Makers& makers) const {
  return std::make_unique<ShortConv>(prefix + "conv.", config, makers);
}

std::unique_ptr<Mixer> MambaBesideAttentionMaker::operator()(const DecoderConfig& all, int64_t l,
                                                             const std::string& prefix, const Makers& makers) const {
  std::vector<SideBySide::Part> result;
  result.push_back({mamba(all, l, prefix, makers), mamba_in, mamba_out});
  result.push_back({std::make_unique<Attention>(prefix, all.names.block.attention, all.attention(l), makers),
                    attention_in, attention_out});
  return std::make_unique<SideBySide>(std::move(result));
}

std::vector<bool> attention_layers(const ConfigReader& file, const DecoderConfig& config,
                                   std::initializer_list<std::string_view> attention,
                                   std::initializer_list<std::string_view> other) {
  const std::vector<std::string> types = file.texts("layer_types|layers_block_type");
  if (types.empty()) return {};
  if (static_cast<int64_t>(types.size()) != config.layers) {
    file.fail("layer_types|layers_block_type",
              "has " + std::to_string(types.size()) + " entries for " + std::to_string(config.layers) + " layers");
  }
  std::vector<bool> result;
  for (const std::string& type : types) {
    const auto is = [&](std::string_view name) { return name == type; };
    result.push_back(std::ranges::any_of(attention, is));
    if (result.back() || std::ranges::any_of(other, is)) continue;
    std::string known;
    for (const auto* names : {&attention, &other}) {
      for (const std::string_view name : *names) known += (known.empty() ? "" : ", ") + std::string(name);
    }
    file.fail("layer_types|layers_block_type", "is unknown: " + type, "known: " + known);
  }
  return result;
}

void set_mixers(DecoderConfig& config, const std::vector<bool>& attention, const SublayerMaker<Mixer>& make) {
  for (size_t l = 0; l < config.layer.size(); ++l) {
    if (attention[l]) continue;
    config.layer[l].mixer = make;
    config.layer[l].mixer_attends = false;
  }
}

namespace {

// Columns of x and the rank of the time step, which may be "auto".
MambaConfig read_mamba(const ConfigReader& file, const DecoderConfig& config, std::string_view expand,
                       std::string_view rank) {
  MambaConfig result;
  result.width = config.width;
  result.channels = file.integer(expand, 1, 1024, 2) * config.width;
  if (result.channels > kMaxWidth) file.fail(expand, "makes a state space that is too wide");
  const int64_t natural = (config.width + 15) / 16;
  result.step_rank = file.is_text(rank) ? natural : file.integer(rank, 1, kMaxWidth, natural);
  result.activation = config.activation;
  return result;
}

}  // namespace

TensorNames lfm2_names() {
  TensorNames names;
  names.final_norm = "model.embedding_norm";
  names.block.attention_norm = "operator_norm";
  names.block.mlp_norm = "ffn_norm";
  names.block.attention.output = "self_attn.out_proj";
  names.block.attention.q_norm = "self_attn.q_layernorm";
  names.block.attention.k_norm = "self_attn.k_layernorm";
  names.block.mlp.gate = "feed_forward.w1";
  names.block.mlp.up = "feed_forward.w3";
  names.block.mlp.down = "feed_forward.w2";
  return names;
}

TensorNames bamba_names() {
  TensorNames names;
  names.final_norm = "model.final_layernorm";
  names.block.mlp_norm = "pre_ff_layernorm";
  names.block.mlp = mlp_below("feed_forward");
  return names;
}

TensorNames jamba_names() {
  TensorNames names = bamba_names();
  ExpertNames& experts = names.block.experts;
  experts.router = experts.peft_router = "feed_forward.router";
  experts.experts = "feed_forward.experts";
  experts.peft_gate_up = "feed_forward.experts.gate_up_proj";
  experts.peft_down = "feed_forward.experts.down_proj";
  experts.peft_translates = false;
  return names;
}

TensorNames granite_hybrid_names() {
  TensorNames names;
  names.block.mlp.gate_up = "shared_mlp.input_linear";
  names.block.mlp.down = "shared_mlp.output_linear";
  name_granite_experts(names.block);
  return names;
}

TensorNames nemotron_h_names() {
  TensorNames names = mamba_names();
  BlockNames& block = names.block;
  block.attention.q = "mixer.q_proj";
  block.attention.k = "mixer.k_proj";
  block.attention.v = "mixer.v_proj";
  block.attention.output = "mixer.o_proj";
  block.mlp.up = "mixer.up_proj";
  block.mlp.down = "mixer.down_proj";
  ExpertNames& experts = block.experts;
  experts.router = experts.peft_router = "mixer.gate";
  experts.correction = "mixer.gate.e_score_correction_bias";
  experts.experts = "mixer.experts";
  experts.peft_gate_up = "mixer.experts.up_proj";
  experts.peft_down = "mixer.experts.down_proj";
  experts.to_latent = "mixer.fc1_latent_proj";
  experts.from_latent = "mixer.fc2_latent_proj";
  experts.shared = {
      .gate = "", .up = "mixer.shared_experts.up_proj", .down = "mixer.shared_experts.down_proj", .gate_up = ""};
  experts.peft_translates = false;
  return names;
}

TensorNames lfm2_moe_names() {
  TensorNames names = lfm2_names();
  ExpertNames& experts = names.block.experts;
  experts.router = experts.peft_router = "feed_forward.gate";
  experts.correction = "feed_forward.expert_bias";
  experts.experts = "feed_forward.experts";
  experts.gate = "w1";
  experts.up = "w3";
  experts.down = "w2";
  experts.peft_gate_up = "feed_forward.experts.gate_up_proj";
  experts.peft_down = "feed_forward.experts.down_proj";
  experts.peft_translates = false;
  return names;
}

TensorNames lfm3_names() {
  TensorNames names = lfm2_names();
  AttentionNames& attention = names.block.attention;
  attention = {};
  names.block.post_attention_norm = "post_operator_norm";
  names.block.post_mlp_norm = "post_ffn_norm";
  return names;
}

TensorNames mamba_names() {
  TensorNames names;
  names.embedding = "backbone.embeddings";
  names.layers = "backbone.layers.";
  names.final_norm = "backbone.norm_f";
  names.block.attention_norm = names.block.mlp_norm = "norm";
  return names;
}

void finish_lfm2(const ConfigReader& file, DecoderConfig& config) {
  config.tied_head = file.boolean("tie_embedding|tie_word_embeddings", true);
  config.qkv_bias = config.output_bias = config.mlp_bias = false;
  if (file.boolean("block_auto_adjust_ff_dim", true)) {
    const double factor = file.number("block_ffn_dim_multiplier", 1e-3, 1e3, 1);
    const int64_t multiple = file.integer("block_multiple_of", 1, kMaxWidth, 256);
    const int64_t two_thirds = 2 * config.mlp_width / 3;
    const auto share = static_cast<int64_t>(factor * static_cast<double>(two_thirds));
    config.mlp_width = std::max<int64_t>(1, (share + multiple - 1) / multiple) * multiple;
  }
  std::vector<bool> attention = attention_layers(file, config, {"full_attention"}, {"conv"});
  if (attention.empty()) {
    attention.assign(config.layer.size(), !file.has("full_attn_idxs"));
    for (const double l : file.numbers("full_attn_idxs", 0, static_cast<double>(config.layers - 1))) {
      attention[static_cast<size_t>(l)] = true;
    }
  }
  set_short_convolutions(file, config, attention, 3);
}

void finish_lfm2_moe(const ConfigReader& file, DecoderConfig& config) {
  config.tied_head = file.boolean("tie_embedding|tie_word_embeddings", true);
  const std::vector<bool> attention = attention_layers(file, config, {"full_attention"}, {"conv"});
  if (attention.empty()) file.fail("layer_types", "is missing");
  set_short_convolutions(file, config, attention, 3);
  ExpertsConfig& experts = read_experts(file, config, "num_experts|num_local_experts", "moe_intermediate_size");
  read_sigmoid_router(file, config, 1);
  experts.routing.epsilon = 1e-6f;
  if (!file.boolean("use_expert_bias", true)) config.names.block.experts.correction = "";
  use_experts_after_dense(file, config, 2);
}

// Of four layers from the second on the first sees a window and the third everything; the others are convolutions.
void finish_lfm3(const ConfigReader& file, DecoderConfig& config) {
  BlockNames& names = config.names.block;
  if (!file.boolean("use_sandwich_norm", true)) names.post_attention_norm = names.post_mlp_norm = "";
  if (file.boolean("use_attention_gate", true)) config.attention_gate = OutputGate::heads;
  config.adapter_names = {{".self_attn.gate_proj.", ".self_attn.g_proj."}};
  if (!file.has("rope_parameters")) {
    RopeConfig& rope = config.rope.at(0);
    rope.scaling = RopeScaling::proportional;
    rope.turned = config.head_size / 4 * 2;
  }
  std::vector<std::string> types = file.texts("layer_types");
  std::vector<bool> attention = attention_layers(file, config, {"full_attention", "sliding_attention"}, {"conv"});
  for (int64_t l = 0; l < config.layers && attention.size() < config.layer.size(); ++l) {
    types.push_back(l % 4 == 0 && l > 0 ? "sliding_attention" : "");
    attention.push_back(l % 4 == 2 || (l % 4 == 0 && l > 0));
  }
  const int64_t window = file.integer("sliding_window", 1, int64_t{1} << 30, 256);
  for (size_t l = 0; l < types.size(); ++l) {
    if (types[l] != "sliding_attention") continue;
    config.layer[l].window = window;
    config.layer[l].rotary = 1;
  }
  set_short_convolutions(file, config, attention, 7);
}

void finish_mamba(const ConfigReader& file, DecoderConfig& config) {
  MambaConfig mamba = read_mamba(file, config, "expand", "time_step_rank");
  mamba.state_size = file.integer("state_size", 1, 65536, 16);
  mamba.taps = file.integer("conv_kernel", 1, kMaxTaps, 4);
  mamba.conv_bias = file.boolean("use_conv_bias", true);
  mamba.bias = file.boolean("use_bias", false);
  if (config.model_type == "falcon_mamba") {
    const auto eps = static_cast<float>(file.number("mixer_rms_eps", 1e-12, 1, 1e-6));
    mamba.norm = NormConfig{.kind = NormKind::rms, .eps = eps, .weight = false};
  }
  for (LayerConfig& layer : config.layer) {
    layer.mixer = MambaMaker{mamba, "mixer"};
    layer.has_feed_forward = false;
  }
}

void finish_jamba(const ConfigReader& file, DecoderConfig& config) {
  config.qkv_bias = config.output_bias = config.mlp_bias = false;
  MambaConfig mamba = read_mamba(file, config, "mamba_expand", "mamba_dt_rank");
  mamba.state_size = file.integer("mamba_d_state", 1, 65536, 16);
  mamba.taps = file.integer("mamba_d_conv", 1, kMaxTaps, 4);
  mamba.conv_bias = file.boolean("mamba_conv_bias", true);
  mamba.bias = file.boolean("mamba_proj_bias", false);
  mamba.norm = config.norm;
  const int64_t period = file.integer("attn_layer_period", 1, 65536, 8);
  const int64_t offset = file.integer("attn_layer_offset", 0, period - 1, std::min<int64_t>(4, period - 1));
  std::vector<bool> attention;
  for (int64_t l = 0; l < config.layers; ++l) attention.push_back(l % period == offset);
  set_mixers(config, attention, MambaMaker{mamba, "mamba"});
  if (file.integer("num_experts|num_local_experts", 1, 65536, 16) == 1) return;
  read_experts(file, config, "num_experts|num_local_experts", "intermediate_size");
  const int64_t step = file.integer("expert_layer_period", 1, 65536, 2);
  const int64_t first = file.integer("expert_layer_offset", 0, step - 1, std::min<int64_t>(1, step - 1));
  for (int64_t l = first; l < config.layers; l += step) config.use_experts(l);
}

void finish_mamba2(const ConfigReader& file, DecoderConfig& config) {
  Mamba2Config mamba;
  mamba.width = config.width;
  mamba.heads = config.heads;
  mamba.head_size = config.head_size;
  if (mamba.heads * mamba.head_size != file.integer("expand", 1, 1024, 2) * mamba.width) {
    file.fail("num_heads", "times head_dim is not expand times hidden_size");
  }
  mamba.groups = file.integer("n_groups", 1, mamba.heads, 8);
  if (mamba.heads % mamba.groups != 0) file.fail("n_groups", "does not divide num_heads");
  mamba.state_size = file.integer("state_size", 1, 65536, 128);
  mamba.taps = file.integer("conv_kernel", 1, kMaxTaps, 4);
  mamba.conv_bias = file.boolean("use_conv_bias", true);
  mamba.input_bias = mamba.output_bias = file.boolean("use_bias", false);
  mamba.activation = config.activation;
  mamba.limits = read_limits(file);
  mamba.eps = config.norm.eps;
  for (LayerConfig& layer : config.layer) {
    layer.mixer = Mamba2Maker{mamba, "mixer"};
    layer.has_feed_forward = false;
  }
}

void finish_falcon_h1(const ConfigReader& file, DecoderConfig& config) {
  config.embedding_scale = multiplier(file, "embedding_multiplier");
  config.noise_is_scaled = true;
  config.logit_scale = multiplier(file, "lm_head_multiplier");
  config.attention_scale *= multiplier(file, "key_multiplier");
  const std::vector<float> mlp = multipliers(file, "mlp_multipliers", 2);
  config.mlp_gate_scale = mlp[0];
  config.mlp_output_scale = mlp[1];

  const int64_t values = file.is_null("mamba_d_ssm") ? 0 : file.integer("mamba_d_ssm", 1, kMaxWidth, 1024);
  Mamba2Config mamba = read_mamba2(file, config, values);
  mamba.output_bias = file.boolean("projectors_bias", false);
  mamba.norm = file.boolean("mamba_rms_norm", false);
  mamba.gate_first = !file.boolean("mamba_norm_before_gate", true);
  const std::vector<float> parts = multipliers(file, "ssm_multipliers", mamba.multipliers.size());
  std::copy(parts.begin(), parts.end(), mamba.multipliers.begin());
  const MambaBesideAttentionMaker make{.mamba = {mamba, "mamba"},
                                       .mamba_in = multiplier(file, "ssm_in_multiplier"),
                                       .mamba_out = multiplier(file, "ssm_out_multiplier"),
                                       .attention_in = multiplier(file, "attention_in_multiplier"),
                                       .attention_out = multiplier(file, "attention_out_multiplier")};
  set_mixers(config, std::vector<bool>(config.layer.size(), false), make);
}

void finish_bamba(const ConfigReader& file, DecoderConfig& config) {
  std::vector<bool> attention(config.layer.size(), false);
  for (const double l : file.numbers("attn_layer_indices", 0, static_cast<double>(config.layers - 1))) {
    attention[static_cast<size_t>(l)] = true;
  }
  set_mixers(config, attention, Mamba2Maker{read_mamba2(file, config, 0), "mamba"});
}

void finish_granite_hybrid(const ConfigReader& file, DecoderConfig& config) {
  finish_granite(file, config);
  std::vector<bool> attention =
      attention_layers(file, config, {"attention", "full_attention"}, {"mamba", "linear_attention"});
  if (attention.empty()) attention.assign(config.layer.size(), false);
  set_mixers(config, attention, Mamba2Maker{read_mamba2(file, config, 0), "mamba"});
  config.mlp_bias = false;
  if (file.integer("num_local_experts", 0, 65536, 8) > 0) {
    ExpertsConfig& experts = read_experts(file, config, "num_local_experts", "intermediate_size");
    experts.routing.score = ops::RouterScore::chosen_softmax;
    experts.shared_hidden = config.mlp_width;
    use_experts_everywhere(config);
  }
  if (file.text("position_embedding_type", "") == "rope") return;
  config.rope.clear();
  for (LayerConfig& layer : config.layer) layer.rotary = -1;
}

// Each layer is one thing. The time step has no upper limit, and the lower one is that of its initial values.
void finish_nemotron_h(const ConfigReader& file, DecoderConfig& config) {
  config.file_prefix = "backbone.";
  config.adapter_prefix = "model.";
  config.tied_head = false;  // whatever tie_word_embeddings says
  config.qkv_bias = config.output_bias = false;
  config.mlp_bias = file.boolean("mlp_bias", false);
  std::string kinds = file.text("hybrid_override_pattern", "");
  for (const std::string& type : file.texts("layers_block_type|layer_types")) {
    if (kinds.size() == config.layer.size()) break;
    kinds += type == "linear_attention" || type == "mamba"     ? 'M'
             : type == "full_attention" || type == "attention" ? '*'
             : type == "mlp"                                   ? '-'
                                                               : 'E';
  }
  if (kinds.size() != config.layer.size()) {
    file.fail("hybrid_override_pattern",
              "has " + std::to_string(kinds.size()) + " entries for " + std::to_string(config.layers) + " layers");
  }
  Mamba2Config mamba;
  mamba.width = config.width;
  mamba.heads = file.integer("mamba_num_heads", 1, kMaxWidth, 128);
  mamba.head_size = file.integer("mamba_head_dim", 1, 65536, 64);
  if (mamba.heads * mamba.head_size > kMaxWidth) file.fail("mamba_head_dim", "is too large for so many heads");
  mamba.groups = file.integer("mamba_n_groups|n_groups", 1, mamba.heads, 8);
  if (mamba.heads % mamba.groups != 0) file.fail("mamba_n_groups|n_groups", "does not divide mamba_num_heads");
  mamba.state_size = file.integer("ssm_state_size", 1, 65536, 128);
  mamba.taps = file.integer("mamba_d_conv|conv_kernel", 1, kMaxTaps, 4);
  mamba.conv_bias = file.boolean("mamba_conv_bias|use_conv_bias", true);
  mamba.input_bias = mamba.output_bias = file.boolean("use_bias", false);
  if (file.text("mamba_hidden_act", "silu") != "silu") {
    file.fail("mamba_hidden_act", "is not silu, the only one that nibble knows for this family");
  }
  mamba.limits.low = static_cast<float>(file.number("mamba_dt_min|time_step_min", 0, 1e9, 0.001));
  mamba.eps = config.norm.eps;
  for (size_t l = 0; l < kinds.size(); ++l) {
    LayerConfig& layer = config.layer[l];
    layer.has_mixer = kinds[l] == 'M' || kinds[l] == '*';
    layer.has_feed_forward = !layer.has_mixer;
    if (kinds[l] == 'M') layer.mixer = Mamba2Maker{mamba, "mixer"};
    if (layer.has_mixer || kinds[l] == '-') continue;
    if (kinds[l] != 'E') {
      file.fail("hybrid_override_pattern", std::string("has an entry ") + kinds[l],
                "known: M (Mamba-2), * (attention), - (MLP), E (experts)");
    }
    if (!config.experts) {
      read_experts(file, config, "n_routed_experts", "moe_intermediate_size");
      read_sigmoid_router(file, config, 1);
      ExpertsConfig& experts = *config.experts;
      experts.shared_hidden = file.integer("moe_shared_expert_intermediate_size", 1, kMaxWidth, 7688);
      if (!file.is_null("moe_latent_size")) experts.latent = file.integer("moe_latent_size", 0, kMaxWidth, 0);
      experts.shared_bias = experts.latent_bias = config.mlp_bias;
    }
    config.use_experts(static_cast<int64_t>(l));
  }
}

}  // namespace nibble
