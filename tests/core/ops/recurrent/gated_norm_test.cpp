#include "nibble/core/ops/recurrent/gated_norm.h"

#include "nibble/core/ops/ref/gated_norm.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

class GatedNormTest : public EverySimd {};
NIBBLE_EVERY_SIMD(GatedNormTest);

constexpr int64_t kNormTokens = 150, kNormWidth = 84, kGroup = 21;

/// Whether the gate comes first, and whether it is a sigmoid.
constexpr std::pair<bool, bool> kNormForms[] = {{false, false}, {true, false}, {false, true}};

TEST(GatedNormReference, GradientsAreFiniteDifferences) {
  const int64_t tokens = 2, width = 6, group = 3;
  for (const int64_t weights : {3, 6}) {
    for (const auto& [gate_first, sigmoid] : kNormForms) {
      const Values x = random_values(2 * tokens * width + weights, 1), dy = random_values(tokens * width, 2);
      const int64_t count = tokens * width;
      const auto loss = [&](const Values& at) {
        Values y(dy.size());
        ops::ref::gated_norm_forward(at.data(), at.data() + count, at.data() + 2 * count, tokens, width, group, weights,
                                     1e-2, gate_first, sigmoid, y.data());
        return dot(y, dy);
      };
      Values gradient(x.size(), 0.0);
      double* to = gradient.data();
      ops::ref::gated_norm_backward(dy.data(), x.data(), x.data() + count, x.data() + 2 * count, tokens, width, group,
                                    weights, 1e-2, gate_first, sigmoid, to, to + count, to + 2 * count);
      expect_gradient(loss, x, gradient, "gated norm");
    }
  }
}

TEST_P(GatedNormTest, MatchesReference) {
  for (const int64_t weights : {kGroup, kNormWidth}) {
    for (const auto& [gate_first, sigmoid] : kNormForms) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const ops::GatedNormParams params{
            .group = kGroup, .eps = 1e-2f, .sigmoid_gate = sigmoid, .gate_first = gate_first};
        const Tensor x = random_tensor({kNormTokens, kNormWidth}, DType::f32, 1),
                     w = random_tensor({weights}, DType::f32, 2);
        const Tensor gate = random_tensor(x.shape(), dtype, 3), dy = random_tensor(x.shape(), dtype, 4);
        Tensor y = Tensor::empty(pool(), x.shape(), dtype), dx = Tensor::empty(pool(), x.shape(), DType::f32);
        Tensor dgate = Tensor::empty(pool(), x.shape(), dtype), dw = random_tensor({weights}, DType::f32, 5);
        const auto count = static_cast<size_t>(x.numel());
        Values ys(count), dxs(count), dgates(count), dws = values_of(dw);
        ops::gated_norm_forward(x, gate, w, params, y);
        ops::gated_norm_backward(dy, x, gate, w, params, dx, dgate, dw);
        const double eps = static_cast<double>(params.eps);
        ops::ref::gated_norm_forward(values_of(x).data(), values_of(gate).data(), values_of(w).data(), kNormTokens,
                                     kNormWidth, kGroup, weights, eps, gate_first, sigmoid, ys.data());
        ops::ref::gated_norm_backward(values_of(dy).data(), values_of(x).data(), values_of(gate).data(),
                                      values_of(w).data(), kNormTokens, kNormWidth, kGroup, weights, eps, gate_first,
                                      sigmoid, dxs.data(), dgates.data(), dws.data());
        expect_close(y, ys, rounding(dtype, 4e-6), 1e-6, "y");
        expect_close(dx, dxs, 1e-5, 1e-5, "dx");
        expect_close(dgate, dgates, rounding(dtype, 1e-5), 1e-5, "dgate");
        expect_close(dw, dws, 1e-5, 1e-4, "dw");
      }
    }
  }
}

TEST_P(GatedNormTest, BitsDoNotDependOnThreads) {
  const Tensor x = random_tensor({kNormTokens, kNormWidth}, DType::f32, 1), w = random_tensor({kGroup}, DType::f32, 2);
  expect_same_bits_for_any_threads([&] {
    const ops::GatedNormParams params{.group = kGroup};
    Tensor y = Tensor::empty(pool(), x.shape(), DType::f32), dx = Tensor::empty(pool(), x.shape(), DType::f32);
    Tensor dgate = Tensor::empty(pool(), x.shape(), DType::f32), dw = Tensor::zeros(pool(), w.shape(), DType::f32);
    ops::gated_norm_forward(x, x, w, params, y);
    ops::gated_norm_backward(y, x, x, w, params, dx, dgate, dw);
    return std::vector<Tensor>{y, dx, dgate, dw};
  });
}

}  // namespace
}  // namespace nibble
