#include "nibble/core/models/tensor_source.h"

#include <algorithm>

#include "nibble/core/base/error.h"
#include "nibble/core/io/hub/fp8_tensor.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

/// Constants that old checkpoints hold beside the weights, recomputed by everyone.
bool is_buffer(const std::string& name, const Tensor& tensor) {
  const bool mask = name.ends_with(".attn.bias") || name.ends_with(".attention.bias");
  return name.ends_with("rotary_emb.inv_freq") || name.ends_with(".masked_bias") || (mask && tensor.rank() == 4);
}

}  // namespace

CheckpointDir open_checkpoint(const std::filesystem::path& directory) {
  CheckpointDir checkpoint(directory);
  checkpoint.split(read_decoder_config(directory).fused_tensors);
  return checkpoint;
}

DecoderConfig decoder_config_of(const TensorSource& source) {
  const std::string place = (source.directory / "config.json").string();
  return parse_decoder_config(source.config, place, [&](const std::string& tensor) -> std::optional<Shape> {
    const auto found = std::ranges::find(source.tensors, tensor, &TensorSpec::name);
    return found == source.tensors.end() ? std::nullopt : std::optional(found->shape);
  });
}

Tensor unpacked_rows(const CheckpointDir& checkpoint, const std::string& name, int64_t begin, int64_t end,
                     MemoryPool& pool) {
  const Tensor tensor = checkpoint.at(name);
  const Tensor rows = is_fp8(checkpoint, name) ? read_fp8(checkpoint, name, begin, end, pool)
                      : tensor.rank() == 0     ? tensor
                                               : tensor.rows(begin, end);
  Tensor wide = Tensor::empty(pool, rows.shape(), DType::f32, name);
  ops::cast(rows, wide);
  return wide;
}

TensorSource plain_source(const CheckpointDir& checkpoint) {
  TensorSource source{checkpoint.path(), checkpoint.config_text(), {}, {}};
  for (const std::string& name : checkpoint.names()) {
    if (name.find(".quant_state.") != std::string::npos) {
      throw InputError(checkpoint.file_of(name), name + ": the weights are packed in 4 bits",
                       "merge into the dequantized weights, or name the original 16-bit model");
    }
    if (is_buffer(name, checkpoint.at(name)) || !fp8_weight_of(checkpoint, name).empty()) continue;
    source.tensors.push_back(plain_spec(checkpoint, name));
  }
  source.rows = [&checkpoint](const std::string& name, int64_t begin, int64_t end, MemoryPool& pool) {
    return unpacked_rows(checkpoint, name, begin, end, pool);
  };
  return source;
}

}  // namespace nibble
