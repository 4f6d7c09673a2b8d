#include "nibble/core/models/families/gguf/gguf_llama4.h"

#include <nlohmann/json.hpp>

#include "nibble/core/models/families/gguf/gguf_rules.h"

namespace nibble {

namespace {

// What llama.cpp computes with whatever the file says: the length of chunks and of texts after which queries grow, how
// much they do, and the number of experts of the one model without norms of queries and keys (Maverick).
constexpr int64_t kChunk = 8192, kFloorScale = 8192, kExpertsWithoutNorms = 128;
constexpr double kAttentionScale = 0.1;

bool is_llama4(const DecoderConfig& config) { return config.family == "llama4_text"; }

/// Every so many-th layer has experts; 0: that is not the rule.
int64_t expert_step(const DecoderConfig& config) {
  const auto sparse = [&](int64_t l) { return static_cast<bool>(config.layer[static_cast<size_t>(l)].feed_forward); };
  int64_t step = 1;
  while (step < config.layers && !sparse(step - 1)) ++step;
  for (int64_t l = 0; l < config.layers; ++l) {
    if (sparse(l) != ((l + 1) % step == 0)) return 0;
  }
  return step;
}

}  // namespace

void refuse_llama4(const DecoderConfig& config) {
  if (!is_llama4(config)) return;
  for (const LayerConfig& layer : config.layer) {
    if (layer.chunk != (layer.rotary < 0 ? 0 : kChunk))
      refuse_for_llama_cpp(
          "chunks of another length than " + std::to_string(kChunk) + ", or in other layers than those with rope",
          "attention_chunk_size|layer_types");
  }
  const QueryScaling& scaling = config.query_scaling;
  if (scaling.beta != kAttentionScale || scaling.length != kFloorScale)
    refuse_for_llama_cpp("a Llama 4 whose queries do not grow as the published ones",
                         "attn_temperature_tuning|attn_scale|floor_scale");
  const int64_t experts = config.experts->experts;
  if (config.qk_norm.has_value() == (experts == kExpertsWithoutNorms))
    refuse_for_llama_cpp("a Llama 4 of " + std::to_string(experts) + " experts with" + (config.qk_norm ? "" : "out") +
                             " norms of queries and keys",
                         "use_qk_norm|num_local_experts");
  if (expert_step(config) == 0)
    refuse_for_llama_cpp("experts in layers that are not every so many-th one", "moe_layers|interleave_moe_layer_step");
  if (config.rope[0].size != config.head_size)
    refuse_for_llama_cpp("rope on a share of a head in a Llama 4",
                         "partial_rotary_factor|rope_parameters|rope_scaling");
}

void write_llama4(const DecoderConfig& config, const std::string& key, GgufMetadata& metadata) {
  if (!is_llama4(config)) return;
  write_value(metadata, key + "interleave_moe_layer_step", static_cast<uint32_t>(expert_step(config)));
}

void gguf_llama4(const GgufKeys& keys, nlohmann::ordered_json& config) {
  const std::string window = "attention.sliding_window", pattern = window + "_pattern";
  if (keys.says(window) && keys.integer(window) == 0)
    keys.fail(window, "is 0: a Llama 4 without chunks has rope in other layers in llama.cpp than config.json can say");
  if (keys.says(pattern) && keys.integer(pattern) != 4)
    keys.fail(pattern, "is not 4: layers with rope would not be those with chunks");
  gguf_experts(keys, config);
  gguf_attention_bias(keys, config);
  config["intermediate_size"] = keys.needed("expert_feed_forward_length");
  config["interleave_moe_layer_step"] = keys.needed("interleave_moe_layer_step");
  config["use_qk_norm"] = config["num_local_experts"] != kExpertsWithoutNorms;
  config["attention_chunk_size"] = kChunk;
  config["attn_temperature_tuning"] = true;
  config["attn_scale"] = kAttentionScale;
  config["floor_scale"] = kFloorScale;
  // All layers with rope have chunks, whose base is called so.
  if (const auto base = keys.number("rope.freq_base_swa")) config["rope_theta"] = *base;
}

}  // namespace nibble
