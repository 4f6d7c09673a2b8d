#include "nibble/core/ops/meta/meta_device.h"

#include <algorithm>
#include <numeric>

namespace nibble {

namespace ops::meta {

namespace {

double bytes_of(const Tensor& x) { return x ? static_cast<double>(x.bytes()) : 0; }
double bytes_of(const EightBitState& x) { return bytes_of(x.codes) + bytes_of(x.absmax); }
double bytes_of(const FourBitMatrix& m) {
  return bytes_of(m.packed) + bytes_of(m.absmax) + bytes_of(m.absmax_codes) + bytes_of(m.nested_absmax);
}
double bytes_of(const WeightView& w) {
  return w.encoding == WeightEncoding::dense ? bytes_of(w.dense) : bytes_of(w.four_bit);
}
double bytes_of(const LowRankEpilogue* e) { return e ? bytes_of(e->left) + bytes_of(e->right) : 0; }
double bytes_of(const auto&) { return 0; }

const MetaDevice* device_of(const Tensor& x) { return dynamic_cast<const MetaDevice*>(&x.device()); }
const MetaDevice* device_of(const FourBitMatrix& m) { return device_of(m.packed); }
const MetaDevice* device_of(const auto&) { return nullptr; }

template <Operation>
struct Of {};

double flops(auto, const auto&...) { return 0; }

double product_flops(const Tensor& c, int64_t depth, const LowRankEpilogue* epilogue) {
  const int64_t rank = epilogue ? epilogue->left.dim(1) : 0;
  return 2 * static_cast<double>(c.numel()) * static_cast<double>(depth + rank);
}
double flops(Of<Operation::matmul_nt>, const Tensor& a, const WeightView&, const Tensor& c, bool, float,
             const LowRankEpilogue* epilogue) {
  return product_flops(c, a.dim(1), epilogue);
}
double flops(Of<Operation::matmul_nn>, const Tensor& a, const WeightView&, const Tensor& c, bool, float,
             const LowRankEpilogue* epilogue) {
  return product_flops(c, a.dim(1), epilogue);
}
double flops(Of<Operation::matmul_tn>, const Tensor& a, const Tensor&, const Tensor& c, bool, float) {
  return product_flops(c, a.dim(0), nullptr);
}

/// Of one product with the keys that every query sees: 2 operations for each of the K elements of H heads.
double scores_flops(std::span<const AttentionSpan> spans, const AttentionParams& p) {
  double seen = 0;
  for (const AttentionSpan& span : spans) {
    const int64_t queries = span.q_end - span.q_begin, keys = span.k_end - span.k_begin;
    for (int64_t q = 0; q < queries; ++q) {
      const int64_t before = keys - queries + q + 1;
      seen += static_cast<double>(p.window > 0 ? std::min(p.window, before) : before);
    }
  }
  return 2 * seen * static_cast<double>(p.heads * p.head_size);
}
double flops(Of<Operation::attention_forward>, const Tensor&, const Tensor&, const Tensor&,
             std::span<const AttentionSpan> spans, const AttentionParams& params, const Tensor&, const Tensor&) {
  return 2 * scores_flops(spans, params);
}
double flops(Of<Operation::attention_backward>, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
             const Tensor&, const Tensor&, std::span<const AttentionSpan> spans, const AttentionParams& params,
             const Tensor&, const Tensor&, const Tensor&) {
  return 5 * scores_flops(spans, params);
}

/// The body of an operation: what it would read, write and compute is counted.
template <Operation operation, typename Signature>
struct Counted;
template <Operation operation, typename R, typename... Args>
struct Counted<operation, R(Args...)> {
  static R body(Args... args) {
    const MetaDevice* device = nullptr;
    ((device = device ? device : device_of(args)), ...);
    device->add(operation, flops(Of<operation>(), args...), (bytes_of(args) + ...));
    if constexpr (!std::is_void_v<R>) return operation == Operation::first_nonfinite ? R(-1) : R(0);
  }
};

constexpr Backend kBodies = {
#define NIBBLE_MEMBER(op) .op = Counted<Operation::op, decltype(ops::op)>::body,
    NIBBLE_OPERATIONS(NIBBLE_MEMBER)
#undef NIBBLE_MEMBER
};

}  // namespace

}  // namespace ops::meta

const ops::Backend& MetaDevice::backend() const { return ops::meta::kBodies; }

MetaDevice::Work& MetaDevice::Work::operator+=(const Work& other) {
  calls += other.calls;
  flops += other.flops;
  bytes += other.bytes;
  return *this;
}

MetaDevice::Work MetaDevice::total() const {
  Work sum;
  for (const Work& work : work_) sum += work;
  return sum;
}

}  // namespace nibble
