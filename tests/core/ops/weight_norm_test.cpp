#include "nibble/core/ops/weight_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "nibble/core/ops/elementwise.h"

namespace nibble {
namespace {

class WeightNormTest : public ::testing::Test {
 protected:
  MemoryPool pool;
  Tensor random(Shape shape, uint64_t purpose, DType dtype = DType::f32) {
    Tensor result = Tensor::empty(pool, std::move(shape), dtype);
    ops::fill_normal(result, 1, 3, purpose);
    return result;
  }
};

TEST_F(WeightNormTest, NormsOfASumComeFromItsPartsAlone) {
  constexpr int64_t kOut = 70, kIn = 33, kR = 5;
  constexpr float kS = 0.7f;
  const Tensor w = random({kOut, kIn}, 1), a = random({kR, kIn}, 2), b = random({kOut, kR}, 3), m = random({kOut}, 4);
  const auto at = [](const Tensor& x, int64_t i, int64_t j) { return double{x.data<const float>()[i * x.dim(1) + j]}; };
  Tensor aw = Tensor::empty(pool, {kR, kOut}, DType::f32), gram = Tensor::empty(pool, {kR, kR}, DType::f32);
  for (int64_t r = 0; r < kR; ++r) {
    for (int64_t o = 0; o < kOut; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < kIn; ++i) sum += at(a, r, i) * at(w, o, i);
      aw.data<float>()[r * kOut + o] = static_cast<float>(sum);
    }
    for (int64_t q = 0; q < kR; ++q) {
      double sum = 0;
      for (int64_t i = 0; i < kIn; ++i) sum += at(a, r, i) * at(a, q, i);
      gram.data<float>()[r * kR + q] = static_cast<float>(sum);
    }
  }
  Tensor squares = Tensor::empty(pool, {kOut}, DType::f64);
  Tensor norms = Tensor::empty(pool, {kOut}, DType::f32), factors = Tensor::empty(pool, {kOut}, DType::f32);
  ops::row_squares(w, squares);
  ops::low_rank_norms(m, squares, aw, b, gram, kS, norms, factors);
  Tensor sum = w.clone(pool);
  for (int64_t o = 0; o < kOut; ++o) {
    double square = 0;
    for (int64_t i = 0; i < kIn; ++i) {
      double value = at(w, o, i);
      for (int64_t r = 0; r < kR; ++r) value += double{kS} * at(b, o, r) * at(a, r, i);
      sum.data<float>()[o * kIn + i] = static_cast<float>(value);
      square += value * value;
    }
    EXPECT_NEAR(norms.data<const float>()[o], std::sqrt(square), 1e-5 * std::sqrt(square));
    EXPECT_NEAR(factors.data<const float>()[o], m.data<const float>()[o] / std::sqrt(square), 1e-5);
  }
  ops::set_row_norms(norms, sum);
  ops::row_squares(sum, squares);
  for (int64_t o = 0; o < kOut; ++o) {
    EXPECT_NEAR(std::sqrt(squares.data<const double>()[o]), norms.data<const float>()[o], 1e-4);
  }
}

TEST_F(WeightNormTest, ColumnsAreScaledAndTheirGradientsSummed) {
  using Dtypes = std::pair<DType, DType>;  // of x and y, of the gradient: that of a norm's input is f32
  for (const auto& [dtype, of_dy] :
       {Dtypes(DType::f32, DType::f32), Dtypes(DType::bf16, DType::bf16), Dtypes(DType::bf16, DType::f32)}) {
    const Tensor x = random({37, 130}, 1, dtype), dy = random({37, 130}, 2, of_dy);
    const Tensor factors = random({130}, 3), norms = random({130}, 4);
    Tensor y = Tensor::empty(pool, x.shape(), dtype), dm = random({130}, 5);
    const Tensor before = dm.clone(pool);
    ops::scale_columns(x, factors, -1, y);
    ops::scale_columns_backward(dy, x, norms, dm);
    const auto at = [&](const Tensor& from, int64_t i) {
      return from.dtype() == DType::f32 ? from.data<const float>()[i] : static_cast<float>(from.data<const bf16>()[i]);
    };
    for (int64_t n = 0; n < 130; ++n) {
      double sum = 0;
      for (int64_t t = 0; t < 37; ++t) {
        const float expected = at(x, t * 130 + n) * (factors.data<const float>()[n] - 1);
        EXPECT_EQ(at(y, t * 130 + n), dtype == DType::f32 ? expected : static_cast<float>(bf16(expected)));
        sum += double{at(dy, t * 130 + n)} * at(x, t * 130 + n);
      }
      const double expected = before.data<const float>()[n] + sum / norms.data<const float>()[n];
      EXPECT_NEAR(dm.data<const float>()[n], expected, 1e-5 * (1 + std::abs(expected)));
    }
  }
}

TEST_F(WeightNormTest, AZeroRowStaysZero) {
  Tensor rows = Tensor::zeros(pool, {2, 4}, DType::f32);
  rows.data<float>()[4] = 3;
  ops::set_row_norms(random({2}, 1), rows);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(rows.data<const float>()[i], 0);
  EXPECT_NE(rows.data<const float>()[4], 3);
}

}  // namespace
}  // namespace nibble
