#pragma once
// The numbers of bitsandbytes' 4-bit types; those of its double quantization are in core/ops/dynamic_map.h.

#include <array>
#include <optional>
#include <string_view>

#include "nibble/core/ops/cpu/four_bit/four_bit_encode.h"
#include "nibble/core/ops/dynamic_map.h"
#include "nibble/quant/quantized_matrix.h"

namespace nibble {

/// "nf4", "fp4" or "mxfp4".
std::string_view quant_type_name(QuantType type);
/// The type of that name that can be made, nf4 or fp4, or nothing.
std::optional<QuantType> find_quant_type(std::string_view name);

/// Value of each code, as stored in `quant_map`. NF4 (Dettmers et al., "QLoRA", 2023): quantiles of the normal
/// distribution, ascending. FP4: sign, two bits of exponent, one of mantissa, divided by 12; code order, not sorted.
/// MXFP4: sign, two bits of exponent, one of mantissa (E2M1 of the OCP Microscaling formats).
const std::array<float, 16>& quant_table(QuantType type);

/// How an element finds its code. Not of MXFP4.
const ops::cpu::CodeRule& code_rule(QuantType type);

}  // namespace nibble
