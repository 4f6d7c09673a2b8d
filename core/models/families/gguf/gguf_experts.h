#pragma once
// Mixtures of experts as llama.cpp has them.

#include "nibble/core/models/families/gguf/gguf_mixers.h"

namespace nibble {

/// Throws UsageError for experts that llama.cpp cannot compute, as gguf_architecture().
void refuse_experts(const DecoderConfig& config, const GgufForm& form);

/// Tensors of a layer's router, experts and shared MLP; from: "model.layers.0.", to: "blk.0."
void add_expert_parts(const DecoderConfig& config, const std::string& from, const std::string& to, GgufParts& parts);

void write_experts(const DecoderConfig& config, const std::string& key, GgufMetadata& metadata);

}  // namespace nibble
