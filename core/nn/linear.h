#pragma once
// Linear = weight + optional bias + optional Adapter.

#include <memory>

#include "nibble/core/nn/adapter.h"

namespace nibble {

/// What a Linear keeps from forward to backward.
struct LinearSaved {
  Tensor x;  ///< the input, shared with the caller, not copied; undefined when backward does not need it
  AdapterSaved adapter;

  void visit(const std::function<void(Tensor&)>& visitor) {
    if (x) visitor(x);
    for (Tensor& tensor : adapter.tensors) {
      if (tensor) visitor(tensor);
    }
  }
};

/// y = x W^T + b, with an adapter's part if one is attached.
class Linear {
 public:
  /// name: module path, "model.layers.0.self_attn.q_proj"
  Linear(std::string name, std::unique_ptr<LinearWeight> weight, std::shared_ptr<Parameter> bias = nullptr);

  const std::string& name() const { return name_; }
  int64_t in_features() const { return weight_->in_features(); }
  int64_t out_features() const { return weight_->out_features(); }
  LinearWeight& weight() { return *weight_; }
  const LinearWeight& weight() const { return *weight_; }
  /// Which shard of the matrix [out, in] the weight is; nothing: all of it.
  const ShardSpec& shard() const { return shard_; }
  void set_shard(ShardSpec shard) { shard_ = std::move(shard); }
  /// Sizes of the global matrix.
  int64_t global_out_features() const { return shard_ ? shard_.global[0] : out_features(); }
  int64_t global_in_features() const { return shard_ ? shard_.global[1] : in_features(); }
  Parameter* bias() { return bias_.get(); }
  Adapter* adapter() { return adapter_.get(); }
  /// Replaces weight (quantizing, sharding) or attaches an adapter (null detaches).
  void set_weight(std::unique_ptr<LinearWeight> weight);
  /// LinearWeight::set_int8 for this weight and those put in its place; never where products are kept_exact.
  void set_int8(MemoryPool* pool);
  void keep_exact() { exact_ = true; }
  void set_adapter(std::unique_ptr<Adapter> adapter) { adapter_ = std::move(adapter); }
  /// Whether anything in it has a gradient.
  bool has_trainable() const;

  /// y [T, out] f32 or bf16 = result for x [T, in] in the compute dtype. saved == nullptr: inference.
  void forward(const Tensor& x, Tensor& y, const StepContext& step, LinearSaved* saved);
  /// What forward would save, the same bits, without y where an adapter does not need it; y's dtype for one that does.
  void forward_save_only(const Tensor& x, DType dtype, const StepContext& step, LinearSaved& saved);
  /// Accumulates gradients; dx [T, in] (+)= input gradient unless null. dy [T, out] in the compute dtype.
  void backward(const Tensor& dy, const StepContext& step, LinearSaved&& saved, Tensor* dx, bool accumulate);
  /// x [T, in] = dy [T, out] W, with the adapter's part; accumulates nothing.
  void transposed(const Tensor& dy, Tensor& x, const StepContext& step) const;

  /// Weight (if dense), bias, adapter parameters.
  void visit(const ParameterVisitor& visitor);

 private:
  Adapter* adapter_of(const StepContext& step) const { return step.adapters_enabled ? adapter_.get() : nullptr; }
  void backward_input(const AdapterGradient& gradient, const Tensor& dy, const StepContext& step, Tensor& dx,
                      bool accumulate) const;

  std::string name_;
  std::unique_ptr<LinearWeight> weight_;
  ShardSpec shard_;
  std::shared_ptr<Parameter> bias_;
  std::unique_ptr<Adapter> adapter_;
  MemoryPool* int8_ = nullptr;
  bool exact_ = false;
};

}  // namespace nibble
