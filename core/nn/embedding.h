#pragma once
// A table of embeddings and the seam between it and what fine-tuning adds to it.

#include <memory>
#include <string>

#include "nibble/core/nn/linear_weight.h"
#include "nibble/core/nn/step_context.h"

namespace nibble {

/// Changes what a table gives for an id, and accumulates its own gradients; the table beside it is frozen.
/// Implementations: adapters/.
class EmbeddingAdapter {
 public:
  virtual ~EmbeddingAdapter() = default;

  /// rows [T, D] f32 holds table[ids], ids [T] i32 inside the table; it becomes what the adapted table gives.
  virtual void forward(const Tensor& ids, const Tensor& table, Tensor& rows, const StepContext& step) = 0;
  /// Accumulates gradients from that of the adapted rows [T, D] f32. summed [T] i32: ids, and -1 where the place adds
  /// nothing to what belongs to its id alone.
  virtual void backward(const Tensor& ids, const Tensor& summed, const Tensor& table, const Tensor& gradient,
                        const StepContext& step) = 0;
  virtual bool trainable() const = 0;
  /// Its parameters, under their PEFT names.
  virtual void visit(const ParameterVisitor& visitor) = 0;
};

/// x = scale * table[ids], with an adapter's part if one is attached.
class Embedding {
 public:
  /// name: module path, "model.embed_tokens"; table [V, D] may be shared with a tied head.
  Embedding(std::string name, std::shared_ptr<Parameter> table) : name_(std::move(name)), table_(std::move(table)) {}

  const std::string& name() const { return name_; }
  Parameter& table() { return *table_; }
  const Parameter& table() const { return *table_; }
  const std::shared_ptr<Parameter>& shared_table() const { return table_; }
  EmbeddingAdapter* adapter() { return adapter_.get(); }
  /// Null detaches.
  void set_adapter(std::unique_ptr<EmbeddingAdapter> adapter) { adapter_ = std::move(adapter); }
  bool has_trainable() const { return table_->trainable || (adapter_ && adapter_->trainable()); }
  /// PyTorch's padding_idx: an id whose row its places read and do not train; -1 (from the start) is none. Counted in
  /// the whole table, of which a tensor-parallel rank has some rows.
  void set_padding(int32_t id);

  /// x [T, D] f32 = result for ids [T] i32, read from row `offset` of the table on. Throws InputError for an id outside
  /// the table.
  void forward(const Tensor& ids, int64_t offset, float scale, Tensor& x, const StepContext& step) const;
  /// Accumulates gradients from that of x [T, D] f32.
  void backward(const Tensor& ids, int64_t offset, float scale, const Tensor& gradient, const StepContext& step);

  /// Table, then adapter parameters.
  void visit(const ParameterVisitor& visitor);

 private:
  std::string name_;
  std::shared_ptr<Parameter> table_;
  std::unique_ptr<EmbeddingAdapter> adapter_;
  int32_t padding_ = -1;  // among the rows that are here
};

}  // namespace nibble
