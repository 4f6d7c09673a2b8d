// State spaces and gated delta nets as llama.cpp has them: the decay as -exp(A_log), the convolution [channels, taps].

#include <algorithm>
#include <cmath>

#include "nibble/core/models/families/gguf/gguf_mixers.h"
#include "nibble/core/models/families/hybrid_rules.h"

namespace nibble {

namespace {

const Mamba2Config* mamba2_of(const LayerConfig& layer) {
  if (const auto* beside = layer.mixer.target<MambaBesideAttentionMaker>()) return &beside->mamba.config;
  const auto* own = layer.mixer.target<Mamba2Maker>();
  return own ? &own->config : nullptr;
}

// The first one of `layers` that is not null by `of`.
template <typename Of>
auto first(const DecoderConfig& config, const Of& of) {
  decltype(of(config.layer.front())) found = nullptr;
  for (size_t l = 0; !found && l < config.layer.size(); ++l) found = of(config.layer[l]);
  return found;
}

const auto kMambaOf = [](const LayerConfig& layer) { return layer.mixer.target<MambaMaker>(); };
const auto kDeltaOf = [](const LayerConfig& layer) { return layer.mixer.target<GatedDeltaMaker>(); };

constexpr const char* kMambaBiasKeys = "mamba_proj_bias|use_bias|mamba_conv_bias|use_conv_bias";

void refuse_width(const DecoderConfig& config, int64_t channels) {
  if (channels != 2 * config.width)
    refuse_for_llama_cpp("a state space that is not twice as wide as the model",
                         "mamba_expand|expand|mamba_d_head|mamba_n_heads");
}

void refuse_mamba2(const DecoderConfig& config, const Mamba2Config& mamba) {
  if (!mamba.conv_bias || mamba.input_bias || mamba.output_bias)
    refuse_for_llama_cpp("a Mamba-2 with biases of its projections or without one of its convolution", kMambaBiasKeys);
  if (mamba.norm && !mamba.gate_first)
    refuse_for_llama_cpp("a norm before the gate of a Mamba-2", "mamba_norm_before_gate");
  if (mamba.activation != ops::Activation::silu)
    refuse_for_llama_cpp("a Mamba-2 without SiLU", "mamba_hidden_act|hidden_act");
  if (config.model_type == "granitemoehybrid" || config.model_type == "bamba")
    refuse_width(config, mamba.heads * mamba.head_size);
}

void refuse_delta(const DecoderConfig& config, const GatedDeltaConfig& delta) {
  const bool kimi = delta.channel_decay;
  if (delta.key_size != delta.value_size)
    refuse_for_llama_cpp("keys of another size than values in a delta net",
                         "linear_key_head_dim|linear_value_head_dim");
  if (kimi && (delta.heads != config.heads || delta.least_decay != 0))
    refuse_for_llama_cpp("Kimi delta attention with other heads than attention's", "linear_num_heads");
  if (!kimi && (delta.apart || delta.beta_scale != 1)) refuse_for_llama_cpp("this kind of delta net");
}

/// Rows `first`, ..., of `heads` * `each` rows. tiled: those of the i-th of every group of `per_key` heads together.
void take_heads(std::vector<int64_t>& order, int64_t first, int64_t heads, int64_t each, int64_t per_key, bool tiled) {
  for (int64_t i = 0; i < heads; ++i) {
    const int64_t keys = heads / per_key, head = tiled ? i % keys * per_key + i / keys : i;
    for (int64_t j = 0; j < each; ++j) order.push_back(first + head * each + j);
  }
}

void add_state_space(const std::string& from, const std::string& to, GgufParts& parts) {
  parts.matrix(to + "ssm_in", from + "in_proj");
  parts.add({.name = to + "ssm_conv1d.weight", .source = from + "conv1d.weight", .squeezed = true});
  parts.add({.name = to + "ssm_conv1d.bias", .source = from + "conv1d.bias"});
  parts.matrix(to + "ssm_out", from + "out_proj");
}

void add_mamba(const MambaConfig& mamba, const std::string& from, const std::string& to, GgufParts& parts) {
  add_state_space(from, to, parts);
  parts.matrix(to + "ssm_x", from + "x_proj");
  parts.matrix(to + "ssm_dt", from + "dt_proj");
  parts.add({.name = to + "ssm_dt.bias", .source = from + "dt_proj.bias"});
  parts.add({.name = to + "ssm_a", .source = from + "A_log", .is_log = true});
  parts.add({.name = to + "ssm_d", .source = from + "D"});
  if (!mamba.norm || !mamba.norm->weight) return;
  for (const std::string which : {"dt", "b", "c"})
    parts.add({.name = to + "ssm_" + which + "_norm.weight", .source = from + which + "_layernorm.weight"});
}

void add_mamba2(const Mamba2Config& mamba, float input, float output, const std::string& from, const std::string& to,
                GgufParts& parts) {
  const int64_t values = mamba.heads * mamba.head_size, keys = mamba.groups * mamba.state_size;
  const size_t begin = parts.all.size();
  add_state_space(from, to, parts);
  if (output != 1) parts.all.back().factors = {output};
  const std::array<int64_t, 5> rows = {values, values, keys, keys, mamba.heads};
  std::vector<float> factors;
  for (size_t i = 0; i < rows.size(); ++i)
    factors.insert(factors.end(), static_cast<size_t>(rows[i]), input * mamba.multipliers[i]);
  const bool ones = std::ranges::all_of(factors, [](float factor) { return factor == 1; });
  if (!ones) parts.all[begin].factors = factors;
  parts.add({.name = to + "ssm_dt.bias", .source = from + "dt_bias"});
  parts.add({.name = to + "ssm_a", .source = from + "A_log", .is_log = true, .shape = {mamba.heads, 1}});
  parts.add({.name = to + "ssm_d", .source = from + "D", .shape = {mamba.heads, 1}});
  if (mamba.norm)
    parts.add({.name = to + "ssm_norm.weight",
               .source = from + "norm.weight",
               .shape = {mamba.groups, values / mamba.groups}});
}

// Value heads of Qwen3.5 stand as they meet their key heads when those are repeated one after another.
void add_delta(const GatedDeltaConfig& delta, const std::string& from, const std::string& to, GgufParts& parts) {
  const int64_t per_key = delta.heads / delta.key_heads, keys = delta.key_heads * delta.key_size;
  const bool tiled = !delta.fused && per_key > 1;
  std::vector<int64_t> values, each, mixed;
  take_heads(values, 0, delta.heads, delta.value_size, per_key, tiled);
  take_heads(each, 0, delta.heads, 1, per_key, tiled);
  take_heads(mixed, 0, 2 * keys, 1, 1, false);
  take_heads(mixed, 2 * keys, delta.heads, delta.value_size, per_key, tiled);
  if (delta.fused) {  // by key head: its query, its key, its values, their gates
    const int64_t size = delta.key_size, own = per_key * delta.value_size, all = 2 * (size + own);
    std::vector<int64_t> qkv, gate;
    const auto take = [&](std::vector<int64_t>& order, int64_t first, int64_t count) {
      for (int64_t head = 0; head < delta.key_heads; ++head)
        for (int64_t i = 0; i < count; ++i) order.push_back(head * all + first + i);
    };
    take(qkv, 0, size);
    take(qkv, size, size);
    take(qkv, 2 * size, own);
    take(gate, 2 * size + own, own);
    parts.matrix(to + "attn_qkv", from + "in_proj_qkvz", {.row_order = qkv});
    parts.matrix(to + "attn_gate", from + "in_proj_qkvz", {.row_order = gate});
    parts.matrix(to + "ssm_ba", from + "in_proj_ba");
  } else {
    parts.matrix(to + "attn_qkv", from + "in_proj_qkv", {.row_order = mixed});
    parts.matrix(to + "attn_gate", from + "in_proj_z", {.row_order = values});
    parts.matrix(to + "ssm_beta", from + "in_proj_b", {.row_order = each});
    parts.matrix(to + "ssm_alpha", from + "in_proj_a", {.row_order = each});
  }
  parts.add({.name = to + "ssm_conv1d.weight", .source = from + "conv1d.weight", .row_order = mixed, .squeezed = true});
  parts.add({.name = to + "ssm_dt.bias", .source = from + "dt_bias", .row_order = each});
  parts.add({.name = to + "ssm_a", .source = from + "A_log", .row_order = each, .is_log = true});
  parts.add({.name = to + "ssm_norm.weight", .source = from + "norm.weight"});
  parts.matrix(to + "ssm_out", from + "out_proj", {.column_order = tiled ? values : std::vector<int64_t>()});
}

void add_kimi_delta(const GatedDeltaMaker& maker, const std::string& from, const std::string& to, GgufParts& parts) {
  const GatedDeltaNames& names = maker.names;
  const std::pair<std::string, std::string> matrices[] = {{"attn_q", names.q},
                                                          {"attn_k", names.k},
                                                          {"attn_v", names.v},
                                                          {"ssm_beta", names.beta},
                                                          {"ssm_f_a", names.first_decay},
                                                          {"ssm_f_b", names.decay},
                                                          {"ssm_g_a", names.first_gate},
                                                          {"ssm_g_b", names.gate},
                                                          {"attn_output", names.output}};
  for (const auto& [name, module] : matrices) parts.matrix(to + name, from + module);
  const std::string parts_of[] = {"q", "k", "v"};
  for (size_t i = 0; i < 3; ++i) {
    const std::string source = from + names.attention.conv_parts[i] + ".weight";
    parts.add({.name = to + "ssm_conv1d_" + parts_of[i] + ".weight", .source = source});
  }
  parts.add({.name = to + "ssm_dt.bias", .source = from + "dt_bias"});
  parts.add({.name = to + "ssm_a", .source = from + "A_log", .is_log = true, .shape = {maker.config.heads, 1}});
  parts.add({.name = to + "ssm_norm.weight", .source = from + names.attention.norm + ".weight"});
}

}  // namespace

bool refuse_recurrence(const DecoderConfig& config, const LayerConfig& layer) {
  if (const Mamba2Config* mamba = mamba2_of(layer)) {
    refuse_mamba2(config, *mamba);
  } else if (const MambaMaker* space = kMambaOf(layer)) {
    if (!space->config.conv_bias || space->config.bias)
      refuse_for_llama_cpp("a Mamba with biases of its projections or without one of its convolution", kMambaBiasKeys);
    refuse_width(config, space->config.channels);
  } else if (const GatedDeltaMaker* delta = kDeltaOf(layer)) {
    refuse_delta(config, delta->config);
  } else {
    return false;
  }
  return true;
}

bool add_recurrence_parts(const DecoderConfig& config, const LayerConfig& layer, const std::string& from,
                          const std::string& to, GgufParts& parts) {
  if (const auto* beside = layer.mixer.target<MambaBesideAttentionMaker>()) {
    add_mamba2(beside->mamba.config, beside->mamba_in, beside->mamba_out, from + beside->mamba.module + ".", to, parts);
    const float keys = config.attention_scale * std::sqrt(static_cast<float>(config.head_size));
    parts.attention(layer, from, to, beside->attention_in, beside->attention_in * keys, beside->attention_out);
  } else if (const auto* mamba2 = layer.mixer.target<Mamba2Maker>()) {
    add_mamba2(mamba2->config, 1, 1, from + mamba2->module + ".", to, parts);
  } else if (const MambaMaker* mamba = kMambaOf(layer)) {
    add_mamba(mamba->config, from + mamba->module + ".", to, parts);
  } else if (const GatedDeltaMaker* delta = kDeltaOf(layer)) {
    const std::string below = from + delta->module + ".";
    delta->config.channel_decay ? add_kimi_delta(*delta, below, to, parts) : add_delta(delta->config, below, to, parts);
  } else {
    return false;
  }
  return true;
}

void write_recurrence(const DecoderConfig& config, const std::string& key, GgufMetadata& metadata) {
  const auto size = [&](const std::string& name, int64_t value) {
    write_value(metadata, key + name, static_cast<uint32_t>(value));
  };
  const auto space = [&](int64_t taps, int64_t inner, int64_t state, int64_t steps, int64_t groups) {
    size("ssm.conv_kernel", taps);
    size("ssm.inner_size", inner);
    size("ssm.state_size", state);
    size("ssm.time_step_rank", steps);
    if (groups > 0) size("ssm.group_count", groups);
  };
  const Mamba2Config* mamba2 = first(config, mamba2_of);
  const MambaMaker* mamba = first(config, kMambaOf);
  const GatedDeltaMaker* delta = first(config, kDeltaOf);
  if (!mamba2 && !mamba && !delta) return;
  if (mamba2) space(mamba2->taps, mamba2->heads * mamba2->head_size, mamba2->state_size, mamba2->heads, mamba2->groups);
  if (mamba) {
    const MambaConfig& of = mamba->config;
    space(of.taps, of.channels, of.state_size, of.step_rank, 0);
    write_value(metadata, key + "ssm.dt_b_c_rms", of.norm.has_value());
    if (of.norm) write_value(metadata, key + "ssm.dt_b_c_rms_epsilon", of.norm->eps);  // llama.cpp takes the layers'
  }
  std::vector<int32_t> heads, widths;
  std::vector<bool> recurrent;
  for (const LayerConfig& layer : config.layer) {
    const bool attends = layer.has_mixer && !mamba2_of(layer) && !kMambaOf(layer) && !kDeltaOf(layer);
    heads.push_back(attends ? static_cast<int32_t>(says_latents(config) ? 1 : config.kv_heads) : 0);
    widths.push_back(!layer.has_feed_forward ? 0
                     : layer.feed_forward    ? static_cast<int32_t>(config.experts->hidden)
                                             : static_cast<int32_t>(config.mlp_width));
    recurrent.push_back(!attends);
  }
  if (delta && delta->config.channel_decay) {
    size("ssm.conv_kernel", delta->config.taps);
    size("kda.head_dim", delta->config.key_size);
  } else if (delta) {
    const GatedDeltaConfig& of = delta->config;
    space(of.taps, of.heads * of.value_size, of.key_size, of.heads, of.key_heads);
    write_value(metadata, key + "attention.recurrent_layers", recurrent);
    const auto pairs = static_cast<int32_t>(config.rope.at(0).size / 2);  // of time, height, width: alike in texts
    write_value(metadata, key + "rope.dimension_sections",
                std::vector<int32_t>{(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0});
    return;
  }
  if (std::ranges::all_of(heads, [](int32_t n) { return n == 0; }) && key != "falcon-h1.") {
    size("attention.head_count", 0);
    size("feed_forward_length", 0);
  }
  if (key != "falcon-h1.") write_value(metadata, key + "attention.head_count_kv", heads);
  if (!key.starts_with("nemotron")) return;
  write_value(metadata, key + "feed_forward_length", widths);
  write_value(metadata, key + "attention.layer_norm_epsilon", config.norm.eps);
}

std::vector<std::string> gguf_left_out(const DecoderConfig& config) {
  std::vector<std::string> result;
  if (!config.towers.empty()) result.emplace_back("what the model has for pictures and sound: this is its text model");
  if (!config.rope.empty() && config.rope[0].scaling == RopeScaling::yarn && !config.rope[0].truncate)
    result.emplace_back("that yarn's ramp lies between pairs (\"truncate\": false): logits differ");
  const Mamba2Config* mamba2 = first(config, mamba2_of);
  if (mamba2 && (mamba2->limits.low > 0 || std::isfinite(mamba2->limits.high)))
    result.emplace_back("the limits of a Mamba-2's time step: logits differ where one is reached");
  const MambaMaker* mamba = first(config, kMambaOf);
  if (mamba && mamba->config.norm && mamba->config.norm->eps != config.norm.eps)
    result.emplace_back("that norms within a Mamba have another epsilon: logits differ slightly");
  return result;
}

}  // namespace nibble
