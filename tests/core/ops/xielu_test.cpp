#include "nibble/core/ops/ref/activation.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

class XieluTest : public EverySimd {};
NIBBLE_EVERY_SIMD(XieluTest);

TEST_P(XieluTest, MatchesItsReferenceForwardAndBackward) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor({37, 301}, dtype, 1, 2), dy = random_tensor(x.shape(), dtype, 2);
    const Tensor p = tensor_of({0.4}, {1}, DType::f32), n = tensor_of({-0.7}, {1}, DType::f32);
    Tensor y = Tensor::empty(pool(), x.shape(), dtype), dx = Tensor::empty(pool(), x.shape(), dtype);
    Tensor dp = Tensor::zeros(pool(), {1}, DType::f32), dn = Tensor::zeros(pool(), {1}, DType::f32);
    Values value(static_cast<size_t>(x.numel())), gradient(value.size());
    double alpha_p = 0, alpha_n = 0;
    const double at_p = values_of(p)[0], at_n = values_of(n)[0];
    ops::ref::xielu_forward(values_of(x).data(), at_p, at_n, x.numel(), value.data());
    ops::ref::xielu_backward(values_of(dy).data(), values_of(x).data(), at_p, at_n, x.numel(), gradient.data(), alpha_p,
                             alpha_n);
    ops::xielu_forward(x, p, n, y);
    ops::xielu_backward(dy, x, p, n, dx, dp, dn);
    expect_close(y, value, rounding(dtype, 1e-6), 1e-6, "y");
    expect_close(dx, gradient, rounding(dtype, 1e-6), 1e-6, "dx");
    expect_close(dp, {alpha_p}, 1e-4, 1e-3, "alpha_p");
    expect_close(dn, {alpha_n}, 1e-4, 1e-3, "alpha_n");
  }
}

TEST(Xielu, GradientMatchesFiniteDifferences) {
  const Values x = {-3, -0.5, -0.01, 0.7, 2}, weights = {1, 2, -3, 4, 5}, alphas = {0.4, -0.7};
  const auto f = [&](const Values& at, const Values& with) {
    Values y(at.size());
    ops::ref::xielu_forward(at.data(), with[0], with[1], 5, y.data());
    return dot(y, weights);
  };
  Values dx(5), dalphas(2);
  ops::ref::xielu_backward(weights.data(), x.data(), alphas[0], alphas[1], 5, dx.data(), dalphas[0], dalphas[1]);
  expect_gradient([&](const Values& at) { return f(at, alphas); }, x, dx, "x");
  expect_gradient([&](const Values& with) { return f(x, with); }, alphas, dalphas, "alphas");
}

}  // namespace
}  // namespace nibble
