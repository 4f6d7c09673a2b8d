#include "nibble/core/models/families/gguf/gguf_gemma.h"

#include "nibble/core/nn/feed_forward/mlp_and_experts.h"

namespace nibble {

namespace {

bool is_gemma4(const DecoderConfig& config) { return config.scaled_layers; }

}  // namespace

void refuse_gemma(const DecoderConfig& config) {
  if (!is_gemma4(config)) return;
  if (config.layer_input_size > 0 && config.layer_input_vocabulary != config.vocab_size)
    refuse_for_llama_cpp("layer inputs of another vocabulary", "vocab_size_per_layer_input");
  if (config.rope.size() != 2 || config.layer.back().window > 0)
    refuse_for_llama_cpp("a Gemma 4 without layers that see everything", "layer_types|rope_parameters");
}

void add_gemma_parts(const DecoderConfig& config, GgufParts& parts) {
  if (config.layer_input_size == 0) return;
  const LayerInputTableNames& names = config.names.layer_inputs;
  parts.matrix("per_layer_token_embd", names.embedding);
  parts.matrix("per_layer_model_proj", names.projection, {.adapts = false});
  parts.norm("per_layer_proj_norm", names.norm);
}

void add_gemma_layer_parts(const DecoderConfig& config, const std::string& from, const std::string& to,
                           GgufParts& parts) {
  const BlockNames& names = config.names.block;
  const auto vector = [&](const std::string& name, const std::string& source) {
    parts.add({.name = to + name, .source = from + source});
  };
  if (config.layer_input_size > 0) {
    parts.matrix(to + "inp_gate", from + names.layer_input.gate);
    parts.matrix(to + "proj", from + names.layer_input.projection);
    parts.norm(to + "post_norm", from + names.layer_input.norm);
  }
  if (is_gemma4(config)) vector("layer_output_scale.weight", names.layer_input.scale);
  if (is_gemma4(config) && config.experts) {
    const MlpAndExpertsNames norms;
    parts.norm(to + "ffn_norm", from + norms.mlp_norm);
    parts.norm(to + "post_ffw_norm_1", from + norms.post_mlp_norm);
    parts.norm(to + "pre_ffw_norm_2", from + norms.experts_norm);
    parts.norm(to + "post_ffw_norm_2", from + norms.post_experts_norm);
    vector("ffn_gate_inp.scale", names.experts.router_scale);
    vector("ffn_down_exps.scale", names.experts.expert_scale);
  }
}

void write_gemma(const DecoderConfig& config, const std::string& key, GgufMetadata& metadata) {
  if (!is_gemma4(config)) return;
  const auto size = [&](const std::string& name, int64_t value) {
    write_value(metadata, key + name, static_cast<uint32_t>(value));
  };
  std::vector<bool> slides;
  std::vector<int32_t> heads, widths;
  int64_t sharing = 0;
  for (const LayerConfig& layer : config.layer) {
    slides.push_back(layer.window > 0);
    heads.push_back(static_cast<int32_t>(layer.kv_heads > 0 ? layer.kv_heads : config.kv_heads));
    widths.push_back(static_cast<int32_t>(layer.mlp_width > 0 ? layer.mlp_width : config.mlp_width));
    sharing += layer.keys_from >= 0 ? 1 : 0;
  }
  write_value(metadata, key + "attention.sliding_window_pattern", slides);
  size("attention.shared_kv_layers", sharing);
  size("embedding_length_per_layer_input", config.layer_input_size);
  write_value(metadata, key + "final_logit_softcapping", config.logit_softcap);
  write_value(metadata, key + "rope.freq_base_swa", static_cast<float>(config.rope[1].base));
  write_value(metadata, key + "attention.head_count_kv", heads);
  write_value(metadata, key + "feed_forward_length", widths);
  const int64_t full = config.layer.back().head_size;
  for (const std::string name : {"attention.key_length", "attention.value_length"}) {
    size(name, full > 0 ? full : config.head_size);
    size(name + "_swa", config.head_size);
  }
  size("rope.dimension_count", full > 0 ? full : config.head_size);
  size("rope.dimension_count_swa", config.rope[1].size);
  if (config.experts) size("expert_feed_forward_length", config.experts->hidden);
}

}  // namespace nibble
