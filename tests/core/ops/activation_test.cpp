#include "nibble/core/ops/activation.h"

#include "nibble/core/ops/ref/activation.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;
using ops::Activation;

class ActivationTest : public EverySimd {};
NIBBLE_EVERY_SIMD(ActivationTest);

constexpr Activation kActivations[] = {Activation::identity,     Activation::silu,         Activation::gelu_erf,
                                       Activation::gelu_tanh,    Activation::gelu_sigmoid, Activation::relu,
                                       Activation::relu_squared, Activation::sigmoid,      Activation::tanh};

/// From far left, where only the tail is left, to far right.
Values sweep() {
  Values values;
  for (int i = -1200; i <= 1203; ++i) values.push_back(i / 100.0 + 0.003);
  return values;
}

TEST(ActivationReference, DerivativesMatchFiniteDifferences) {
  for (Activation f : kActivations) {
    const Values x = sweep();
    Values derivatives;
    for (double value : x) derivatives.push_back(ops::ref::activation_derivative(f, value));
    for (size_t i = 0; i < x.size(); ++i) {
      const double step = 1e-6;
      const double derivative =
          (ops::ref::activation(f, x[i] + step) - ops::ref::activation(f, x[i] - step)) / (2 * step);
      // A difference of values near f is good to about 2e-16 f / step: relu_squared has 144 at the end.
      const double rounding = 3e-10 * std::abs(ops::ref::activation(f, x[i]));
      ASSERT_NEAR(derivative, derivatives[i], 1e-8 + rounding) << x[i];
    }
  }
}

TEST(ActivationReference, GeluHasKnownValues) {
  // Phi(1) = 0.8413447460685429 and Phi(-2) = 0.0227501319481792 (tables of the normal distribution)
  EXPECT_NEAR(ops::ref::activation(Activation::gelu_erf, 1.0), 0.8413447460685429, 1e-15);
  EXPECT_NEAR(ops::ref::activation(Activation::gelu_erf, -2.0), -0.0455002638963584, 1e-15);
  EXPECT_NEAR(ops::ref::activation(Activation::silu, 1.0), 0.7310585786300049, 1e-15);
}

// exp, sigmoid and erfc are good to a few units of 6e-8; x^2 / 2 up to 72 in the exponent of gelu costs 72 units more.
TEST_P(ActivationTest, ValueAndDerivativeMatchReferenceInTheTailsToo) {
  const Values x = sweep();
  const Shape shape = {static_cast<int64_t>(x.size())};
  const Tensor input = tensor_of(x, shape, DType::f32), ones = tensor_of(Values(x.size(), 1.0), shape, DType::f32);
  for (Activation f : kActivations) {
    Tensor y = Tensor::empty(pool(), shape, DType::f32), derivative = Tensor::empty(pool(), shape, DType::f32);
    ops::activation_forward(f, input, y);
    ops::activation_backward(f, ones, input, derivative);
    Values values, derivatives;
    for (double value : values_of(input)) {
      values.push_back(ops::ref::activation(f, value));
      derivatives.push_back(ops::ref::activation_derivative(f, value));
    }
    expect_close(y, values, 1e-5, 1e-30, "value");
    expect_close(derivative, derivatives, 1e-5, 3e-7, "derivative");
  }
}

TEST_P(ActivationTest, GatedMatchesReference) {
  for (Activation f : kActivations) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      const Shape shape = {7, 83};
      const Tensor gate = random_tensor(shape, dtype, 1, 2), up = random_tensor(shape, dtype, 2);
      const Tensor dy = random_tensor(shape, dtype, 3);
      Tensor y = Tensor::empty(pool(), shape, dtype), y_recomputed = Tensor::empty(pool(), shape, dtype);
      Tensor dgate = Tensor::empty(pool(), shape, dtype), dup = Tensor::empty(pool(), shape, dtype);
      ops::gated_forward(f, gate, up, y);
      ops::gated_backward(f, dy, gate, up, dgate, dup, y_recomputed);
      const size_t count = static_cast<size_t>(gate.numel());
      Values ys(count), dgates(count), dups(count);
      ops::ref::gated_forward(f, values_of(gate).data(), values_of(up).data(), gate.numel(), ys.data());
      ops::ref::gated_backward(f, values_of(dy).data(), values_of(gate).data(), values_of(up).data(), gate.numel(),
                               dgates.data(), dups.data());
      expect_close(y, ys, rounding(dtype, 1e-5), 1e-7, "y");
      expect_close(dgate, dgates, rounding(dtype, 1e-5), 3e-6, "dgate");
      expect_close(dup, dups, rounding(dtype, 1e-5), 1e-6, "dup");
      EXPECT_EQ(std::memcmp(y.raw(), y_recomputed.raw(), y.bytes()), 0) << "y_recomputed is the y of forward";
    }
  }
}

