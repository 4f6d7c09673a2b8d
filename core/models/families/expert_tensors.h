#pragma once
// Tensors of all experts of a layer, as Transformers' modules and PEFT have them, whatever the files have.

#include <optional>
#include <string>

#include "nibble/core/models/decoder_config.h"

namespace nibble {

/// What the Linear of one expert is of such a tensor [E, out, in] (or transposed).
struct ExpertPart {
  std::string tensor;  ///< path, "model.layers.0.mlp.experts.gate_up_proj"
  int64_t expert = 0, experts = 0;
  int64_t first_output = 0;  ///< of the tensor's outputs, the Linear's first
  int64_t outputs = 0;       ///< of the tensor
  /// PEFT takes the tensor for [E, out, in] though it is [E, in, out]: its A has as many columns as there are outputs,
  /// its B as many rows as there are inputs (Llama 4, whose module does not say is_transposed).
  bool swapped = false;
};

/// Of the Linear of this name; nothing where it is of no expert.
std::optional<ExpertPart> expert_part(const DecoderConfig& config, const std::string& linear);

/// Which expert a stored tensor is of; nothing where it is of none, or of all.
std::optional<int64_t> expert_of(const DecoderConfig& config, const std::string& tensor);

/// Whether the Linear of this name is a router.
bool is_router(const DecoderConfig& config, const std::string& linear);

}  // namespace nibble
