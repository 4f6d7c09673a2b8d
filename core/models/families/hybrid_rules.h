#pragma once
// Families whose layers have mixers other than attention: the last step of reading their config.json (Family::finish).

#include "nibble/core/models/families/config_reader.h"
#include "nibble/core/models/families/families.h"

namespace nibble {

/// Their rows.
std::vector<Family> hybrid_families();

TensorNames lfm2_names();
TensorNames bamba_names();
TensorNames granite_hybrid_names();
TensorNames nemotron_h_names();

void finish_lfm2(const ConfigReader& file, DecoderConfig& config);
void finish_qwen3_5(const ConfigReader& file, DecoderConfig& config);
void finish_qwen3_next(const ConfigReader& file, DecoderConfig& config);
void finish_falcon_h1(const ConfigReader& file, DecoderConfig& config);
void finish_bamba(const ConfigReader& file, DecoderConfig& config);
void finish_granite_hybrid(const ConfigReader& file, DecoderConfig& config);
void finish_nemotron_h(const ConfigReader& file, DecoderConfig& config);

}  // namespace nibble
