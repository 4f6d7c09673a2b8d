#include "nibble/core/ops/int8/int8_product.h"

#include <cmath>
#include <limits>

#include "nibble/core/base/isa_levels.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/int8/int8_kernel.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/ref/int8_error.h"
#include "nibble/tests/core/ops/four_bit_matrix.h"

namespace nibble::ops {
namespace {

using test::random;
using test::random_matrix;
using test::same_bytes;

Int8Rows rounded(MemoryPool& pool, const Tensor& x) {
  Int8Rows rows(pool, x);
  int8_round(x, rows);
  return rows;
}

/// Some weights are 20 times as large as the others, so that scales differ.
Tensor random_weight(MemoryPool& pool, Shape shape, DType dtype) {
  Tensor wide = random(pool, std::move(shape), DType::f32);
  for (int64_t i = 0; i < wide.numel(); i += 37) wide.data<float>()[i] *= 20;
  Tensor result = Tensor::empty(pool, wide.shape(), dtype);
  cast(wide, result);
  return result;
}

struct Int8Case {
  int64_t rows, columns, depth;  // of the product
};
constexpr Int8Case kCases[] = {{1, 1, 1},      {1, 70, 33},    {5, 64, 64},    {33, 130, 192}, {7, 128, 128},
                               {49, 192, 300}, {6, 96, 320},   {100, 64, 129}, {33, 256, 576}, {3, 64, 4224},
                               {13, 65, 127},  {50, 64, 1152}, {5, 128, 4096}};

std::string describe(const Int8Case& k, bool transposed) {
  return std::string(transposed ? "nt " : "nn ") + to_string({k.rows, k.columns, k.depth});
}

/// Weights of every kind as [columns, depth], or [depth, columns] for the product with w itself.
std::vector<WeightView> weights(MemoryPool& pool, const Int8Case& k, bool transposed) {
  const Shape shape = transposed ? Shape{k.columns, k.depth} : Shape{k.depth, k.columns};
  std::vector<WeightView> result;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    result.emplace_back(random_weight(pool, shape, dtype));
  for (const int64_t block : {32, 64, 256}) {
    for (const bool nested : {true, false}) {
      result.emplace_back(random_matrix(pool, shape[0], shape[1], block, nested), "test");
    }
  }
  if (shape[1] % 32 == 0) result.emplace_back(test::random_mxfp4(pool, shape[0], shape[1]), "test");
  if (shape[0] > 4) result.push_back(result.back().slice_rows(1, shape[0] - 2));
  return result;
}

// The first level with a kernel.
#if defined(__aarch64__)
constexpr Isa kFirst = Isa::neon_dotprod;
#else
constexpr Isa kFirst = Isa::avx2;
#endif

class Int8AtLevel : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (best_isa(GetParam()) != GetParam() || GetParam() > isa()) {
      GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
    }
    ASSERT_NE(cpu::int8_kernel(GetParam()), nullptr);
  }
};

TEST_P(Int8AtLevel, EveryWeightGivesTheBitsOfTheReference) {
  for (const Int8Case& k : kCases) {
    for (const bool transposed : {true, false}) {
      MemoryPool pool;
      for (const WeightView& w : weights(pool, k, transposed)) {
        const int64_t depth = transposed ? w.cols() : w.rows(), columns = transposed ? w.rows() : w.cols();
        const Int8Rows x = rounded(pool, random(pool, {k.rows, depth}, DType::f32));
        Tensor c = Tensor::zeros(pool, {k.rows, columns}, DType::f32), expected = c.clone(pool);
        cpu::int8_product(x, w, transposed, c, false, nullptr, GetParam());
        ref::int8_matmul(x, w, transposed, cpu::int8_kernel(GetParam())->levels, expected.data<float>());
        const std::span<const float> got = c.span<const float>(), want = expected.span<const float>();
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(got[i], want[i]) << describe(k, transposed) << " element " << i;
        }
      }
    }
  }
}

// x = s p + d and w = t q + e with |d| <= s / 2 and |e| <= t / 2: what is lost of x w is d w + e x - d e.
TEST_P(Int8AtLevel, ErrsByTheRoundingOfBothSidesAtMost) {
  for (const Int8Case& k : {Int8Case{5, 20, 129}, Int8Case{3, 64, 320}}) {
    for (const bool transposed : {true, false}) {
      MemoryPool pool;
      for (const WeightView& w : weights(pool, k, transposed)) {
        const int64_t depth = transposed ? w.cols() : w.rows(), columns = transposed ? w.rows() : w.cols();
        const Tensor values = random(pool, {k.rows, depth}, DType::f32);
        const Int8Rows x = rounded(pool, values);
        Tensor c = Tensor::zeros(pool, {k.rows, columns}, DType::f32);
        cpu::int8_product(x, w, transposed, c, false, nullptr, GetParam());
        const auto levels = static_cast<double>(cpu::int8_kernel(GetParam())->levels);
        for (int64_t n = 0; n < columns; ++n) {
          for (int64_t m = 0; m < k.rows; ++m) {
            double exact = 0, bound = 0, magnitude = 0;
            for (int64_t g = 0; g < x.groups(); ++g) {
              const int64_t begin = g * kInt8Group, end = std::min(depth, begin + kInt8Group);
              float most = 0;
              for (int64_t j = begin; j < end; ++j) {
                most = ref::larger(most, transposed ? ref::bound(w, n, j) : ref::bound(w, j, n));
              }
              const double s = x.scales.data<const float>()[g * k.rows + m], t = most / levels;
              for (int64_t j = begin; j < end; ++j) {
                const double a = values.data<const float>()[m * depth + j];
                const double b = transposed ? ref::element(w, n, j) : ref::element(w, j, n);
                exact += a * b;
                magnitude += std::abs(a * b);
                bound += std::abs(a) * t / 2 + std::abs(b) * s / 2 + s * t / 4;
              }
            }
            // Besides, f32: scales and their inverses, and sums.
            const double floats = std::exp2(-20) * (magnitude + bound);
            ASSERT_LE(std::abs(c.data<float>()[m * columns + n] - exact), bound + floats) << describe(k, transposed);
          }
        }
      }
    }
  }
}

