#include "nibble/core/nn/linear_weight.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/nn/linear.h"
#include "nibble/core/ops/int8/int8_product.h"
#include "nibble/tests/random_stream.h"

namespace nibble {
namespace {

constexpr int64_t kWideOut = 70, kWideIn = 200;

class Int8Weight : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (ops::int8_levels() == 0) GTEST_SKIP() << "this CPU has no products in 8 bits";
  }
  Tensor random(Shape shape) {
    Tensor result = Tensor::empty(pool_, std::move(shape), DType::f32);
    for (float& value : result.span<float>()) value = stream_.next_uniform() * 2 - 1;
    return result;
  }
  std::shared_ptr<Parameter> parameter() {
    auto result = std::make_shared<Parameter>();
    result->name = "w";
    result->value = random(GetParam() ? Shape{kWideIn, kWideOut} : Shape{kWideOut, kWideIn});
    return result;
  }
  /// Conv1D's layout or the usual one.
  std::unique_ptr<DenseWeight> weight(const std::shared_ptr<Parameter>& of, bool int8) {
    auto result = std::make_unique<DenseWeight>(of, GetParam());
    if (int8) result->set_int8(&pool_);
    return result;
  }
  Tensor forward(const LinearWeight& w, const Tensor& x) {
    Tensor y = Tensor::zeros(pool_, {x.dim(0), kWideOut}, DType::f32);
    w.forward(x, y, false);
    return y;
  }
  Tensor backward(const LinearWeight& w, const Tensor& dy) {
    Tensor dx = Tensor::zeros(pool_, {dy.dim(0), kWideIn}, DType::f32);
    w.backward_input(dy, dx, false);
    return dx;
  }
  static bool same(const Tensor& a, const Tensor& b) { return std::memcmp(a.raw(), b.raw(), a.bytes()) == 0; }

  MemoryPool pool_;
  test::RandomStream stream_{1, 1, 1};
};

// Both sides err by half a step of at most 1 / 127 (1 / 63 on AVX2): K terms of at most 1 lose (1 / 2 levels + 1 / 254
// + 1 / (508 levels)) each.
TEST_P(Int8Weight, MultipliesInBothDirectionsWithinWhatRoundingLoses) {
  const auto stored = parameter();
  const auto rounded = weight(stored, true), exact = weight(stored, false);
  const double levels = static_cast<double>(ops::int8_levels());
  const double each = 0.5 / levels + 0.5 / 127 + 0.25 / (127 * levels) + 1e-6;
  const auto expect_near = [&](const Tensor& got, const Tensor& want, int64_t depth) {
    EXPECT_FALSE(same(got, want));
    for (int64_t i = 0; i < got.numel(); ++i) {
      ASSERT_NEAR(got.data<float>()[i], want.data<float>()[i], each * static_cast<double>(depth));
    }
  };
  const Tensor x = random({5, kWideIn}), dy = random({5, kWideOut});
  expect_near(forward(*rounded, x), forward(*exact, x), kWideIn);
  expect_near(backward(*rounded, dy), backward(*exact, dy), kWideOut);
}

TEST_P(Int8Weight, FewRowsAndTrainedWeightsAreMultipliedInFloats) {
  const auto stored = parameter();
  const auto rounded = weight(stored, true), exact = weight(stored, false);
  const Tensor few = random({4, kWideIn}), more = random({33, kWideIn}), dy = random({33, kWideOut});
  EXPECT_TRUE(same(forward(*rounded, few), forward(*exact, few)));
  EXPECT_FALSE(same(forward(*rounded, more), forward(*exact, more)));
  stored->make_trainable(pool_);
  EXPECT_TRUE(same(forward(*rounded, more), forward(*exact, more)));
  EXPECT_TRUE(same(backward(*rounded, dy), backward(*exact, dy)));
}

// One channel in sixteen a hundred times as large: its neighbours would lose all their digits.
TEST_P(Int8Weight, ProductsWithOutliersAreComputedInFloats) {
  const auto stored = parameter();
  const auto rounded = weight(stored, true), exact = weight(stored, false);
  Tensor x = random({33, kWideIn}), dy = random({33, kWideOut});
  EXPECT_FALSE(same(forward(*rounded, x), forward(*exact, x)));
  // Weights that do not make up for it: the outliers are what counts, and they are as exact as before.
  for (int64_t i = 0; i < x.numel(); i += 8) x.data<float>()[i] *= 100;
  EXPECT_FALSE(same(forward(*rounded, x), forward(*exact, x)));
  const auto is_of_outlier = [](int64_t i) { return GetParam() ? i / kWideOut % 8 == 0 : i % kWideIn % 8 == 0; };
  for (int64_t i = 0; i < stored->value.numel(); ++i) stored->value.data<float>()[i] *= is_of_outlier(i) ? 0.01f : 1;
  const auto adjusted = weight(stored, true);
  EXPECT_TRUE(same(forward(*adjusted, x), forward(*exact, x)));
  EXPECT_FALSE(same(backward(*adjusted, dy), backward(*exact, dy))) << "its inputs have none";
}

TEST_P(Int8Weight, ALinearKeepsItForTheWeightThatReplacesItsOwn) {
  const auto first = parameter(), second = parameter();
  Linear linear("l", weight(first, false)), kept("k", weight(first, false));
  kept.keep_exact();
  linear.set_int8(&pool_);
  kept.set_int8(&pool_);
  linear.set_weight(weight(second, false));
  const Tensor x = random({33, kWideIn});
  EXPECT_TRUE(same(forward(linear.weight(), x), forward(*weight(second, true), x)));
  EXPECT_TRUE(same(forward(kept.weight(), x), forward(*weight(first, false), x)));
}

INSTANTIATE_TEST_SUITE_P(Layouts, Int8Weight, testing::Values(false, true),
                         [](const auto& which) { return which.param ? "in_by_out" : "out_by_in"; });

}  // namespace
}  // namespace nibble
