#include "nibble/adapters/tuners/dora.h"

#include <utility>

#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/gemm.h"
#include "nibble/core/ops/weight_norm.h"

namespace nibble {

namespace {

constexpr int64_t kBlockRows = 256;

Tensor row_squares_of(const LinearWeight& base, MemoryPool& pool) {
  Tensor squares = Tensor::empty(pool, {base.out_features()}, DType::f64, "row norms of a weight");
  for (int64_t begin = 0; begin < base.out_features(); begin += kBlockRows) {
    const int64_t end = std::min(begin + kBlockRows, base.out_features());
    Tensor part = squares.rows(begin, end);
    ops::row_squares(base.dequantize(begin, end, pool), part);
  }
  return squares;
}

}  // namespace

std::string dora_magnitude_name(const std::string& module) { return kPeftPrefix + module + ".lora_magnitude_vector"; }

DoraAdapter::DoraAdapter(const std::string& module, std::unique_ptr<LoraAdapter> lora,
                         std::shared_ptr<Parameter> magnitude, const LinearWeight& base, MemoryPool& pool)
    : lora_(std::move(lora)), magnitude_(std::move(magnitude)), base_squares_(row_squares_of(base, pool)) {
  NIBBLE_CHECK(!lora_->b_bias(), module + ": DoRA has no bias of B");
  NIBBLE_CHECK(magnitude_->value.numel() == base.out_features(), module + ": one magnitude for each output");
  if (magnitude_->value.has_bytes()) return;
  magnitude_->value = Tensor::zeros(pool, magnitude_->value.shape(), DType::f32, magnitude_->name);
  magnitude_->value = scale(base, pool).norms;
}

DoraAdapter::Scale DoraAdapter::scale(const LinearWeight& base, MemoryPool& pool) const {
  const Tensor &a = lora_->a().value, &b = lora_->b().value;
  const int64_t r = a.dim(0), out = b.dim(0);
  Tensor aw = Tensor::empty(pool, {r, out}, DType::f32, "A W^T of an adapter");
  Tensor gram = Tensor::empty(pool, {r, r}, DType::f32, "A A^T of an adapter");
  base.forward(a, aw, false);
  ops::matmul_nt(a, a, gram);
  Scale result{Tensor::empty(pool, {out}, DType::f32), Tensor::empty(pool, {out}, DType::f32)};
  ops::low_rank_norms(magnitude_->value, base_squares_, aw, b, gram, static_cast<float>(lora_->settings().scaling),
                      result.norms, result.factors);
  return result;
}

void DoraAdapter::forward(const Tensor& x, const LinearWeight& base, Tensor& y, const StepContext& step,
                          AdapterSaved* saved) const {
  const Scale scales = scale(base, step.pool());
  AdapterSaved inner;
  Tensor unscaled;  // (W + s B A) drop(x)
  if (!lora_->drops(step)) {
    lora_->forward(x, base, y, step, &inner);
    unscaled = saved ? y.clone(step.pool()) : y;
    ops::scale_columns(y, scales.factors, 0, y);
  } else {  // PEFT: W x + (factor - 1) W drop(x) + factor s B A drop(x)
    const Tensor dropped = lora_->dropped(x, step);
    unscaled = Tensor::empty(step.pool(), y.shape(), y.dtype(), "output of an adapter");
    base.forward(dropped, unscaled, false);
    Tensor change = Tensor::empty(step.pool(), y.shape(), y.dtype(), "output of an adapter");
    ops::scale_columns(unscaled, scales.factors, -1, change);
    add_to(change, y, step.pool());
    Tensor low = Tensor::zeros(step.pool(), y.shape(), y.dtype(), "output of an adapter");
    lora_->forward(x, base, low, step, &inner);
    add_to(low, unscaled, step.pool());
    ops::scale_columns(low, scales.factors, 0, low);
    add_to(low, y, step.pool());
  }
  if (saved && trainable()) {
    saved->tensors = std::move(inner.tensors);
    saved->tensors.push_back(unscaled);
  }
}

// Of the LoRA: its own; then norms, factors and dy times the factors.
AdapterGradient DoraAdapter::backward(const Tensor& dy, const LinearWeight& base, const StepContext& step) const {
  const Scale scales = scale(base, step.pool());
  Tensor scaled = Tensor::empty(step.pool(), dy.shape(), dy.dtype(), "gradient of an adapter");
  ops::scale_columns(dy, scales.factors, 0, scaled);
  AdapterGradient gradient = lora_->backward(scaled, base, step);
  gradient.update.reset();
  if (lora_->drops(step)) gradient.base = dy;
  gradient.tensors.insert(gradient.tensors.end(), {scales.norms, scales.factors, scaled});
  return gradient;
}

void DoraAdapter::accumulate_gradients(const AdapterGradient& gradient, const Tensor& dy, const Tensor& x,
                                       const StepContext& step, const AdapterSaved& saved) {
  ops::scale_columns_backward(dy, saved.tensors.back(), gradient.tensors.at(1), magnitude_->gradient);
  lora_->accumulate_gradients(gradient, gradient.tensors.at(3), x, step, saved);
}

void DoraAdapter::backward_input(const AdapterGradient& gradient, const Tensor& dy, const LinearWeight& base,
                                 const StepContext& step, Tensor& dx, bool accumulate) const {
  lora_->backward_input(gradient, gradient.tensors.at(3), base, step, dx, accumulate);
  if (!lora_->drops(step)) return;
  // the part of W that saw drop(x); the base's gradient is dy here, so nobody needs `scaled` after this
  Tensor scaled = gradient.tensors.at(3);
  ops::scale_columns(dy, gradient.tensors.at(2), -1, scaled);
  Tensor part = Tensor::empty(step.pool(), dx.shape(), dx.dtype(), "input gradient of an adapter");
  base.backward_input(scaled, part, false);
  add_to(lora_->dropped(part, step), dx, step.pool());
}

void DoraAdapter::visit(const ParameterVisitor& visitor) {
  lora_->visit(visitor);
  visitor(*magnitude_);
}

void DoraAdapter::merge_rows(int64_t begin, Tensor& rows) const {
  lora_->merge_rows(begin, rows);
  ops::set_row_norms(magnitude_->value.rows(begin, begin + rows.dim(0)), rows);
}

}  // namespace nibble
