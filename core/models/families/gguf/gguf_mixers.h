#pragma once
// Layers with other mixers than attention as llama.cpp has them: latent attention, short convolutions, state spaces and
// gated delta nets.

#include "nibble/core/models/families/gguf/gguf_names.h"

namespace nibble {

using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

/// Throws GgufRefusal: llama.cpp cannot compute `what`.
[[noreturn]] void refuse_for_llama_cpp(const std::string& what, const std::string& keys = "");

/// Throws UsageError for a mixer that llama.cpp cannot compute, as gguf_architecture().
void refuse_mixers(const DecoderConfig& config);
/// The same for state spaces and delta nets; whether `layer` has one of them.
bool refuse_recurrence(const DecoderConfig& config, const LayerConfig& layer);

/// Tensors of the mixer of a layer that is not attention; from: "model.layers.0.", to: "blk.0."
void add_mixer_parts(const DecoderConfig& config, const LayerConfig& layer, const std::string& from,
                     const std::string& to, GgufParts& parts);
/// The same of a state space or delta net; whether the layer has one.
bool add_recurrence_parts(const DecoderConfig& config, const LayerConfig& layer, const std::string& from,
                          const std::string& to, GgufParts& parts);

/// Whether the model has latent attention.
bool says_latents(const DecoderConfig& config);

/// Adds what the mixers are to the metadata, and puts it in the place of what attention would be.
void write_mixers(const DecoderConfig& config, const std::string& key, GgufMetadata& metadata);
/// The same for state spaces and delta nets.
void write_recurrence(const DecoderConfig& config, const std::string& key, GgufMetadata& metadata);
/// Sets metadata[key].
void write_value(GgufMetadata& metadata, const std::string& key, const GgufValue& value);

/// What llama.cpp leaves out of the model's own computation, so that logits differ.
std::vector<std::string> gguf_left_out(const DecoderConfig& config);

}  // namespace nibble
