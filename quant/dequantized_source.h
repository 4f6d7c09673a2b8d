#pragma once
// A checkpoint in 4 bits as plain tensors.

#include "nibble/core/models/tensor_source.h"

namespace nibble {

/// 4-bit weights appear dequantized (MXFP4 in the shape of gpt-oss's plain tensors, [n, in, out]), any other checkpoint
/// as plain_source gives it. It must outlive the result; scales are decoded into `pool`.
TensorSource dequantized_source(const CheckpointDir& checkpoint, MemoryPool& pool);

}  // namespace nibble
