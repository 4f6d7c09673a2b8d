#include "nibble/core/ops/activation.h"

#include "nibble/core/ops/cpu/floats.h"
#include "nibble/core/ops/ref/activation.h"

namespace nibble::ops {

void activation_forward(Activation f, const Tensor& x, Tensor& y) {
  std::vector<float> values = to_floats(x);
  for (float& value : values) value = ref::activation(f, value);
  from_floats(values, y);
}

void activation_backward(Activation f, const Tensor& dy, const Tensor& x, Tensor& dx) {
  std::vector<float> values = to_floats(x), slopes = to_floats(dy);
  for (size_t i = 0; i < values.size(); ++i) values[i] = slopes[i] * ref::activation_slope(f, values[i]);
  from_floats(values, dx);
}

void gated_forward(Activation f, const Tensor& gate, const Tensor& up, Tensor& y) {
  std::vector<float> values(static_cast<size_t>(y.numel()));
  ref::gated_forward(f, to_floats(gate).data(), to_floats(up).data(), y.numel(), values.data());
  from_floats(values, y);
}

void gated_backward(Activation f, const Tensor& dy, const Tensor& gate, const Tensor& up, Tensor& dgate, Tensor& dup,
                    Tensor& y_again) {
  const std::vector<float> gates = to_floats(gate), ups = to_floats(up);
  std::vector<float> again(gates.size()), dgates(gates.size()), dups(gates.size());
  ref::gated_forward(f, gates.data(), ups.data(), dy.numel(), again.data());
  ref::gated_backward(f, to_floats(dy).data(), gates.data(), ups.data(), dy.numel(), dgates.data(), dups.data());
  from_floats(dgates, dgate);
  from_floats(dups, dup);
  if (y_again) from_floats(again, y_again);
}

}  // namespace nibble::ops
