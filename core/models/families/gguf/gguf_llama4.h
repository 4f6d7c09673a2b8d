#pragma once
// Llama 4 as llama.cpp has it: chunks, scaled queries and rope by numbers that its files do not say.

#include "nibble/core/models/families/gguf/gguf_mixers.h"

namespace nibble {

/// Throws UsageError for a Llama 4 with other numbers, as gguf_architecture().
void refuse_llama4(const DecoderConfig& config);

void write_llama4(const DecoderConfig& config, const std::string& key, GgufMetadata& metadata);

}  // namespace nibble
