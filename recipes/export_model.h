#pragma once
// What a full run leaves for others: written, read back, compared.

#include <filesystem>

#include "nibble/core/models/decoder.h"

namespace nibble {

/// Writes a whole model as a Hugging Face directory in the dtype its config names (f32, bf16 or f16): `config` is a
/// config.json or a directory with one, `companions` a directory whose tokenizer and other small files are copied.
/// Replaces an older one; reads the weights back and compares. Throws IoError when it cannot be written or differs.
void export_model(Decoder& model, const std::filesystem::path& config, const std::filesystem::path& companions,
                  const std::filesystem::path& target, RankContext& rank);

}  // namespace nibble