TEST(ActivationReference, ClampedGatedGradientMatchesFiniteDifferences) {
  const Values gate = {-3, -0.4, 0.7, 1.9, 2.1, 5}, up = {0.3, -2.6, 2.4, -1.5, 1.1, 0.2}, dy = random_values(6, 1);
  Values dgate(6), dup(6);
  const auto value = [&](const Values& g, const Values& u) {
    Values y(6);
    ops::ref::clamped_gated_forward(Activation::gelu_sigmoid, 2.0, g.data(), u.data(), 6, y.data());
    return dot(y, dy);
  };
  ops::ref::clamped_gated_backward(Activation::gelu_sigmoid, 2.0, dy.data(), gate.data(), up.data(), 6, dgate.data(),
                                   dup.data());
  expect_gradient([&](const Values& g) { return value(g, up); }, gate, dgate, "gate");
  expect_gradient([&](const Values& u) { return value(gate, u); }, up, dup, "up");
}

TEST_P(ActivationTest, ClampedGatedMatchesReference) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Shape shape = {7, 83};
    const Tensor gate = random_tensor(shape, dtype, 1, 2), up = random_tensor(shape, dtype, 2);
    const Tensor dy = random_tensor(shape, dtype, 3);
    Tensor y = Tensor::empty(pool(), shape, dtype), dgate = gate.clone(pool()), dup = up.clone(pool());
    ops::clamped_gated_forward(Activation::gelu_sigmoid, 0.75f, gate, up, y);
    ops::clamped_gated_backward(Activation::gelu_sigmoid, 0.75f, dy, dgate, dup, dgate, dup);  // in their place
    const size_t count = static_cast<size_t>(gate.numel());
    Values ys(count), dgates(count), dups(count);
    ops::ref::clamped_gated_forward(Activation::gelu_sigmoid, 0.75, values_of(gate).data(), values_of(up).data(),
                                    gate.numel(), ys.data());
    ops::ref::clamped_gated_backward(Activation::gelu_sigmoid, 0.75, values_of(dy).data(), values_of(gate).data(),
                                     values_of(up).data(), gate.numel(), dgates.data(), dups.data());
    expect_close(y, ys, rounding(dtype, 1e-5), 1e-7, "y");
    expect_close(dgate, dgates, rounding(dtype, 1e-5), 3e-6, "dgate");
    expect_close(dup, dups, rounding(dtype, 1e-5), 1e-6, "dup");
  }
}

TEST_P(ActivationTest, NanGoesThrough) {
  const Tensor x = tensor_of({1, NAN, 2}, {3}, DType::f32), other = tensor_of({1, 2, 3}, {3}, DType::f32);
  Tensor y = Tensor::empty(pool(), {3}, DType::f32);
  for (Activation f : kActivations) {
    ops::activation_forward(f, x, y);
    EXPECT_EQ(ops::first_nonfinite(y), 1) << static_cast<int>(f);
  }
  ops::clamped_gated_forward(Activation::gelu_sigmoid, 0.75f, x, other, y);
  EXPECT_EQ(ops::first_nonfinite(y), 1);
  ops::clamped_gated_forward(Activation::gelu_sigmoid, 0.75f, other, x, y);
  EXPECT_EQ(ops::first_nonfinite(y), 1);
}

}  // namespace
}  // namespace nibble