/// Every sixteenth channel of x `factor` times as large, of w as much smaller: the product is what it was.
void plant_outliers(Tensor& x, Tensor& w, bool transposed, float factor) {
  const int64_t depth = x.dim(1);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] *= i % depth % 16 == 0 ? factor : 1;
  for (int64_t i = 0; i < w.numel(); ++i) {
    w.data<float>()[i] /= (transposed ? i % w.dim(1) : i / w.dim(1)) % 16 == 0 ? factor : 1;
  }
}

TEST(Int8Error, EstimatesWhatTheProductErrsBy) {
  if (int8_levels() == 0) GTEST_SKIP() << "this CPU has no products in 8 bits";
  for (const float factor : {1.0f, 5.0f, 20.0f}) {
    for (const bool transposed : {true, false}) {
      MemoryPool pool;
      Tensor x = random(pool, {70, 520}, DType::f32);
      Tensor w = random(pool, transposed ? Shape{400, 520} : Shape{520, 400}, DType::f32, 6);
      plant_outliers(x, w, transposed, factor);
      const double estimate = int8_error(x, w, transposed);
      Tensor in_8_bits = Tensor::zeros(pool, {70, 400}, DType::f32), exact = in_8_bits.clone(pool);
      (transposed ? int8_matmul_nt : int8_matmul_nn)(rounded(pool, x), w, in_8_bits, false, nullptr);
      (transposed ? matmul_nt : matmul_nn)(x, w, exact, false, 1.0f, nullptr);
      double error = 0, size = 0;
      for (int64_t i = 0; i < in_8_bits.numel(); ++i) {
        const double value = exact.data<float>()[i];
        error += std::pow(in_8_bits.data<float>()[i] - value, 2);
        size += value * value;
      }
      const double actual = std::sqrt(error / size);
      EXPECT_NEAR(estimate, actual, 0.2 * actual) << factor << (transposed ? " nt" : " nn");
      EXPECT_EQ(estimate > kInt8MostError, factor >= 20) << factor;
    }
  }
}

TEST(Int8Error, IsThatOfTheReferenceForEveryWeight) {
  if (int8_levels() == 0) GTEST_SKIP() << "this CPU has no products in 8 bits";
  for (const Int8Case& k : kCases) {
    for (const bool transposed : {true, false}) {
      MemoryPool pool;
      for (const WeightView& w : weights(pool, k, transposed)) {
        const int64_t depth = transposed ? w.cols() : w.rows(), levels = int8_levels();
        for (const DType dtype : {DType::f32, DType::bf16}) {
          const Tensor x = random(pool, {k.rows, depth}, dtype);
          const double expected = dtype == DType::f32
                                      ? ref::int8_error(x.data<const float>(), k.rows, w, transposed, levels)
                                      : ref::int8_error(x.data<const bf16>(), k.rows, w, transposed, levels);
          EXPECT_NEAR(int8_error(x, w, transposed), expected, 1e-4 * expected) << describe(k, transposed);
        }
      }
    }
  }
}

TEST(Int8Error, IsNotANumberWhereTheInputIsNot) {
  if (int8_levels() == 0) GTEST_SKIP() << "this CPU has no products in 8 bits";
  MemoryPool pool;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Tensor x = random(pool, {3, 130}, DType::f32);
    x.data<float>()[131] = bad;
    const Tensor w = random(pool, {20, 130}, DType::f32);
    EXPECT_TRUE(std::isnan(int8_error(x, w, true)));
  }
}

TEST_P(Int8AtLevel, GivesTheSameBitsOnOneTwoAndThreeThreads) {
  const int before = threads();
  for (const Int8Case& k : {Int8Case{33, 130, 192}, Int8Case{600, 300, 576}, Int8Case{5, 1000, 4224}}) {
    for (const bool transposed : {true, false}) {
      MemoryPool pool;
      const WeightView w(
          random_matrix(pool, transposed ? k.columns : k.depth, transposed ? k.depth : k.columns, 64, true), "test");
      const Tensor values = random(pool, {k.rows, k.depth}, DType::bf16);
      std::vector<Tensor> results;
      for (const int count : {1, 2, 3}) {
        set_threads(count);
        const Int8Rows x = rounded(pool, values);
        results.push_back(Tensor::zeros(pool, {k.rows, k.columns}, DType::bf16));
        cpu::int8_product(x, w, transposed, results.back(), false, nullptr, GetParam());
      }
      EXPECT_TRUE(same_bytes(results[0], results[1])) << describe(k, transposed);
      EXPECT_TRUE(same_bytes(results[0], results[2])) << describe(k, transposed);
    }
  }
  set_threads(before);
}

