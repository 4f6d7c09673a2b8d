#pragma once
// Experts as gpt-oss was published (MXFP4 of the OCP Microscaling formats; transformers/integrations/mxfp4.py): of the
// tensor NAME there are `NAME_blocks` u8 [n, out, in / 32, 16], two codes a byte, the low nibble first, and
// `NAME_scales` u8 [n, out, in / 32], the exponent of each block of 32.

#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/quant/quantized_matrix.h"

namespace nibble {

/// Whether tensor `name` ("model.layers.0.mlp.experts.down_proj") is stored so.
bool is_mxfp4(const CheckpointDir& checkpoint, const std::string& name);

/// The tensor that "..._blocks" or "..._scales" belongs to; empty for other names.
std::string mxfp4_tensor_of(const std::string& part);

/// Views of the mapped checkpoint. InputError naming file and tensor when the two parts are missing, of another dtype
/// or do not fit each other.
QuantizedMatrix read_mxfp4(const CheckpointDir& checkpoint, const std::string& name);

/// A tensor [n, out, in] without bytes. InputError naming it where `in` is not of whole blocks.
QuantizedMatrix plan_mxfp4(const Shape& shape, const std::string& name);

/// The codes u8 [n, in / 2] and exponents u8 [n, in / 32] of rows f32 [n, in]: the scale of a block is the power of two
/// at or below its largest magnitude, over 4; each element is rounded to the nearest of the 8 magnitudes, ties to the
/// smaller (OCP Microscaling Formats 1.0, 6.3).
void encode_mxfp4(const Tensor& rows, Tensor& packed, Tensor& exponents);

/// Names, in the file, of packed and exponents of the tensor `name`.
std::string mxfp4_blocks_name(const std::string& name);
std::string mxfp4_scales_name(const std::string& name);

}  // namespace nibble
