#pragma once
// Loading models in 4 bits: from 4-bit directories as they are, and from 16 or 32-bit ones by quantizing on the way.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "nibble/core/models/load.h"
#include "nibble/quant/codec.h"

namespace nibble {

/// How Linears of a 16 or 32-bit directory become 4-bit while it is loaded.
struct QuantizeOnLoad {
  QuantizeOptions codec;
  std::optional<std::vector<std::string>> skip_modules;  ///< see SkipRule; absent: the output head
};

/// Whether config.json of the directory says that it is in 4 bits: `quantize` then has no effect.
bool is_four_bit(const std::filesystem::path& model);

/// Options for load_decoder. Linears that the directory has in 4 bits (of bitsandbytes, or gpt-oss's experts in
/// MXFP4) become Nf4Weights on the mapped file, without a copy; 8-bit ones (LLM.int8) become dense f32. The others stay
/// dense, unless `quantize` is given and the directory is no 4-bit one: then they are quantized one after another, so
/// that never more than one is in memory in both forms. A 4-bit directory is used as it is, whatever `quantize` says.
///
/// What load_decoder throws then: as read_quantized and quantize say, and InputError for a 4-bit weight whose shape is
/// not the one that config.json gives. `rank` must outlive the decoder.
LoadOptions load_quantized(RankContext& rank, const std::optional<QuantizeOnLoad>& quantize = std::nullopt);

}  // namespace nibble
