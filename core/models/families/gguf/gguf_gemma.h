#pragma once
// Gemma 4 as llama.cpp has it: inputs of the layers' own, keys and values of earlier layers, experts beside an MLP.

#include "nibble/core/models/families/gguf/gguf_mixers.h"

namespace nibble {

/// Throws UsageError for such a model that llama.cpp cannot compute, as gguf_architecture().
void refuse_gemma(const DecoderConfig& config);

/// Tensors of the model that belong to no layer, beside those that others have.
void add_gemma_parts(const DecoderConfig& config, GgufParts& parts);
/// The same of a layer; from: "model.layers.0.", to: "blk.0."
void add_gemma_layer_parts(const DecoderConfig& config, const std::string& from, const std::string& to,
                           GgufParts& parts);

void write_gemma(const DecoderConfig& config, const std::string& key, GgufMetadata& metadata);

}  // namespace nibble
