#pragma once
// The config.json of a model that is in a GGUF file: the exporter's gguf_hyperparameters() read backwards.

#include <string>

#include "nibble/core/io/gguf/gguf.h"
#include "nibble/core/models/decoder_config.h"

namespace nibble {

/// For files of llama.cpp's converter and of `nibble export`; the embedding's dtype is called `dtype`. Throws
/// InputError naming the key for an architecture that is not known (with the known ones), a key that is missing, and
/// what config.json cannot say.
std::string gguf_config_json(const GgufFile& file, DType dtype, MemoryPool& pool);

/// What that config.json says. InputError names the keys of `file`.
DecoderConfig gguf_decoder_config(const GgufFile& file, const std::string& config_json);

}  // namespace nibble
