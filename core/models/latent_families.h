#pragma once
// Latent attention as config.json of DeepSeek V2 and its followers says it.

#include "nibble/core/models/decoder_config.h"
#include "nibble/core/models/families/config_reader.h"

namespace nibble {

/// The key of the rotated part of a head, which read_ropes takes for the head's size.
inline constexpr std::string_view kLatentHeadKey = "qk_rope_head_dim";

/// Makes latent attention of every layer: for a family whose keys.head_size is kLatentHeadKey and whose rope turns
/// neighbours unless rope_interleave says otherwise.
void use_latent_attention(const ConfigReader& file, DecoderConfig& config);

}  // namespace nibble
