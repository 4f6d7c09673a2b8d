#pragma once
// Weights in 8-bit floats, as DeepSeek V3, Kimi K2 and Qwen3's -FP8 repositories are published
// (transformers/integrations/finegrained_fp8.py): of the weight NAME f8_e4m3 [out, in], or [n, out, in] of experts,
// there is NAME_scale_inv, f32 or bf16: one number for each block of 128 x 128 (the last ones smaller), or one for each
// matrix. The value is code times scale.

#include "nibble/core/io/hub/checkpoint_dir.h"

namespace nibble {

/// Side of a block.
inline constexpr int64_t kFp8Block = 128;

/// Whether tensor `name` is stored so.
bool is_fp8(const CheckpointDir& checkpoint, const std::string& name);

/// The name of the weight whose scales ("NAME_scale_inv") or whose inputs' static scale ("activation_scale", which is
/// passed over: nibble does not round inputs) the tensor is; "" for other tensors, and where that weight is not so.
std::string fp8_weight_of(const CheckpointDir& checkpoint, const std::string& tensor);

/// Elements [begin, end) of the first dimension as bf16. InputError naming file and tensor when the scales are missing,
/// of another shape or dtype, or not finite.
Tensor read_fp8(const CheckpointDir& checkpoint, const std::string& name, int64_t begin, int64_t end, MemoryPool& pool);

/// A tensor as it is computed with: one in 8-bit floats as bf16 in `pool`, others as CheckpointDir::at gives them.
Tensor read_plain(const CheckpointDir& checkpoint, const std::string& name, MemoryPool& pool);

/// Name, shape and dtype of what read_plain gives.
TensorSpec plain_spec(const CheckpointDir& checkpoint, const std::string& name);

}  // namespace nibble
