#include "nibble/core/ops/elementwise.h"

#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/ref/elementwise.h"
#include "nibble/core/ops/residual.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

class ElementwiseTest : public EverySimd {};
NIBBLE_EVERY_SIMD(ElementwiseTest);

TEST_P(ElementwiseTest, CastRoundsAsTheScalarTypesDo) {
  Values values = random_values(1000, 1, 100);
  for (double special : {0.0, -0.0, 1e-40, 65504.0, 65520.0, 3.4e38, HUGE_VAL, -HUGE_VAL, 1.00390625, 1.01171875}) {
    values.push_back(special);
  }
  const int64_t count = static_cast<int64_t>(values.size());
  const Tensor x = tensor_of(values, {count}, DType::f32);
  Tensor halves = Tensor::empty(pool(), {count}, DType::f16), brains = Tensor::empty(pool(), {count}, DType::bf16);
  Tensor back = Tensor::empty(pool(), {count}, DType::f32);
  ops::cast(x, halves);
  ops::cast(x, brains);
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(halves.data<f16>()[i].bits, f16(x.data<float>()[i]).bits) << x.data<float>()[i];
    ASSERT_EQ(brains.data<bf16>()[i].bits, bf16(x.data<float>()[i]).bits) << x.data<float>()[i];
  }
  ops::cast(halves, back);
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(back.data<float>()[i], static_cast<float>(halves.data<f16>()[i]));
  ops::cast(brains, back);
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(back.data<float>()[i], static_cast<float>(brains.data<bf16>()[i]));
}

TEST_P(ElementwiseTest, CastKeepsNan) {
  const Tensor x = tensor_of(Values(20, NAN), {20}, DType::f32);
  for (DType dtype : {DType::bf16, DType::f16}) {
    Tensor y = Tensor::empty(pool(), {20}, dtype), back = Tensor::empty(pool(), {20}, DType::f32);
    ops::cast(x, y);
    ops::cast(y, back);
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(std::isnan(back.data<float>()[i]));
  }
}

TEST_P(ElementwiseTest, CastReadsFromAnyAddress) {
  auto storage = Storage::owned(pool(), 201, "bytes");
  const Tensor whole = random_tensor({100}, DType::bf16, 1);
  std::memcpy(storage->data() + 1, whole.raw(), 200);
  Tensor y = Tensor::empty(pool(), {100}, DType::f32);
  ops::cast(Tensor::view(storage, 1, {100}, DType::bf16), y);
  expect_close(y, values_of(whole), 0, 0, "y");
}

// One multiply-add per element.
TEST_P(ElementwiseTest, AddScaleAndBiasMatchReference) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Tensor y = random_tensor({5, 77}, dtype, 1), bias = random_tensor({77}, DType::f32, 2);
    Tensor x = random_tensor({5, 77}, DType::f32, 3);
    Values xs = values_of(x);
    ops::add(y, x, 0.5f);
    ops::ref::add(values_of(y).data(), x.numel(), 0.5, xs.data());
    expect_close(x, xs, 1e-7, 1e-7, "add");
    const Tensor before = random_tensor({5, 77}, DType::f32, 3);
    Tensor sum = Tensor::empty(pool(), {5, 77}, DType::f32);
    ops::add_residual(before, y, 0.5f, sum);
    EXPECT_EQ(values_of(sum), values_of(x));
    Tensor biased = y.clone(pool()), scaled = y.clone(pool());
    Values expected = values_of(y), times = values_of(y);
    ops::add_bias(bias, biased);
    ops::ref::add_bias(values_of(bias).data(), 5, 77, expected.data());
    expect_close(biased, expected, rounding(dtype, 1e-7), 1e-7, "add_bias");
    ops::scale(scaled, 3);
    ops::ref::scale(times.data(), x.numel(), 3.0);
    expect_close(scaled, times, rounding(dtype, 1e-7), 0, "scale");
  }
}

TEST_P(ElementwiseTest, ScaleRowsMatchesReference) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Tensor x = random_tensor({41, 19}, dtype, 1);
    const Tensor factors = random_tensor({41}, DType::f32, 2), one = random_tensor({1}, DType::f32, 3);
    Values expected = values_of(x);
    ops::ref::scale_rows(expected.data(), values_of(factors).data(), 41, 19, expected.data());
    ops::scale_rows(x, factors, x);
    expect_close(x, expected, rounding(dtype, 1e-6), 1e-6, "rows");
    Values all = values_of(x);
    ops::ref::scale_rows(all.data(), values_of(one).data(), 1, 41 * 19, all.data());
    ops::scale_rows(x, one, x);
    expect_close(x, all, rounding(dtype, 1e-6), 1e-6, "all");
  }
}

TEST_P(ElementwiseTest, BiasGradientIsTheColumnSum) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Tensor dy = random_tensor({50, 300}, dtype, 1);
    Tensor dbias = random_tensor({300}, DType::f32, 2);
    Values expected = values_of(dbias);
    ops::bias_backward(dy, dbias);
    ops::ref::bias_backward(values_of(dy).data(), 50, 300, expected.data());
    expect_close(dbias, expected, 1e-6, 5e-6, "dbias");
  }
}

