#pragma once
// LoRA (Hu et al. 2021): a low-rank change beside a frozen weight, W + s B A.

#include <memory>
#include <optional>
#include <string>

#include "nibble/core/nn/adapter.h"

namespace nibble {

/// The numbers of one LoRA.
struct LoraSettings {
  double scaling = 1;  ///< s: alpha / r or alpha / sqrt(r)
  float dropout = 0;   ///< in [0, 1), on the input of A, while training
  /// Where x begins in the whole input when A is a part of columns: dropout keeps the same elements as for the whole.
  int64_t first_input = 0;
};

/// y += s (drop(x) A^T B^T + b). A [R, in], B [out, R] and b [out] are f32; products run in the dtype of x.
class LoraAdapter final : public Adapter {
 public:
  /// module: path of the Linear, keys the dropout masks. b may be null. All f32; trainable or not, all alike.
  LoraAdapter(const std::string& module, LoraSettings settings, std::shared_ptr<Parameter> a,
              std::shared_ptr<Parameter> b, std::shared_ptr<Parameter> b_bias = nullptr);

  std::optional<ops::LowRankEpilogue> low_rank_forward(const Tensor& x, const StepContext& step,
                                                       AdapterSaved* saved) const override;
  void forward(const Tensor& x, const LinearWeight& base, Tensor& y, const StepContext& step,
               AdapterSaved* saved) const override;
  AdapterGradient backward(const Tensor& dy, const LinearWeight& base, const StepContext& step) const override;
  void accumulate_gradients(const AdapterGradient& gradient, const Tensor& dy, const Tensor& x, const StepContext& step,
                            const AdapterSaved& saved) override;
  void backward_input(const AdapterGradient& gradient, const Tensor& dy, const LinearWeight& base,
                      const StepContext& step, Tensor& dx, bool accumulate) const override;
  bool trainable() const override { return a_->trainable; }
  void visit(const ParameterVisitor& visitor) override;
  void merge_rows(int64_t begin, Tensor& rows) const override;

  int64_t r() const { return a_->value.dim(0); }
  const LoraSettings& settings() const { return settings_; }
  const Parameter& a() const { return *a_; }
  const Parameter& b() const { return *b_; }
  const Parameter* b_bias() const { return b_bias_.get(); }

  /// Whether dropout is active in this step.
  bool drops(const StepContext& step) const { return step.training && settings_.dropout > 0; }
  /// x [T, in] as A sees it: itself, or a dropped-out copy.
  Tensor dropped(const Tensor& x, const StepContext& step) const;

 private:
  /// s drop(x) A^T [T, R], saved for backward
  Tensor inner(const Tensor& x, const StepContext& step, AdapterSaved* saved) const;

  uint32_t site_;
  LoraSettings settings_;
  std::shared_ptr<Parameter> a_, b_, b_bias_;
};

/// The shards of A [R, in] and B [out, R] beside the shard `base` of a matrix [out, in]; nothing where they are not
/// sharded.
ShardSpec shard_of_a(const ShardSpec& base, int64_t r);
ShardSpec shard_of_b(const ShardSpec& base, int64_t r);

/// sum += part, of any of f32 and bf16.
void add_to(const Tensor& part, Tensor& sum, MemoryPool& pool);

/// "base_model.model." + module + ".lora_A.weight" and so on: names in a PEFT file.
std::string lora_a_name(const std::string& module);
std::string lora_b_name(const std::string& module);
std::string lora_b_bias_name(const std::string& module);

/// A number that stands for a module path in random streams, the same on every rank and in every layout.
uint64_t module_key(const std::string& module);

}  // namespace nibble
