#include "nibble/recipes/gguf/gguf_mix.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/models/families/gguf/gguf_names.h"

namespace nibble {

namespace {

constexpr std::array kMixes{
    GgufMix{"f32", GgufType::f32, 0},      GgufMix{"f16", GgufType::f16, 1},      GgufMix{"bf16", GgufType::bf16, 32},
    GgufMix{"q8_0", GgufType::q8_0, 7},    GgufMix{"q4_0", GgufType::q4_0, 2},    GgufMix{"q6_k", GgufType::q6_k, 18},
    GgufMix{"q5_k_m", GgufType::q5_k, 17}, GgufMix{"q4_k_m", GgufType::q4_k, 15},
};

constexpr int64_t kKBlock = 256;

// The head, or the table that is also the head.
bool makes_logits(const DecoderConfig& config, const std::string& name) {
  return name == "output.weight" || (name == "token_embd.weight" && config.tied_head);
}

// The first and the last eighth of the layers, and every third one between.
bool takes_more_bits(int64_t layer, int64_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

GgufType k_quant(const GgufMix& mix, const DecoderConfig& config, const std::string& name, int64_t width) {
  const bool own_mix = gguf_form(config).own_mix;
  if (makes_logits(config, name)) {
    return own_mix || width % kKBlock != 0 ? GgufType::q8_0 : GgufType::q6_k;
  }
  if (mix.type == GgufType::q6_k || !name.starts_with("blk.")) return mix.type;
  const int64_t layer = std::atoll(name.c_str() + 4);
  const bool more = takes_more_bits(layer, config.layers);
  const auto ends = [&](const char* end) { return name.ends_with(end); };
  if (ends(".attn_v.weight") || ends(".attn_qkv.weight")) {
    if (more) return GgufType::q6_k;
    // Llama 2 70B and its like share each value among eight heads.
    return config.layers == 80 && config.heads != config.kv_heads ? GgufType::q5_k : mix.type;
  }
  if (!ends(".ffn_down.weight") && !ends(".ffn_down_exps.weight")) return mix.type;
  if (own_mix && mix.type == GgufType::q4_k) {
    return layer < config.layers / 16 ? GgufType::q6_k : more ? GgufType::q5_k : GgufType::q4_k;
  }
  return more ? GgufType::q6_k : mix.type;
}

GgufType fallback(GgufType wanted) {
  switch (wanted) {
    case GgufType::q4_k:
      return GgufType::q5_0;
    case GgufType::q5_k:
      return GgufType::q5_1;
    case GgufType::q6_k:
      return GgufType::q8_0;
    default:
      return GgufType::f16;
  }
}

}  // namespace

const GgufMix& gguf_mix(const std::string& name) {
  const auto found = std::ranges::find(kMixes, name, &GgufMix::name);
  if (found != kMixes.end()) return *found;
  throw UsageError("type " + name + " is not known", "known are " + joined(kMixes, ", ", &GgufMix::name), "--type");
}

std::vector<std::string> gguf_mix_names() {
  std::vector<std::string> names;
  for (const GgufMix& mix : kMixes) names.emplace_back(mix.name);
  return names;
}

GgufType gguf_matrix_type(const GgufMix& mix, const DecoderConfig& config, const std::string& name, int64_t width) {
  if (name == "position_embd.weight") return GgufType::f32;  // added to what is f32 already
  GgufType type = mix.type;
  if (gguf_block_elements(type) == kKBlock) {
    type = k_quant(mix, config, name, width);
  } else if (type == GgufType::q4_0 && makes_logits(config, name)) {
    type = GgufType::q8_0;
  }
  while (width % gguf_block_elements(type) != 0) type = fallback(type);
  return type;
}

}  // namespace nibble
