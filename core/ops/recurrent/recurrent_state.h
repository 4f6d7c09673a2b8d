#pragma once
// What documents go on from where ops run over tokens one after another.

#include <span>

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// Row rows[i] of `values` is what document i goes on from; the op leaves there what the document's next tokens go on
/// from. Ops that are given none begin every document anew, from zeros.
struct RecurrentState {
  Tensor values;                  ///< [sequences, n] f32
  std::span<const int64_t> rows;  ///< one for each document, no two alike
};

}  // namespace nibble::ops
