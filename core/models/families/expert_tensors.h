#pragma once
// Tensors of all experts of a layer, as Transformers' modules and PEFT have them, whatever the files have.

#include <optional>
#include <string>
#include <vector>

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

  /// The Linear's first row of [E out, in].
  int64_t first_row() const { return expert * outputs + first_output; }
};

/// Of the Linear of this name; nothing where it is of no expert.
std::optional<ExpertPart> expert_part(const DecoderConfig& config, const std::string& linear);

/// A parameter of the files as the modules have it.
struct ModuleTensor {
  std::string name;                ///< path; of an expert's own weight that of the tensor of all experts
  std::optional<ExpertPart> part;  ///< what such a weight is of it
};
/// Of experts, a router or its correction; other parameters are called alike.
ModuleTensor module_tensor(const DecoderConfig& config, const std::string& parameter);

/// A parameter of the files that is rows of a tensor [E, out, in] of the modules.
struct ExpertPiece {
  std::string parameter;
  Range rows;  ///< of [E out, in]
};
/// What the files have for a tensor of all experts of the modules, in the order of its bytes; empty: one parameter,
/// which file_parameter names.
std::vector<ExpertPiece> expert_pieces(const DecoderConfig& config, const std::string& tensor);
/// The opposite of module_tensor for all else.
std::string file_parameter(const DecoderConfig& config, const std::string& tensor);

/// What the modules call the module that a path ends in: "mlp.gate" for Mixtral's "block_sparse_moe.gate".
std::string module_path(const DecoderConfig& config, const std::string& path);

/// Which expert a stored tensor is of; nothing where it is of none, or of all.
std::optional<int64_t> expert_of(const DecoderConfig& config, const std::string& tensor);

/// Whether the Linear of this name is a router.
bool is_router(const DecoderConfig& config, const std::string& linear);

}  // namespace nibble
