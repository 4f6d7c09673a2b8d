#pragma once
// The state dict of one bitsandbytes Linear4bit, as Transformers' save_pretrained writes it.

#include <string>
#include <vector>

#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/nn/linear_weight.h"
#include "nibble/quant/quantized_matrix.h"

namespace nibble {

/// Whether tensor `weight` ("model.layers.0.self_attn.q_proj.weight") is stored in 4 bits: whether the checkpoint has
/// its
/// `.quant_state.bitsandbytes__nf4` or `__fp4`.
bool is_quantized(const CheckpointDir& checkpoint, const std::string& weight);

/// The name under which the checkpoint has `weight`: itself, or without its first part, as files saved from the bare
/// model have it ("layers.0..." for "model.layers.0...").
std::string stored_weight_name(const CheckpointDir& checkpoint, const std::string& weight);

/// The 4-bit tensor whose name `tensor` goes on from as those of its further parts do ("...weight" of
/// "...weight.absmax"); empty where it does not.
std::string quantized_tensor_of(const std::string& tensor);

/// Reads the 4-bit tensor `weight`. Tensors stay views of the mapped checkpoint, but for those that have to be
/// converted (from `pool`): scales that are not f32, and the transposed scales of damaged files (see below).
///
/// InputError naming file and tensor when a part is missing, has another dtype or size than the state says, the state
/// is no valid JSON or says what bitsandbytes cannot have written, or a table or nested scale is not finite.
///
/// A 2-D absmax [in / block_size, out] (bitsandbytes 0.50 writes it after an inference on CPUs with AVX512-BF16) is
/// transposed into flat order. A packed weight of shape [1, n / 2], whose matrix would be the transpose, is refused.
QuantizedMatrix read_quantized(const CheckpointDir& checkpoint, const std::string& weight, MemoryPool& pool);

/// Names, shapes and dtypes of the parts of a matrix, known before it is quantized but for the offset.
std::vector<TensorSpec> quantized_specs(const QuantizedMatrix& matrix, const std::string& weight);

/// The parts that stand for `matrix` in a checkpoint, in the order of quantized_specs: the packed codes under the name
/// `weight` itself, scales and tables, and the state as JSON with the bytes that Python's json.dumps gives.
std::vector<NamedTensor> quantized_parts(const QuantizedMatrix& matrix, const std::string& weight, MemoryPool& pool);

/// The JSON text of the quant_state.
std::string quant_state_json(const QuantizedMatrix& matrix);

}  // namespace nibble
