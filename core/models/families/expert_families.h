#pragma once
// Families of mixtures of experts: their rows in the table of families.

#include "nibble/core/models/families/families.h"

namespace nibble {

std::vector<Family> expert_families();
/// Beside the experts one MLP that all tokens share, with a gate.
TensorNames qwen2_moe_names();

}  // namespace nibble
