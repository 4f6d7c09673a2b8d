#pragma once
// A model as plain tensors, read by rows, whatever form its weights are stored in: what merging and GGUF read from.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/models/decoder_config.h"

namespace nibble {

struct TensorSource {
  std::filesystem::path directory;  ///< of the checkpoint behind it: tokenizer and generation files, place in errors
  std::string config;               ///< text of config.json
  std::vector<TensorSpec> tensors;  ///< unpacked names and shapes ("model.layers.0.mlp.up_proj.weight" [F, D])
  /// Rows [begin, end) of a tensor's first dimension as f32.
  std::function<Tensor(const std::string& name, int64_t begin, int64_t end, MemoryPool& pool)> rows;
};

/// The checkpoint of a model, where parts stand for tensors that are several modules' (DecoderConfig::fused_tensors).
CheckpointDir open_checkpoint(const std::filesystem::path& directory);

/// What its config.json and the names of its tensors say.
DecoderConfig decoder_config_of(const TensorSource& source);

/// Rows [begin, end) of a tensor that is not packed, as f32.
Tensor unpacked_rows(const CheckpointDir& checkpoint, const std::string& name, int64_t begin, int64_t end,
                     MemoryPool& pool);

/// A 16- or 32-bit checkpoint, or one in 8-bit floats (see read_fp8), which must outlive the result. Throws InputError
/// for one with packed weights.
TensorSource plain_source(const CheckpointDir& checkpoint);

}  // namespace nibble
