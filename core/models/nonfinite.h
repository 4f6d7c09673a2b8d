#pragma once
// Weights that are not finite, named for whoever has to look for them.

#include <string>
#include <vector>

#include "nibble/core/nn/linear_weight.h"

namespace nibble {

class Decoder;

/// "WHAT, element 3 of 512, is nan", of the first element that is NaN or infinite; empty where there is none. Looks at
/// f32, bf16 and f16 only.
std::string nonfinite_text(const std::string& what, const Tensor& tensor);

/// That of the first of these tensors that has one. Mapped pages are given back.
std::string nonfinite_text(const std::vector<NamedTensor>& tensors);

/// Throws NumericError: what `model` computed at `place` is not finite. Names the first of its weights that is not.
[[noreturn]] void throw_nonfinite(const std::string& place, Decoder& model);

}  // namespace nibble
