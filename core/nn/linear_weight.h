#pragma once
// The seam between a layer and how its matrix is stored.

#include <memory>
#include <stdexcept>
#include <vector>

#include "nibble/core/nn/parameter.h"
#include "nibble/core/nn/shard_spec.h"
#include "nibble/core/ops/gemm.h"

namespace nibble {

/// A named piece of a stored weight, as it is saved, sharded and gathered.
struct NamedTensor {
  std::string name;  ///< full checkpoint name, e.g. "...q_proj.weight.absmax"
  Tensor value;
};

/// A matrix W [out_features, in_features] that multiplies. Implementations: DenseWeight (core), Nf4Weight (quant).
class LinearWeight {
 public:
  virtual ~LinearWeight() = default;
  virtual int64_t out_features() const = 0;
  virtual int64_t in_features() const = 0;

  /// y [T, out] (+)= x [T, in] W^T (+ epilogue), in the dtype of x
  virtual void forward(const Tensor& x, Tensor& y, bool accumulate,
                       const ops::LowRankEpilogue* epilogue = nullptr) const = 0;
  /// dx [T, in] (+)= dy [T, out] W (+ epilogue), in the dtype of dy
  virtual void backward_input(const Tensor& dy, Tensor& dx, bool accumulate,
                              const ops::LowRankEpilogue* epilogue = nullptr) const = 0;
  /// Products of more than 4 rows in 8 bits (ops/int8_product.h) while the weight is frozen; fewer, as in decoding, go
  /// at the speed of memory. pool: of the rounded rows, must outlive this; null: all in the dtype of x.
  void set_int8(MemoryPool* pool) { int8_ = pool; }
  bool in_int8() const { return int8_ != nullptr && !trainable(); }
  /// Gradient of W from dy [T, out] and x [T, in], added to its parameter; nothing when frozen.
  virtual void backward_weight(const Tensor& dy, const Tensor& x) = 0;
  virtual bool trainable() const = 0;

  /// Rows [begin, end) as f32 [end - begin, in].
  virtual Tensor dequantize(int64_t begin, int64_t end, MemoryPool& pool) const = 0;
  /// The tensors that stand for this weight in a checkpoint.
  virtual std::vector<NamedTensor> parts() const = 0;
  /// The dense parameter, if this weight is one (packed weights are no parameters).
  virtual Parameter* parameter() = 0;
  /// The tensors whose bytes grow with the matrix, as they are stored: sharding puts others of the same shape and dtype
  /// in their place, without bytes while the weight is not used. Their addresses last as long as the weight.
  virtual std::vector<Tensor*> storage() = 0;
  /// The weight that holds only a shard of this one; spec.global is [out, in]. What is mapped stays mapped where the
  /// shard is one run of it. Throws UsageError where blocks of packed elements would have to be sliced.
  virtual std::unique_ptr<LinearWeight> shard(const ShardSpec& spec, MemoryPool& pool) const = 0;

  /// One of the matrices of a tensor [n, out, in] (experts): which, and another one of them, which shares its bytes.
  /// The first stands for all of them where the tensor is one: in parts(), and where parameters are visited.
  virtual int64_t matrix() const { return 0; }
  virtual std::unique_ptr<LinearWeight> matrix(int64_t) const { throw std::logic_error("a weight of one matrix"); }
  /// Another one of the same bytes for another Linear (layers that share a block), which does not stand for the tensor.
  std::unique_ptr<LinearWeight> share() const {
    std::unique_ptr<LinearWeight> other = copy();
    other->shared_ = true;
    return other;
  }
  bool shared() const { return shared_; }
  /// Whether this one stands for its tensor, and no other weight does.
  bool is_first() const { return matrix() == 0 && !shared_; }
  /// The weight that holds only some of the matrices, of which it is the first. What is mapped stays mapped.
  virtual std::unique_ptr<LinearWeight> matrices(Range, MemoryPool&) const {
    throw std::logic_error("a weight of one matrix");
  }

 protected:
  /// y (+)= x w^T (transposed) or x w (+ epilogue), in 8 bits if so set.
  void multiply(const Tensor& x, const ops::WeightView& w, bool transposed, Tensor& y, bool accumulate,
                const ops::LowRankEpilogue* epilogue) const;
  /// What has the same bytes.
  virtual std::unique_ptr<LinearWeight> copy() const { throw std::logic_error("a weight of one Linear"); }

 private:
  MemoryPool* int8_ = nullptr;
  bool shared_ = false;
};

/// A dense weight in f32, bf16 or f16; frozen ones may be mapped from the checkpoint.
class DenseWeight final : public LinearWeight {
 public:
  /// weight.value [out, in], or [in, out] when `transposed` (the Conv1D layout of GPT-2); or several of these, one
  /// after another, of which this is `matrix`.
  explicit DenseWeight(std::shared_ptr<Parameter> weight, bool transposed = false, int64_t matrix = 0);

  int64_t out_features() const override;
  int64_t in_features() const override;
  void forward(const Tensor& x, Tensor& y, bool accumulate,
               const ops::LowRankEpilogue* epilogue = nullptr) const override;
  void backward_input(const Tensor& dy, Tensor& dx, bool accumulate,
                      const ops::LowRankEpilogue* epilogue = nullptr) const override;
  void backward_weight(const Tensor& dy, const Tensor& x) override;
  bool trainable() const override { return weight_->trainable; }
  Tensor dequantize(int64_t begin, int64_t end, MemoryPool& pool) const override;
  std::vector<NamedTensor> parts() const override;
  Parameter* parameter() override { return weight_.get(); }
  std::vector<Tensor*> storage() override { return {&weight_->value}; }
  std::unique_ptr<LinearWeight> shard(const ShardSpec& spec, MemoryPool& pool) const override;
  int64_t matrix() const override { return matrix_; }
  std::unique_ptr<LinearWeight> matrix(int64_t i) const override {
    return std::make_unique<DenseWeight>(weight_, transposed_, i);
  }
  std::unique_ptr<LinearWeight> matrices(Range which, MemoryPool& pool) const override;
  /// Whether the parameter is [in, out].
  bool transposed() const { return transposed_; }

 protected:
  std::unique_ptr<LinearWeight> copy() const override { return std::make_unique<DenseWeight>(*this); }

 private:
  /// The own matrix of a value or gradient of weight_.
  Tensor own(const Tensor& matrices) const;

  std::shared_ptr<Parameter> weight_;  // shared: a tied head is the embedding's parameter
  bool transposed_;
  int64_t matrix_;
};

}  // namespace nibble
