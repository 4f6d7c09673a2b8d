#pragma once
// Families of mixtures of experts: their rows in the table of families.

#include "nibble/core/models/families/families.h"

namespace nibble {

std::vector<Family> expert_families();

}  // namespace nibble
