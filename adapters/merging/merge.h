#pragma once
// An adapter dissolved into the weights it was trained beside: W + s B A, written as a plain model.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/io/hub/checkpoint_dir.h"

namespace nibble {

/// What is merged into: a model as plain tensors, whatever form its weights are stored in. A 4-bit checkpoint appears
/// as its dequantized weights.
struct MergeBase {
  std::filesystem::path directory;  ///< tokenizer and generation files are copied from here
  std::string config;               ///< text of config.json
  std::vector<TensorSpec> tensors;  ///< unpacked names and shapes ("model.layers.0.mlp.up_proj.weight" [F, D])
  /// Rows [begin, end) of a tensor's first dimension as f32.
  std::function<Tensor(const std::string& name, int64_t begin, int64_t end, MemoryPool& pool)> rows;
};

/// A 16- or 32-bit checkpoint, which must outlive the result. Throws InputError for one with packed weights.
MergeBase plain_base(const CheckpointDir& checkpoint);

struct MergeOptions {
  DType dtype = DType::bf16;           ///< of every float tensor written: bf16, f16 or f32
  Replace replace = Replace::nothing;  ///< what the target may be
  uint64_t shard_bytes = 5'000'000'000;
};

/// What merging did.
struct MergeReport {
  int64_t modules = 0;     ///< with a LoRA
  int64_t replaced = 0;    ///< tensors taken whole from the adapter (modules_to_save, biases)
  double max_change = 0;   ///< largest |change| of an element, before rounding to the output's dtype
  double mean_change = 0;  ///< mean |change| over all elements of the modules with a LoRA
  bool untied = false;     ///< the head became a tensor of its own
};

/// Writes the merged model to `out`, block of rows by block of rows. The sum is made in f32 and rounded once.
/// config.json loses its quantization_config and gets the new dtype. A tied head that the adapter changes (or whose
/// embedding it changes) is written as a tensor of its own and tie_word_embeddings becomes false. Throws InputError
/// when a part of the adapter has no place in the base, NumericError when a value does not fit the dtype; UsageError,
/// IoError as ModelDirectoryWriter. Nothing appears at `out` unless all went well.
MergeReport merge_adapter(const MergeBase& base, const PeftAdapter& adapter, const std::filesystem::path& out,
                          const MergeOptions& options, MemoryPool& pool);

}  // namespace nibble
