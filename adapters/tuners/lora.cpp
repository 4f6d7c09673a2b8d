#include "nibble/adapters/tuners/lora.h"

#include <utility>

#include "nibble/core/ops/dropout.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/gemm.h"

namespace nibble {

namespace {

const std::string kPrefix = "base_model.model.";

}  // namespace

std::string lora_a_name(const std::string& module) { return kPrefix + module + ".lora_A.weight"; }
std::string lora_b_name(const std::string& module) { return kPrefix + module + ".lora_B.weight"; }
std::string lora_b_bias_name(const std::string& module) { return kPrefix + module + ".lora_B.bias"; }

uint64_t module_key(const std::string& module) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, then a finalizer so that the upper half is good too
  for (const char c : module) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccdu;
  return hash ^ (hash >> 33);
}

ShardSpec shard_of_a(const ShardSpec& base, int64_t r) {
  if (!base.slices_columns()) return {};
  return {{r, base.global[1]}, all_of(r), base.columns};
}

ShardSpec shard_of_b(const ShardSpec& base, int64_t r) {
  if (!base.slices_rows()) return {};
  return {{base.global[0], r}, base.rows, all_of(r)};
}

void add_to(const Tensor& part, Tensor& sum, MemoryPool& pool) {
  if (sum.dtype() == DType::f32) {  // the only dtype that ops::add adds to
    ops::add(part, sum);
    return;
  }
  Tensor wide = Tensor::empty(pool, sum.shape(), DType::f32, "sum of an adapter");
  ops::cast(sum, wide);
  ops::add(part, wide);
  ops::cast(wide, sum);
}

LoraAdapter::LoraAdapter(const std::string& module, LoraSettings settings, std::shared_ptr<Parameter> a,
                         std::shared_ptr<Parameter> b, std::shared_ptr<Parameter> b_bias)
    : site_(static_cast<uint32_t>(module_key(module) >> 32)),
      settings_(settings),
      a_(std::move(a)),
      b_(std::move(b)),
      b_bias_(std::move(b_bias)) {
  NIBBLE_CHECK(a_->value.rank() == 2 && b_->value.rank() == 2 && a_->value.dim(0) == b_->value.dim(1),
               module + ": A " + to_string(a_->value.shape()) + " and B " + to_string(b_->value.shape()));
  NIBBLE_CHECK(!b_bias_ || b_bias_->value.numel() == b_->value.dim(0), module + ": bias of B");
  NIBBLE_CHECK(a_->trainable == b_->trainable, module + ": A and B are trained together");
}

Tensor LoraAdapter::dropped(const Tensor& x, const StepContext& step) const {
  if (!drops(step)) return x;
  NIBBLE_CHECK(step.row_keys.defined(), "dropout needs the keys of the rows");
  Tensor kept = Tensor::empty(step.pool(), x.shape(), x.dtype(), "input of an adapter after dropout");
  ops::dropout(x, step.row_keys, settings_.dropout, {step.rank.seed, step.step, site_, settings_.first_input}, kept);
  return kept;
}

Tensor LoraAdapter::inner(const Tensor& x, const StepContext& step, AdapterSaved* saved) const {
  Tensor h = Tensor::empty(step.pool(), {x.dim(0), r()}, x.dtype(), "x A^T of an adapter");
  ops::matmul_nt(dropped(x, step), a_->value, h, false, static_cast<float>(settings_.scaling));
  if (saved && trainable()) saved->tensors = {h};
  return h;
}

std::optional<ops::LowRankEpilogue> LoraAdapter::low_rank_forward(const Tensor& x, const StepContext& step,
                                                                  AdapterSaved* saved) const {
  if (b_bias_) return std::nullopt;
  return ops::LowRankEpilogue{.left = inner(x, step, saved), .right = b_->value, .right_transposed = true};
}

void LoraAdapter::forward(const Tensor& x, const LinearWeight&, Tensor& y, const StepContext& step,
                          AdapterSaved* saved) const {
  ops::matmul_nt(inner(x, step, saved), b_->value, y, true);
  if (!b_bias_) return;
  Tensor scaled = b_bias_->value.clone(step.pool());
  ops::scale(scaled, static_cast<float>(settings_.scaling));
  ops::add_bias(scaled, y);
}

AdapterGradient LoraAdapter::backward(const Tensor& dy, const LinearWeight&, const StepContext& step) const {
  Tensor dh = Tensor::empty(step.pool(), {dy.dim(0), r()}, dy.dtype(), "gradient of x A^T of an adapter");
  ops::matmul_nn(dy, b_->value, dh, false, static_cast<float>(settings_.scaling));
  AdapterGradient gradient{.base = dy, .tensors = {dh}};
  if (!drops(step)) gradient.update = ops::LowRankEpilogue{.left = dh, .right = a_->value};
  return gradient;
}

void LoraAdapter::accumulate_gradients(const AdapterGradient& gradient, const Tensor& dy, const Tensor& x,
                                       const StepContext& step, const AdapterSaved& saved) {
  ops::matmul_tn(dy, saved.tensors.at(0), b_->gradient, true);
  ops::matmul_tn(gradient.tensors.at(0), dropped(x, step), a_->gradient, true);
  if (!b_bias_) return;
  Tensor sums = Tensor::zeros(step.pool(), b_bias_->value.shape(), DType::f32, b_bias_->name);
  ops::bias_backward(dy, sums);
  ops::add(sums, b_bias_->gradient, static_cast<float>(settings_.scaling));
}

void LoraAdapter::backward_input(const AdapterGradient& gradient, const Tensor&, const LinearWeight&,
                                 const StepContext& step, Tensor& dx, bool accumulate) const {
  const Tensor& dh = gradient.tensors.at(0);
  if (!drops(step)) return ops::matmul_nn(dh, a_->value, dx, accumulate);
  Tensor part = accumulate ? Tensor::empty(step.pool(), dx.shape(), dx.dtype(), "input gradient of an adapter") : dx;
  ops::matmul_nn(dh, a_->value, part);
  ops::dropout(part, step.row_keys, settings_.dropout, {step.rank.seed, step.step, site_, settings_.first_input}, part);
  if (accumulate) add_to(part, dx, step.pool());
}

void LoraAdapter::visit(const ParameterVisitor& visitor) {
  visitor(*a_);
  visitor(*b_);
  if (b_bias_) visitor(*b_bias_);
}

void LoraAdapter::merge_rows(int64_t begin, Tensor& rows) const {
  const Tensor b = b_->value.rows(begin, begin + rows.dim(0));
  ops::matmul_nn(b, a_->value, rows, true, static_cast<float>(settings_.scaling));
}

}  // namespace nibble
