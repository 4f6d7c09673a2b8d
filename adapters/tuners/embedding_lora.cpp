#include "nibble/adapters/tuners/embedding_lora.h"

#include <utility>

#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/embedding.h"
#include "nibble/core/ops/gemm.h"
#include "nibble/core/ops/pick.h"
#include "nibble/core/ops/weight_norm.h"

namespace nibble {

std::string embedding_a_name(const std::string& module) { return kPeftPrefix + module + ".lora_embedding_A"; }
std::string embedding_b_name(const std::string& module) { return kPeftPrefix + module + ".lora_embedding_B"; }

void embedding_norms(const Tensor& magnitude, const Tensor& squares, const Tensor& table, const Tensor& a,
                     const Tensor& b, float scaling, Tensor& norms, Tensor& factors, MemoryPool& pool) {
  const int64_t r = a.dim(0), width = b.dim(0);
  Tensor crossed = Tensor::empty(pool, {r, width}, DType::f32, "A E of an adapter");
  Tensor gram = Tensor::empty(pool, {r, r}, DType::f32, "A A^T of an adapter");
  ops::matmul_nn(a, table, crossed);
  ops::matmul_nt(a, a, gram);
  ops::low_rank_norms(magnitude, squares, crossed, b, gram, scaling, norms, factors);
}

EmbeddingLora::EmbeddingLora(double scaling, std::shared_ptr<Parameter> a, std::shared_ptr<Parameter> b,
                             std::shared_ptr<Parameter> magnitude, const Tensor& table, MemoryPool& pool)
    : scaling_(static_cast<float>(scaling)), a_(std::move(a)), b_(std::move(b)), magnitude_(std::move(magnitude)) {
  NIBBLE_CHECK(a_->value.dim(0) == b_->value.dim(1), a_->name + ": ranks of A and B");
  NIBBLE_CHECK(a_->value.dim(1) == table.dim(0) && b_->value.dim(0) == table.dim(1), a_->name + ": shape of the table");
  if (!magnitude_) return;
  squares_ = Tensor::empty(pool, {table.dim(1)}, DType::f64, "column norms of a table");
  ops::column_squares(table, squares_);
  if (magnitude_->value.has_bytes()) return;
  magnitude_->value = Tensor::zeros(pool, {table.dim(1)}, DType::f32, magnitude_->name);
  magnitude_->value = scale(table, pool).norms;
}

EmbeddingLora::Scale EmbeddingLora::scale(const Tensor& table, MemoryPool& pool) const {
  Scale result{Tensor::empty(pool, {table.dim(1)}, DType::f32), Tensor::empty(pool, {table.dim(1)}, DType::f32)};
  embedding_norms(magnitude_->value, squares_, table, a_->value, b_->value, scaling_, result.norms, result.factors,
                  pool);
  return result;
}

Tensor EmbeddingLora::picked(const Tensor& ids, MemoryPool& pool) const {
  Tensor h = Tensor::empty(pool, {ids.numel(), a_->value.dim(0)}, DType::f32, "rows of an adapter");
  ops::gather_columns(a_->value, ids, h);
  return h;
}

void EmbeddingLora::forward(const Tensor& ids, const Tensor& table, Tensor& rows, const StepContext& step) {
  ops::matmul_nt(picked(ids, step.pool()), b_->value, rows, true, scaling_);
  if (magnitude_) ops::scale_columns(rows, scale(table, step.pool()).factors, 0, rows);
}

void EmbeddingLora::backward(const Tensor& ids, const Tensor& summed, const Tensor& table, const Tensor& gradient,
                             const StepContext& step) {
  MemoryPool& pool = step.pool();
  const Tensor h = picked(ids, pool);
  Tensor inner = gradient;
  if (magnitude_) {
    const Scale scales = scale(table, pool);
    Tensor unscaled = Tensor::empty(pool, gradient.shape(), DType::f32, "embeddings");
    ops::embedding_forward(ids, table, 1.0f, unscaled);
    ops::matmul_nt(h, b_->value, unscaled, true, scaling_);
    ops::scale_columns_backward(gradient, unscaled, scales.norms, magnitude_->gradient);
    inner = Tensor::empty(pool, gradient.shape(), DType::f32, "gradient of embeddings");
    ops::scale_columns(gradient, scales.factors, 0, inner);
  }
  Tensor dh = Tensor::empty(pool, h.shape(), DType::f32, "gradient of rows of an adapter");
  ops::matmul_nn(inner, b_->value, dh, false, scaling_);
  ops::matmul_tn(inner, h, b_->gradient, true, scaling_);
  ops::scatter_add_columns(dh, summed, a_->gradient);
}

void EmbeddingLora::visit(const ParameterVisitor& visitor) {
  visitor(*a_);
  visitor(*b_);
  if (magnitude_) visitor(*magnitude_);
}

}  // namespace nibble
