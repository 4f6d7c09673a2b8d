#include "nibble/core/ops/elementwise.h"

#include <cmath>
#include <cstring>

#include "nibble/core/ops/cpu/floats.h"
#include "nibble/core/ops/ref/elementwise.h"

namespace nibble::ops {

namespace {

template <typename From, typename To>
void convert(const std::byte* from, To* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + static_cast<size_t>(i) * sizeof(From), sizeof(From));
    to[i] = To(static_cast<float>(value));
  }
}

template <typename To>
void convert_to(const Tensor& from, To* to) {
  switch (from.dtype()) {
    case DType::f32:
      return convert<float>(from.raw(), to, from.numel());
    case DType::bf16:
      return convert<bf16>(from.raw(), to, from.numel());
    case DType::f16:
      return convert<f16>(from.raw(), to, from.numel());
    default:
      NIBBLE_CHECK(false, "cast: dtype");
  }
}

template <typename Element>
int64_t nonfinite(const Element* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(static_cast<float>(x[i]))) return i;
  }
  return -1;
}

}  // namespace

void cast(const Tensor& from, Tensor& to) {
  NIBBLE_CHECK(from.numel() == to.numel(), "cast: number of elements");
  if (to.dtype() == DType::f32) return convert_to(from, to.data<float>());
  if (to.dtype() == DType::bf16) return convert_to(from, to.data<bf16>());
  convert_to(from, to.data<f16>());
}

void add(const Tensor& y, Tensor& x, float scale) {
  NIBBLE_CHECK(x.numel() == y.numel(), "add: number of elements");
  ref::add(to_floats(y).data(), x.numel(), scale, x.data<float>());
}

void scale(Tensor& x, float factor) {
  std::vector<float> values = to_floats(x);
  for (float& value : values) value *= factor;
  from_floats(values, x);
}

void add_bias(const Tensor& bias, Tensor& x) {
  std::vector<float> values = to_floats(x);
  ref::add_bias(bias.data<const float>(), x.dim(0), x.dim(1), values.data());
  from_floats(values, x);
}

void bias_backward(const Tensor& dy, Tensor& dbias) {
  ref::bias_backward(to_floats(dy).data(), dy.dim(0), dy.dim(1), dbias.data<float>());
}

double sum_of_squares(const Tensor& x) { return ref::sum_of_squares(to_floats(x).data(), x.numel()); }

int64_t first_nonfinite(const Tensor& x) {
  if (x.dtype() == DType::f16) return nonfinite(x.data<const f16>(), x.numel());
  if (x.dtype() == DType::bf16) return nonfinite(x.data<const bf16>(), x.numel());
  return nonfinite(x.data<const float>(), x.numel());
}

void fill_normal(Tensor& x, float std, uint64_t seed, uint64_t purpose) {
  std::vector<float> values(static_cast<size_t>(x.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = ref::normal_element(static_cast<int64_t>(i), std, seed, purpose);
  }
  from_floats(values, x);
}

void fill_uniform(Tensor& x, float low, float high, uint64_t seed, uint64_t purpose) {
  std::vector<float> values(static_cast<size_t>(x.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = ref::uniform_element(static_cast<int64_t>(i), low, high, seed, purpose);
  }
  from_floats(values, x);
}

}  // namespace nibble::ops