TEST_P(ElementwiseTest, SumOfSquaresIsDoubleAndTheSameForAnyThreads) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor({100003}, dtype, 1);
    const double expected = ops::ref::sum_of_squares(values_of(x).data(), x.numel());
    set_threads(1);
    const double one = ops::sum_of_squares(x);
    EXPECT_NEAR(one, expected, 1e-12 * expected);
    set_threads(3);
    EXPECT_EQ(ops::sum_of_squares(x), one);
  }
}

TEST_P(ElementwiseTest, FirstNonfiniteIsTheFirst) {
  constexpr int64_t kCount = 200000;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    set_threads(3);
    Values values(kCount, 1.0);
    const auto expect = [&](int64_t first) {
      EXPECT_EQ(ops::ref::first_nonfinite(values.data(), kCount), first);
      EXPECT_EQ(ops::first_nonfinite(tensor_of(values, {kCount}, dtype)), first);
    };
    expect(-1);
    values[199999] = HUGE_VAL;
    expect(199999);
    values[40001] = NAN;
    values[70000] = -HUGE_VAL;
    expect(40001);
  }
}

TEST(Fill, NormalHasItsMomentsAndElementsOfTheirOwn) {
  Tensor x = Tensor::empty(pool(), {200000}, DType::f32), part = Tensor::empty(pool(), {1001}, DType::f32);
  ops::fill_normal(x, 2, 7, 3);
  ops::fill_normal(part, 2, 7, 3);
  EXPECT_EQ(std::memcmp(x.raw(), part.raw(), part.bytes()), 0) << "an element does not depend on the tensor's size";
  double sum = 0, squares = 0, fourth = 0;
  for (double value : values_of(x)) {
    sum += value / 2e5;
    squares += value * value / 2e5;
    fourth += value * value * value * value / 2e5;
  }
  // Standard errors: 2 / sqrt(n) = 0.0045, 4 sqrt(2 / n) = 0.013, 16 sqrt(96 / n) = 0.35; four of each.
  EXPECT_NEAR(sum, 0, 0.018);
  EXPECT_NEAR(squares, 4, 0.05);
  EXPECT_NEAR(fourth, 48, 1.4);
  ops::fill_normal(part, 2, 7, 4);
  EXPECT_NE(std::memcmp(x.raw(), part.raw(), part.bytes()), 0) << "another purpose, other numbers";
}

class FillTest : public EverySimd {};
NIBBLE_EVERY_SIMD(FillTest);

TEST_P(FillTest, NormalHasTheBitsOfItsReference) {
  for (const auto& [std, seed, purpose] : {std::tuple<float, uint64_t, uint64_t>{0.02f, 7, 3},
                                           {1.0f, ~uint64_t{0}, 0x123456789abcdefULL},
                                           {1e-38f, 1, 2},
                                           {0.0f, 1, 2},
                                           {3.7f, uint64_t{5} << 32, uint64_t{9} << 32}}) {
    const int64_t count = (int64_t{1} << 19) + 5;
    Tensor x = Tensor::empty(pool(), {count}, DType::f32), narrow = Tensor::empty(pool(), {count}, DType::bf16);
    ops::fill_normal(x, std, seed, purpose);
    ops::fill_normal(narrow, std, seed, purpose);
    for (int64_t i = 0; i < count; ++i) {
      const float expected = ops::ref::normal_quad(i / 4, std, seed, purpose)[static_cast<size_t>(i % 4)];
      ASSERT_EQ(std::bit_cast<uint32_t>(x.data<const float>()[i]), std::bit_cast<uint32_t>(expected))
          << "element " << i;
      ASSERT_EQ(static_cast<float>(narrow.data<const bf16>()[i]), static_cast<float>(bf16(expected)))
          << "element " << i;
    }
  }
}

TEST(Fill, UniformStaysInItsRange) {
  Tensor x = Tensor::empty(pool(), {100000}, DType::f32);
  ops::fill_uniform(x, -0.5f, 1.5f, 7, 3);
  double sum = 0, low = 9, high = -9;
  for (double value : values_of(x)) {
    sum += value / 1e5;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  EXPECT_GE(low, -0.5);
  EXPECT_LT(high, 1.5);
  EXPECT_LT(low, -0.499);
  EXPECT_GT(high, 1.499);
  EXPECT_NEAR(sum, 0.5, 0.01);
}

TEST(Columns, PartsOfAFusedProjectionComeOutAndGoBack) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor({70, 30}, dtype, 1);
    Tensor reassembled = Tensor::zeros(pool(), {70, 30}, dtype);
    for (const auto& [begin, width] : {std::pair<int64_t, int64_t>{0, 20}, {20, 7}, {27, 3}}) {
      Tensor part = Tensor::empty(pool(), {70, width}, dtype);
      ops::copy_columns_out(x, begin, part);
      EXPECT_EQ(values_of(part)[static_cast<size_t>(width)], values_of(x)[static_cast<size_t>(30 + begin)]);
      ops::copy_columns_in(part, begin, reassembled);
    }
    EXPECT_EQ(std::memcmp(x.raw(), reassembled.raw(), x.bytes()), 0);
    Tensor wide = Tensor::empty(pool(), {70, 4}, dtype);
    EXPECT_THROW(ops::copy_columns_out(x, 27, wide), std::logic_error);
  }
}

}  // namespace
}  // namespace nibble