INSTANTIATE_TEST_SUITE_P(Levels, Int8AtLevel, testing::ValuesIn(isa_levels().subspan(static_cast<size_t>(kFirst))),
                         [](const auto& level) { return std::string(isa_name(level.param)); });

TEST(Int8, LevelsBelowTheFirstHaveNoKernel) {
  for (const Isa level : isa_levels().first(static_cast<size_t>(kFirst))) EXPECT_EQ(cpu::int8_kernel(level), nullptr);
}

TEST(Int8, RoundsRowsAsTheReference) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t depth : {1, 33, 128, 129, 300, 576}) {
      MemoryPool pool;
      Tensor wide = random(pool, {33, depth}, DType::f32);
      float* at = wide.data<float>();
      at[0] = 1000;
      at[depth] = std::numeric_limits<float>::infinity();
      at[2 * depth] = std::numeric_limits<float>::quiet_NaN();
      for (int64_t k = 0; k < depth; ++k) at[3 * depth + k] = 0;
      for (int64_t k = 0; k < depth; ++k) at[4 * depth + k] = 1e-36f;
      for (int64_t k = 0; k < depth; ++k) at[5 * depth + k] = static_cast<float>(k % 9 - 4) / 8;  // ties
      Tensor x = Tensor::empty(pool, wide.shape(), dtype);
      cast(wide, x);
      const Int8Rows rows = rounded(pool, x);
      const Int8Rows expected(pool, x);
      auto* codes = expected.codes.data<int8_t>();
      auto* scales = expected.scales.data<float>();
      auto* sums = expected.sums.data<int32_t>();
      if (dtype == DType::f32) {
        ref::int8_round(x.data<const float>(), 33, depth, codes, scales, sums);
      } else {
        ref::int8_round(x.data<const bf16>(), 33, depth, codes, scales, sums);
      }
      EXPECT_TRUE(same_bytes(rows.codes, expected.codes)) << depth;
      EXPECT_TRUE(same_bytes(rows.scales, expected.scales)) << depth;
      EXPECT_TRUE(same_bytes(rows.sums, expected.sums)) << depth;
    }
  }
}

TEST(Int8, WhatIsNotFiniteShowsInTheResult) {
  if (int8_levels() == 0) GTEST_SKIP() << "this CPU has no products in 8 bits";
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    MemoryPool pool;
    Tensor x = random(pool, {6, 200}, DType::f32), w = random(pool, {70, 200}, DType::f32);
    x.data<float>()[2 * 200 + 150] = bad;
    w.data<float>()[9 * 200 + 3] = bad;
    Tensor c = Tensor::zeros(pool, {6, 70}, DType::f32);
    int8_matmul_nt(rounded(pool, x), w, c);
    for (int64_t m = 0; m < 6; ++m) {
      for (int64_t n = 0; n < 70; ++n) EXPECT_EQ(std::isfinite(c.data<float>()[m * 70 + n]), m != 2 && n != 9);
    }
  }
}

// The epilogue is the same product in floats as beside a product in floats; it is added before c is rounded.
TEST(Int8, AddsTheEpilogueAndWhatWasThere) {
  if (int8_levels() == 0) GTEST_SKIP() << "this CPU has no products in 8 bits";
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool transposed : {true, false}) {
      for (const int64_t rank : {1, 16, 40}) {
        MemoryPool pool;
        const Tensor x = random(pool, {33, 192}, dtype), left = random(pool, {33, rank}, dtype);
        const WeightView w(random_matrix(pool, transposed ? 130 : 192, transposed ? 192 : 130, 64, true), "test");
        const Tensor right = random(pool, {rank, 130}, DType::f32);
        const LowRankEpilogue epilogue{.left = left, .right = right};
        const Int8Rows rows = rounded(pool, x);
        const auto product = transposed ? int8_matmul_nt : int8_matmul_nn;
        Tensor c = random(pool, {33, 130}, DType::f32), alone = Tensor::zeros(pool, {33, 130}, DType::f32);
        Tensor expected = c.clone(pool);
        product(rows, w, c, true, &epilogue);
        product(rows, w, alone, false, nullptr);
        matmul_nn(left, right, expected, true);
        add(alone, expected);
        for (int64_t i = 0; i < c.numel(); ++i) {
          const float sum = expected.data<float>()[i];
          ASSERT_NEAR(c.data<float>()[i], sum, 1e-5 * (std::abs(alone.data<float>()[i]) + std::abs(sum) + 1)) << rank;
        }
      }
    }
  }
}

}  // namespace
}  // namespace nibble::ops
