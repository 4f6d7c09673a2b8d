#pragma once
// What the instruction set levels of this architecture are, for those who try them all or ask what one can do.

#include <span>

#include "nibble/core/base/cpu_features.h"

namespace nibble {

/// All of them, the lowest first.
std::span<const Isa> isa_levels();

/// Whether products of bf16 have instructions of their own.
bool has_bf16(Isa level);

}  // namespace nibble
