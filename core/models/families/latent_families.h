#pragma once
// Latent attention as config.json of DeepSeek V2 and its followers says it.

#include "nibble/core/models/decoder_config.h"
#include "nibble/core/models/families/config_reader.h"
#include "nibble/core/nn/mixers/latent_attention.h"

namespace nibble {

/// LayerConfig::mixer of such a layer.
struct LatentAttentionMaker {
  LatentAttentionConfig config;
  LatentAttentionNames names;
  std::unique_ptr<Mixer> operator()(const DecoderConfig& model, int64_t layer, const std::string& prefix,
                                    const Makers& makers) const;
};

/// The key of the rotated part of a head, which read_ropes takes for the head's size.
inline constexpr std::string_view kLatentHeadKey = "qk_rope_head_dim";

/// Makes latent attention of every layer: for a family whose keys.head_size is kLatentHeadKey and whose rope turns
/// neighbours unless rope_interleave says otherwise.
void use_latent_attention(const ConfigReader& file, DecoderConfig& config);
/// The same under other names; gate: with one for each head.
void use_latent_attention(const ConfigReader& file, DecoderConfig& config, const LatentAttentionNames& names,
                          bool gate);

}  // namespace nibble
