#pragma once
// The model that a base and an adapter make together, computed block of rows by block of rows as it is read.

#include <memory>

#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/models/tensor_source.h"

namespace nibble {

/// What merging did.
struct MergeReport {
  int64_t modules = 0;     ///< with a LoRA
  int64_t replaced = 0;    ///< tensors taken whole from the adapter (modules_to_save, biases)
  double max_change = 0;   ///< largest |change| of an element, before rounding to the output's dtype
  double mean_change = 0;  ///< mean |change| over all elements of the modules with a LoRA
  /// Mean |change| by rounding to 4 bits again, over all elements of the tensors in 4 bits that the adapter changes.
  double mean_rounding = 0;
  bool untied = false;  ///< the head became a tensor of its own
};

/// W + s B A of every tensor. base and adapter must outlive it.
class MergedModel {
 public:
  /// dtype: what the tensors are to be written in, as their specs say; rows are f32 in any case. Throws InputError when
  /// a part of the adapter has no place in the base, UsageError when dtype is no float type.
  MergedModel(const TensorSource& base, const PeftAdapter& adapter, DType dtype, MemoryPool& pool);
  ~MergedModel();

  /// Its config.json has no quantization_config, the new dtype, and tie_word_embeddings false where the adapter changes
  /// a tied head or its embedding. Tensors are read one after another, by one thread, while this lives.
  const TensorSource& source() const { return source_; }
  /// Of the rows that were read.
  MergeReport report() const;

 private:
  class Merger;
  std::unique_ptr<Merger> merger_;
  TensorSource source_;
};

/// A copy of an adapter's tensor in f32.
Tensor as_f32(const Tensor& stored, MemoryPool& pool);

/// Rows of the tensor `name` in `dtype`, f32 rows as they are. Throws NumericError when a value is not finite in it.
Tensor checked_rows(const Tensor& rows, const std::string& name, DType dtype, MemoryPool& pool);

/// The base's tokenizer, chat template and generation files; what the adapter was trained with goes before them.
void copy_merged_companions(const TensorSource& base, const PeftAdapter& adapter, const std::filesystem::path& to);

}  // namespace nibble
