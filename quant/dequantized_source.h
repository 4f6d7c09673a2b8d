#pragma once
// A checkpoint in 4 bits as plain tensors.

#include "nibble/core/models/tensor_source.h"

namespace nibble {

/// 4-bit weights appear dequantized and as the family has its plain tensors (gpt-oss's of MXFP4 [n, in, out], Conv1D
/// weights of GPT-2 [in, out]), any other checkpoint as plain_source gives it. It must outlive the result; scales are
/// decoded into `pool`.
TensorSource dequantized_source(const CheckpointDir& checkpoint, MemoryPool& pool);

}  // namespace nibble
