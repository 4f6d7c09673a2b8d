#pragma once
// A matrix in 4 bits as bitsandbytes stores it (its Linear4bit state dict): packed codes and the scales of blocks.

#include "nibble/core/ops/weight_view.h"

namespace nibble {

/// Which 16 values the codes stand for.
enum class QuantType : uint8_t { nf4, fp4 };

/// The matrix as products read it (its table is the checkpoint's quant_map), and what else the checkpoint says of it.
struct QuantizedMatrix : ops::FourBitMatrix {
  QuantType type = QuantType::nf4;
  DType original_dtype = DType::bf16;  ///< dtype before quantization
};

}  // namespace nibble
