#include "nibble/core/models/families/gguf/gguf_mixers.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/base/error.h"
#include "nibble/core/models/families/hybrid_rules.h"
#include "nibble/core/models/families/latent_families.h"

namespace nibble {

namespace {

const LatentAttentionMaker* latent_of(const LayerConfig& layer) { return layer.mixer.target<LatentAttentionMaker>(); }
const ShortConvMaker* convolution_of(const LayerConfig& layer) { return layer.mixer.target<ShortConvMaker>(); }

template <typename Maker>
const Maker* first_of(const DecoderConfig& config) {
  for (const LayerConfig& layer : config.layer) {
    if (const Maker* found = layer.mixer.target<Maker>()) return found;
  }
  return nullptr;
}

bool is_kimi(const DecoderConfig& config) { return config.model_type == "kimi_linear"; }

// mscale_all_dim of yarn: what the scores are multiplied with is (0.1 mscale_all_dim ln factor + 1)^2.
double score_growth(const LatentAttentionConfig& latent, const RopeConfig& rope) {
  const double growth = std::sqrt(latent.scale * std::sqrt(static_cast<double>(latent.plain + latent.rotated)));
  return rope.factor <= 1 ? 0 : (growth - 1) / (0.1 * std::log(rope.factor));
}

void refuse_latent(const DecoderConfig& config, const LatentAttentionConfig& latent) {
  if (latent.gate || latent.bias) refuse_for_llama_cpp("latent attention with gates or biases", "attention_bias");
  if (is_kimi(config) && latent.rotary < 0 && latent.query_rank == 0) return;
  if (config.rope.empty() || config.rope[0].pairs != ops::RopePairs::neighbours)
    refuse_for_llama_cpp("latent attention that turns halves", "rope_interleave");
  if (config.rope[0].scaling != RopeScaling::yarn) return;
  constexpr double kClose = 1e-5;
  if (std::abs(config.rope[0].magnitude - 1) > kClose || score_growth(latent, config.rope[0]) < kClose)
    refuse_for_llama_cpp("yarn whose mscale is not its mscale_all_dim", "rope_parameters|rope_scaling");
}

}  // namespace

void refuse_mixers(const DecoderConfig& config) {
  for (const LayerConfig& layer : config.layer) {
    const LatentAttentionMaker* latent = latent_of(layer);
    const ShortConvMaker* convolution = convolution_of(layer);
    if (latent) refuse_latent(config, latent->config);
    if (layer.mixer && !latent && !convolution && !refuse_recurrence(config, layer))
      throw UsageError("layers of this kind have no GGUF names here yet",
                       "merge, and export by llama.cpp's own converter");
    if (convolution && convolution->config.bias) refuse_for_llama_cpp("convolutions with biases", "conv_bias");
  }
}

void add_mixer_parts(const DecoderConfig& config, const LayerConfig& layer, const std::string& from,
                     const std::string& to, GgufParts& parts) {
  if (add_recurrence_parts(config, layer, from, to, parts)) return;
  const auto linear = [&](const std::string& name, const std::string& module) {
    parts.matrix(to + name, from + module);
  };
  const auto norm = [&](const std::string& name, const std::string& module) {
    parts.add({.name = to + name + ".weight", .source = from + module + ".weight"});
  };
  if (convolution_of(layer)) {
    linear("shortconv.in_proj", "conv.in_proj");
    parts.add({.name = to + "shortconv.conv.weight", .source = from + "conv.conv.weight", .squeezed = true});
    return linear("shortconv.out_proj", "conv.out_proj");
  }
  const LatentAttentionMaker& maker = *latent_of(layer);
  const LatentAttentionConfig& latent = maker.config;
  const LatentAttentionNames& names = maker.names;
  if (latent.query_rank > 0) {
    linear("attn_q_a", names.q_a);
    norm("attn_q_a_norm", names.q_norm);
    linear("attn_q_b", names.q_b);
  } else {
    linear("attn_q", names.q);
  }
  linear("attn_kv_a_mqa", names.kv_a);
  norm("attn_kv_a_norm", names.kv_norm);
  // Keys and values of each head lie below one another.
  const std::string both = from + names.kv_b;
  const GgufRows keys{
      .sources = {both + ".weight"}, .first = 0, .count = latent.plain, .experts = latent.heads, .turned = true};
  const GgufRows values{
      .sources = {both + ".weight"}, .first = latent.plain, .count = latent.value, .experts = latent.heads};
  parts.matrix(to + "attn_k_b", both, {.rows = keys});
  parts.matrix(to + "attn_v_b", both, {.rows = values});
  linear("attn_output", names.output);
}

bool says_latents(const DecoderConfig& config) { return first_of<LatentAttentionMaker>(config) != nullptr; }

void write_value(GgufMetadata& metadata, const std::string& key, const GgufValue& value) {
  const auto found = std::ranges::find(metadata, key, &GgufMetadata::value_type::first);
  found == metadata.end() ? void(metadata.emplace_back(key, value)) : void(found->second = value);
}

void write_mixers(const DecoderConfig& config, const std::string& key, GgufMetadata& metadata) {
  const auto size = [&](const std::string& name, int64_t value) {
    write_value(metadata, key + name, static_cast<uint32_t>(value));
  };
  if (const LatentAttentionMaker* maker = first_of<LatentAttentionMaker>(config)) {
    const LatentAttentionConfig& latent = maker->config;
    size("attention.head_count_kv", 1);
    size("attention.key_length", latent.rank + latent.rotated);
    size("attention.value_length", latent.rank);
    size("attention.key_length_mla", latent.plain + latent.rotated);
    size("attention.value_length_mla", latent.value);
    size("attention.kv_lora_rank", latent.rank);
    size("attention.q_lora_rank", latent.query_rank);
    size("rope.dimension_count", latent.rotated);
    if (!config.experts) {  // asked for all the same
      size("leading_dense_block_count", config.layers);
      size("expert_feed_forward_length", config.mlp_width);
      size("expert_shared_count", 0);
    }
    if (!config.rope.empty() && config.rope[0].scaling == RopeScaling::yarn) {
      const double growth = score_growth(latent, config.rope[0]);
      write_value(metadata, key + "rope.scaling.yarn_log_multiplier", static_cast<float>(0.1 * growth));
    }
  }
  if (const ShortConvMaker* maker = first_of<ShortConvMaker>(config)) {
    size("shortconv.l_cache", maker->config.taps);
    std::vector<int32_t> heads;  // none where there is a convolution
    for (const LayerConfig& layer : config.layer)
      heads.push_back(layer.mixer ? 0 : static_cast<int32_t>(config.kv_heads));
    write_value(metadata, key + "attention.head_count_kv", heads);
  }
  write_recurrence(config, key, metadata);
}

}  // namespace nibble
