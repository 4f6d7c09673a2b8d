#pragma once
// What depends on flags of a family's own: the last step of reading its config.json (Family::finish).

#include "nibble/core/models/decoder_config.h"
#include "nibble/core/models/families/config_reader.h"

namespace nibble {

/// The most that a config.json may say: columns of a weight, positions of a text, and taps of a convolution.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20, kMaxPositions = int64_t{1} << 30, kMaxTaps = 64;

void finish_gemma(const ConfigReader& file, DecoderConfig& config);
void finish_gemma2(const ConfigReader& file, DecoderConfig& config);
void finish_gemma3(const ConfigReader& file, DecoderConfig& config);
void finish_stablelm(const ConfigReader& file, DecoderConfig& config);
void finish_phi(const ConfigReader& file, DecoderConfig& config);
void finish_olmo(const ConfigReader& file, DecoderConfig& config);
void finish_hyperclovax(const ConfigReader& file, DecoderConfig& config);
void finish_granite_swa(const ConfigReader& file, DecoderConfig& config);
void finish_granite(const ConfigReader& file, DecoderConfig& config);
void finish_cohere(const ConfigReader& file, DecoderConfig& config);
void finish_starcoder2(const ConfigReader& file, DecoderConfig& config);
void finish_gpt_bigcode(const ConfigReader& file, DecoderConfig& config);
void finish_bloom(const ConfigReader& file, DecoderConfig& config);
void finish_gptj(const ConfigReader& file, DecoderConfig& config);
void finish_codegen(const ConfigReader& file, DecoderConfig& config);
void finish_gpt_neox(const ConfigReader& file, DecoderConfig& config);
void finish_falcon(const ConfigReader& file, DecoderConfig& config);
void finish_gpt2(const ConfigReader& file, DecoderConfig& config);
void finish_opt(const ConfigReader& file, DecoderConfig& config);

}  // namespace nibble
