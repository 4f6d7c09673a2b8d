#include "nibble/core/models/families/latent_families.h"

#include <cmath>

#include "nibble/core/models/families/families.h"
#include "nibble/core/models/families/gguf/gguf_rules.h"
#include "nibble/core/nn/mixers/latent_attention.h"

namespace nibble {

namespace {

constexpr int64_t kMaxRank = 1 << 16;

// Under yarn the scores are multiplied by what it has the magnitude grow, squared.
double score_growth(const ConfigReader& file) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const std::optional<ConfigReader> rope = file.object(key);
    if (!rope || rope->text("rope_type|type", "default") == "default") continue;
    const double factor = rope->number("factor", 1e-3, 1e6, 1), all = rope->number("mscale_all_dim", 0, 1e6, 0);
    const double growth = factor <= 1 || all == 0 ? 1 : 0.1 * all * std::log(factor) + 1;
    return growth * growth;
  }
  return 1;
}

void finish_minicpm3(const ConfigReader& file, DecoderConfig& config) {
  use_latent_attention(file, config);
  const auto width = static_cast<double>(config.width), layers = static_cast<double>(config.layers);
  config.embedding_scale = static_cast<float>(file.number("scale_emb", 1e-9, 1e9, 12));
  if (!file.is_null("scale_depth")) {
    config.residual_scale = static_cast<float>(file.number("scale_depth", 1e-9, 1e9, 1.4) / std::sqrt(layers));
  }
  if (!file.is_null("dim_model_base")) {
    config.logit_scale = static_cast<float>(file.number("dim_model_base", 1e-9, 1e9, 256) / width);
  }
}

}  // namespace

std::unique_ptr<Mixer> LatentAttentionMaker::operator()(const DecoderConfig&, int64_t, const std::string& prefix,
                                                        const Makers& makers) const {
  return std::make_unique<LatentAttention>(prefix, names, config, makers);
}

void use_latent_attention(const ConfigReader& file, DecoderConfig& config) {
  use_latent_attention(file, config, {}, false);
}

void use_latent_attention(const ConfigReader& file, DecoderConfig& config, const LatentAttentionNames& names,
                          bool gate) {
  LatentAttentionConfig latent = {.width = config.width, .heads = config.heads, .rotated = config.head_size};
  const bool may_lack = gate || config.model_type == "kimi_linear" || config.model_type == "sarvam_mla";
  const bool absent = !file.has("q_lora_rank") && (may_lack || file.is_null("q_lora_rank"));
  if (!absent) latent.query_rank = file.integer("q_lora_rank", 1, kMaxRank);
  latent.gate = gate;
  latent.rank = file.integer("kv_lora_rank", 1, kMaxRank);
  latent.plain = file.integer("qk_nope_head_dim", 1, kMaxRank);
  latent.value = file.integer("v_head_dim", 1, kMaxRank, config.width / config.heads);
  if (latent.value > latent.plain + latent.rotated) {
    file.fail("v_head_dim", "is larger than qk_nope_head_dim and qk_rope_head_dim together");
  }
  const auto size = static_cast<double>(latent.plain + latent.rotated);
  latent.scale = static_cast<float>(score_growth(file) / std::sqrt(size));
  latent.bias = config.output_bias;
  latent.norm = {.kind = NormKind::rms, .eps = 1e-6f};  // whatever rms_norm_eps says
  if (!config.rope.empty() && !file.boolean("rope_interleave", true)) config.rope.at(0).pairs = ops::RopePairs::halves;
  for (LayerConfig& layer : config.layer) {
    layer.mixer_attends = true;
    latent.rotary = layer.rotary;
    layer.mixer = LatentAttentionMaker{latent, names};
  }
}

std::vector<Family> latent_families() {
  return {
      {.model_type = "youtu",
       .architecture = "YoutuForCausalLM",
       .keys = {.head_size = kLatentHeadKey, .kv_heads = "", .mlp_bias = ""},
       .norm = {.kind = NormKind::rms, .eps = 1e-6f},
       .tied_head = true,
       .head_size = 64,
       .max_positions = 131072,
       .rope_pairs = ops::RopePairs::neighbours,
       .finish = [](const ConfigReader& file, DecoderConfig& config) { use_latent_attention(file, config); },
       .gguf = kDeepseek2},
      {.model_type = "minicpm3",
       .architecture = "MiniCPM3ForCausalLM",
       .keys = {.head_size = kLatentHeadKey, .kv_heads = ""},
       .norm = {.kind = NormKind::rms, .eps = 1e-5f},
       .tied_head = true,
       .head_size = 32,
       .max_positions = 32768,
       .finish = finish_minicpm3},
  };
}

}  // namespace nibble
