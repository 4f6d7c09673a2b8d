#pragma once
// The numbers of bitsandbytes' 4-bit types; those of its double quantization are in core/ops/dynamic_map.h.

#include <array>
#include <optional>
#include <string_view>

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

/// How a scaled element in [-1, 1] finds its code: the number of `thresholds` (midpoints between neighbouring values)
/// below it, looked up in `codes`. A tie goes to the lower value, a NaN (nothing is below it) to codes[0].
struct CodeRule {
  std::array<float, 15> thresholds;  ///< ascending
  std::array<uint8_t, 16> codes;
};
/// Not of MXFP4.
const CodeRule& code_rule(QuantType type);

}  // namespace nibble
