#pragma once
// Families whose layers have mixers other than attention: the last step of reading their config.json (Family::finish).

#include "nibble/core/models/config_reader.h"
#include "nibble/core/models/decoder_config.h"

namespace nibble {

TensorNames lfm2_names();
TensorNames falcon_h1_names();
TensorNames bamba_names();

void finish_lfm2(const ConfigReader& file, DecoderConfig& config);
void finish_qwen3_5(const ConfigReader& file, DecoderConfig& config);
void finish_falcon_h1(const ConfigReader& file, DecoderConfig& config);
void finish_bamba(const ConfigReader& file, DecoderConfig& config);
void finish_granite_hybrid(const ConfigReader& file, DecoderConfig& config);

}  // namespace nibble
