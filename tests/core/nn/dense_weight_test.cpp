#include <gtest/gtest.h>

#include "nibble/core/nn/linear_weight.h"
#include "nibble/core/ops/ref/gemm.h"
#include "nibble/tests/random_stream.h"

namespace nibble {
namespace {

constexpr int64_t kOut = 5, kIn = 7, kTokens = 3;

std::vector<double> doubles(const Tensor& x) { return {x.span<const float>().begin(), x.span<const float>().end()}; }

void expect_near(const Tensor& got, const std::vector<double>& expected) {
  ASSERT_EQ(static_cast<size_t>(got.numel()), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got.data<const float>()[i], expected[i], 1e-5) << i;
}

/// Weight [out, in], stored as it is or (Conv1D) transposed.
class DenseWeightTest : public testing::TestWithParam<bool> {
 protected:
  Tensor random(Shape shape) {
    Tensor result = Tensor::empty(pool_, std::move(shape), DType::f32);
    for (float& value : result.span<float>()) value = stream_.next_uniform() * 2 - 1;
    return result;
  }
  DenseWeight weight(bool trainable) {
    stored_ = std::make_shared<Parameter>();
    stored_->name = "w";
    stored_->value = random(GetParam() ? Shape{kIn, kOut} : Shape{kOut, kIn});
    if (trainable) stored_->make_trainable(pool_);
    return DenseWeight(stored_, GetParam());
  }

  MemoryPool pool_;
  test::RandomStream stream_{1, 1, 1};
  std::shared_ptr<Parameter> stored_;
};

TEST_P(DenseWeightTest, MultipliesInBothDirections) {
  const DenseWeight w = weight(false);
  EXPECT_EQ(w.out_features(), kOut);
  EXPECT_EQ(w.in_features(), kIn);
  const Tensor x = random({kTokens, kIn}), dy = random({kTokens, kOut});
  Tensor y = random({kTokens, kOut}), dx = random({kTokens, kIn});
  std::vector<double> expected_y = doubles(y), expected_dx = doubles(dx);
  const std::vector<double> values = doubles(stored_->value);
  ops::ref::matmul(doubles(x).data(), false, values.data(), !GetParam(), kTokens, kOut, kIn, 1.0, true,
                   expected_y.data());
  ops::ref::matmul(doubles(dy).data(), false, values.data(), GetParam(), kTokens, kIn, kOut, 1.0, true,
                   expected_dx.data());
  w.forward(x, y, true);
  w.backward_input(dy, dx, true);
  expect_near(y, expected_y);
  expect_near(dx, expected_dx);
}

TEST_P(DenseWeightTest, AddsItsGradientInTheStoredLayout) {
  DenseWeight w = weight(true);
  const Tensor x = random({kTokens, kIn}), dy = random({kTokens, kOut});
  std::vector<double> expected(kOut * kIn, 0.0);
  for (int repeat = 0; repeat < 2; ++repeat) {
    w.backward_weight(dy, x);
    if (GetParam()) {
      ops::ref::matmul(doubles(x).data(), true, doubles(dy).data(), false, kIn, kOut, kTokens, 1.0, true,
                       expected.data());
    } else {
      ops::ref::matmul(doubles(dy).data(), true, doubles(x).data(), false, kOut, kIn, kTokens, 1.0, true,
                       expected.data());
    }
  }
  expect_near(stored_->gradient, expected);
}

TEST_P(DenseWeightTest, FrozenHasNoGradient) {
  DenseWeight w = weight(false);
  w.backward_weight(random({kTokens, kOut}), random({kTokens, kIn}));
  EXPECT_FALSE(stored_->gradient.defined());
}

TEST_P(DenseWeightTest, GivesAnyOfItsRowsAsF32) {
  const DenseWeight w = weight(false);
  const Tensor rows = w.dequantize(1, 4, pool_);
  ASSERT_EQ(rows.shape(), (Shape{3, kIn}));
  for (int64_t n = 0; n < 3; ++n) {
    for (int64_t k = 0; k < kIn; ++k) {
      const float expected = stored_->value.data<float>()[GetParam() ? k * kOut + n + 1 : (n + 1) * kIn + k];
      EXPECT_EQ(rows.data<float>()[n * kIn + k], expected);
    }
  }
  EXPECT_EQ(w.parts().size(), 1u);
  EXPECT_EQ(w.parts()[0].name, "w");
}

INSTANTIATE_TEST_SUITE_P(Layouts, DenseWeightTest, testing::Bool(),
                         [](const auto& layout) { return layout.param ? "Transposed" : "Plain"; });

}  // namespace
}  // namespace nibble
