#pragma once
// A matrix in 4 bits as bitsandbytes stores it (its Linear4bit state dict), or gpt-oss (MXFP4): packed codes and the
// scales of blocks.

#include "nibble/core/ops/weight_view.h"

namespace nibble {

/// Which 16 values the codes stand for. MXFP4 is read and kept, not made.
enum class QuantType : uint8_t { nf4, fp4, mxfp4 };

/// The matrix as products read it (its table is the checkpoint's quant_map), and what else the checkpoint says of it.
struct QuantizedMatrix : ops::FourBitMatrix {
  QuantType type = QuantType::nf4;
  DType original_dtype = DType::bf16;  ///< dtype before quantization
  int64_t matrices = 0;                ///< n where its rows are those of a tensor [n, out, in], else 0

  /// Of the tensor before quantization.
  Shape original_shape() const {
    return matrices == 0 ? shape : Shape{matrices, out_features() / matrices, in_features()};
  }
};

}  // namespace nibble
