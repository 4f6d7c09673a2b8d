#pragma once
// Shapes of published models, for random weights.

#include <array>
#include <string>
#include <string_view>

#include "nibble/core/base/error.h"

namespace nibble::benchmarks {

struct ModelShape {
  std::string_view name;
  int64_t width, mlp, layers, heads, kv_heads, vocabulary;
  bool tied;
  std::string_view model_type = "llama", architecture = "LlamaForCausalLM";
  std::string_view more = "";  ///< further keys of config.json, each before a comma

  /// config.json as the family publishes it.
  std::string config_json() const {
    const auto key = [](std::string_view text, int64_t value) {
      return "\"" + std::string(text) + "\": " + std::to_string(value) + ", ";
    };
    return "{\"model_type\": \"" + std::string(model_type) + "\", \"architectures\": [\"" + std::string(architecture) +
           "\"], " + std::string(more) + key("hidden_size", width) + key("intermediate_size", mlp) +
           key("num_hidden_layers", layers) + key("num_attention_heads", heads) + key("num_key_value_heads", kv_heads) +
           key("vocab_size", vocabulary) +
           "\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": "
           "\"silu\", \"initializer_range\": 0.02, \"bos_token_id\": 1, \"eos_token_id\": 2, "
           "\"tie_word_embeddings\": " +
           (tied ? "true" : "false") + "}\n";
  }
};

constexpr std::array<ModelShape, 9> kModelShapes = {{
    {"smollm2-135m", 576, 1536, 30, 9, 3, 49152, true},
    {"qwen2.5-0.5b", 896, 4864, 24, 14, 2, 151936, true, "qwen2", "Qwen2ForCausalLM"},
    {"tinyllama-1.1b", 2048, 5632, 22, 32, 4, 32000, false},
    {"llama2-7b", 4096, 11008, 32, 32, 32, 32000, false},
    {"llama2-13b", 5120, 13824, 40, 40, 40, 32000, false},
    {"llama-33b", 6656, 17920, 60, 52, 52, 32000, false},
    {"olmoe-7b", 2048, 1024, 16, 16, 16, 50304, false, "olmoe", "OlmoeForCausalLM",
     R"("num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": false, )"},
    {"qwen3-30b-a3b", 2048, 6144, 48, 32, 4, 151936, false, "qwen3_moe", "Qwen3MoeForCausalLM",
     R"("head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
        "norm_topk_prob": true, )"},
    {"gpt-oss-20b", 2880, 2880, 24, 64, 8, 201088, false, "gpt_oss", "GptOssForCausalLM",
     R"("head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
        "original_max_position_embeddings": 4096}, )"},
}};

/// NAME, or NAME:LAYERS for so many layers of it.
inline ModelShape shape_of(std::string_view name) {
  const size_t colon = name.find(':');
  std::string known;
  for (ModelShape shape : kModelShapes) {
    known += " " + std::string(shape.name);
    if (shape.name != name.substr(0, colon)) continue;
    if (colon != name.npos) shape.layers = std::stoll(std::string(name.substr(colon + 1)));
    return shape;
  }
  throw UsageError("no shape is named " + std::string(name), "use one of" + known);
}

}  // namespace nibble::benchmarks
