#pragma once
// Weights of the base that are trained beside an adapter: modules_to_save and biases.

#include <set>
#include <string>

#include "nibble/adapters/options.h"
#include "nibble/core/models/decoder.h"

namespace nibble {

/// Gives the biases and modules_to_save that the options name values of their own (f32, writable), under their PEFT
/// names ("base_model.model.lm_head.weight", "....q_proj.base_layer.bias"); with gradients if trainable. A tied head or
/// embedding is untied first, so that the other keeps its weight. `targeted`: paths of the Linears with an adapter.
/// Throws UsageError for a 4-bit module and for a name that fits nothing.
void train_whole(Decoder& decoder, const AdapterOptions& options, const std::set<std::string>& targeted, bool trainable,
                 RankContext& rank);

}  // namespace nibble
