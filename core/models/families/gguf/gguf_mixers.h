#pragma once
// Layers with other mixers than attention as llama.cpp has them: latent attention and short convolutions.

#include "nibble/core/models/families/gguf/gguf_names.h"

namespace nibble {

/// Throws UsageError: llama.cpp cannot compute `what`.
[[noreturn]] void refuse_for_llama_cpp(const std::string& what);

/// Throws UsageError for a mixer that llama.cpp cannot compute, as gguf_architecture().
void refuse_mixers(const DecoderConfig& config);

/// Tensors of the mixer of a layer that is not attention; from: "model.layers.0.", to: "blk.0."
void add_mixer_parts(const LayerConfig& layer, const std::string& from, const std::string& to,
                     std::vector<GgufPart>& parts);

/// Whether the model has latent attention.
bool says_latents(const DecoderConfig& config);

/// Adds what the mixers are to the metadata, and puts it in the place of what attention would be.
void say_mixers(const DecoderConfig& config, const std::string& key,
                std::vector<std::pair<std::string, GgufValue>>& metadata);

}  // namespace nibble
