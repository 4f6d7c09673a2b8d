#pragma once
// Families of mixtures of experts: their rows in the table of families.

#include "nibble/core/models/families/families.h"

namespace nibble {

std::vector<Family> expert_families();
/// Beside the experts one MLP that all tokens share, with a gate.
TensorNames qwen2_moe_names();
/// A correction of the choice, and the shared MLP without one.
TensorNames deepseek_v3_names();
TensorNames mixtral_names();
/// gate_proj, up_proj and down_proj below a module.
MlpNames mlp_below(const std::string& module);

}  // namespace nibble
