#pragma once
#include <algorithm>

#include "nibble/core/nn/feed_forward/grouped_forms.h"
#include "nibble/core/nn/linear_weight.h"
#include "nibble/quant/quantized_matrix.h"

namespace nibble {

/// A frozen weight in 4 bits (NF4, FP4 or MXFP4), multiplied from its packed bytes: QLoRA's base (Dettmers et al.
/// 2023).
class Nf4Weight final : public LinearWeight, public ReadableWeight {
 public:
  /// name: of the packed tensor in the checkpoint, "model.layers.0.self_attn.q_proj.weight". state: the tensors of its
  /// checkpoint form that `matrix` does not hold (quant_map, quant_state), under their full names. matrices: of how
  /// many the rows are, one after another; this is the first. 0: of one that is no tensor [n, out, in]. transposed: the
  /// matrices are stored [in, out]. Throws InputError naming `name` when the tensors do not fit each other.
  Nf4Weight(std::string name, const ops::FourBitMatrix& matrix, std::vector<NamedTensor> state = {},
            int64_t matrices = 0, bool transposed = false);

  int64_t out_features() const override { return transposed_ ? stored_->cols() : stored_rows(); }
  int64_t in_features() const override { return transposed_ ? stored_rows() : stored_->cols(); }
  void forward(const Tensor& x, Tensor& y, bool accumulate,
               const ops::LowRankEpilogue* epilogue = nullptr) const override;
  void backward_input(const Tensor& dy, Tensor& dx, bool accumulate,
                      const ops::LowRankEpilogue* epilogue = nullptr) const override;
  void backward_weight(const Tensor&, const Tensor&) override {}
  bool trainable() const override { return false; }
  WeightOperand operand() const override;
  Tensor dequantize(int64_t begin, int64_t end, MemoryPool& pool) const override;
  /// name, name.absmax, and, double-quantized, name.nested_absmax and name.nested_quant_map, then `state`; of MXFP4
  /// name_blocks and name_scales.
  std::vector<NamedTensor> parts() const override;
  Parameter* parameter() override { return nullptr; }
  /// Packed bytes and scales: 0.516 bytes a weight, double-quantized.
  std::vector<Tensor*> storage() override;
  /// Of a double-quantized weight the part keeps its scales in one byte where it begins and ends with their groups of
  /// 256, else they are f32: 0.56 bytes a weight.
  std::unique_ptr<LinearWeight> shard(const ShardSpec& spec, MemoryPool& pool) const override;
  int64_t matrix() const override { return matrix_; }
  std::unique_ptr<LinearWeight> matrix(int64_t i) const override;
  std::unique_ptr<LinearWeight> matrices(Range which, MemoryPool& pool) const override;

 protected:
  std::unique_ptr<LinearWeight> copy() const override { return std::make_unique<Nf4Weight>(*this); }

 private:
  /// Of the own matrix as it is stored.
  int64_t stored_rows() const { return stored_->rows() / std::max<int64_t>(matrices_, 1); }
  /// Rows [begin, end) of the own matrix as it is stored.
  ops::WeightView rows(int64_t begin, int64_t end) const;

  std::string name_;
  std::shared_ptr<ops::WeightView> stored_;  // shared by the matrices of one tensor
  std::vector<NamedTensor> state_;
  int64_t matrices_, matrix_ = 0;
  bool transposed_;
};

}  // namespace nibble
