#pragma once
// LLM.int8 checkpoints (bitsandbytes Linear8bitLt, Dettmers et al. 2022), as Transformers' save_pretrained writes them:
// `weight` i8 [out, in], `SCB` f32 [out], the largest magnitude of each row, and `weight_format` u8, 0 = by rows.

#include <string>

#include "nibble/core/io/hub/checkpoint_dir.h"

namespace nibble {

/// Whether tensor `weight` ("model.layers.0.self_attn.q_proj.weight") is stored in 8 bits.
bool is_int8(const CheckpointDir& checkpoint, const std::string& weight);

/// Whether `tensor` belongs to an 8-bit weight: "....SCB" or "....weight_format"; then that weight's name, else "".
std::string int8_weight_of(const std::string& tensor);

/// The matrix as f32 [out, in]: code * SCB / 127. InputError naming file and tensor when SCB is missing, has another
/// shape or dtype or a value that is no number, or when the codes are in the order of a GPU's tiles.
Tensor read_int8(const CheckpointDir& checkpoint, const std::string& weight, MemoryPool& pool);

}  // namespace nibble
