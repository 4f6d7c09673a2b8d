#pragma once
// Which part of an adapter goes into which tensor of the merged model.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/models/families/expert_tensors.h"
#include "nibble/core/models/tensor_source.h"

namespace nibble {

/// Which Linears of experts a tensor of the base holds: one, or those of all experts [E, out, in].
struct ExpertMatrices {
  ExpertPart part;          ///< of the one, or of expert 0
  bool all = false;         ///< [E, ...]
  bool transposed = false;  ///< a matrix is [in, out]
};

/// One tensor of the merged model and what it is made of.
struct MergeOutput {
  std::string name;
  Shape shape;
  DType dtype;
  std::string source = {};    ///< tensor of the base; empty: none
  int64_t source_rows = 0;    ///< of the base's tensor; those after them are its mean, as Transformers resizes it
  bool zero_filled = false;   ///< or zeros
  Tensor replacement = {};    ///< or: taken from the adapter
  std::string lora = {};      ///< module whose LoRA is added, or empty
  bool transposed = false;    ///< it is a Linear's weight that the family stores [in, out] (Conv1D of GPT-2)
  bool is_embedding = false;  ///< the LoRA is one of a table
  /// The LoRA is one of experts, beside these.
  std::optional<ExpertMatrices> experts = {};
  std::string tokens = {};  ///< module whose token rows are put in, or empty
  Tensor bias = {};         ///< added to a bias: lora_B.bias, with
  float bias_scaling = 0;
};

/// The ids whose rows the adapter has for a table (trainable_token_indices). Throws InputError where they do not fit
/// the rows in its file.
std::vector<int64_t> trained_token_ids(const PeftAdapter& adapter, const std::string& module, const TensorNames& names);

/// The tensors of the merged model in the order in which they are written. adapter must outlive it.
class MergePlan {
 public:
  /// dtype: of every float tensor. Throws UsageError where that is no float type, InputError where a part of the
  /// adapter has no place in the base or the base has a tensor that is no float.
  MergePlan(const TensorSource& base, const PeftAdapter& adapter, DType dtype);

  const std::vector<MergeOutput>& outputs() const { return outputs_; }
  /// Whether a tied head became a tensor of its own.
  bool untied() const { return untied_; }
  const TensorNames& names() const { return model_.names; }
  /// Rows of the merged embedding.
  int64_t vocab_size() const;

 private:
  MergeOutput& output(const std::string& name, const std::string& part);
  void place(const std::string& name, const Tensor& tensor);
  void place_linears();
  void replace(const std::string& target, const std::string& part, const Tensor& tensor);
  void replace_table(const std::string& parameter, const std::string& part);
  void resize(int64_t rows);
  void untie();
  bool touches(const std::string& module) const;
  void check_loftq(const TensorSource& base) const;
  void share_tokens_with_head(const std::string& module);

  const PeftAdapter& adapter_;
  DecoderConfig model_;
  std::vector<MergeOutput> outputs_;
  std::map<std::string, size_t> index_;
  std::set<std::string> placed_;  // modules with a LoRA whose tensors in the files have other names
  bool untied_ = false;
};

}  // namespace nibble
