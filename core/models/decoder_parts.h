#pragma once
// What a Decoder is made of, from its config: the input, one layer, the head.

#include <memory>

#include "nibble/core/models/decoder_config.h"
#include "nibble/core/models/head_loss.h"
#include "nibble/core/models/input_stage.h"
#include "nibble/core/nn/block.h"
#include "nibble/core/nn/layer_sharding.h"
#include "nibble/core/nn/makers.h"

namespace nibble {

InputStage make_input(const DecoderConfig& config, const Makers& makers);
/// sharding: null, or which heads and columns are this rank's.
Block make_block(const DecoderConfig& config, int64_t l, const LayerSharding* sharding, const Makers& makers);
/// embedding: the table, null on a stage that does not have it.
DecoderHead make_head(const DecoderConfig& config, const Makers& makers, const std::shared_ptr<Parameter>& embedding);

}  // namespace nibble
