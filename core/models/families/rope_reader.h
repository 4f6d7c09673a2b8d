#pragma once
// The rope of a config.json, in both of its styles: rope_theta and rope_scaling beside it (published files), or
// rope_parameters, one or one for each type of layer (Transformers 5).

#include "nibble/core/models/families/families.h"

namespace nibble {

/// Fills config.rope: one entry, or the one of layers that see everything and the one of layers with a window. Needs
/// the sizes in `config`. Throws InputError for an unknown type, listing the known ones.
void read_ropes(const ConfigReader& file, const Family& family, DecoderConfig& config);

}  // namespace nibble
