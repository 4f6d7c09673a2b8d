#include "nibble/core/ops/weight_view.h"

#include <sys/resource.h>

#include <cmath>
#include <numeric>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/cpu/gemm/gemm_packed.h"
#include "nibble/core/ops/cpu/gemm/weight_panels.h"
#include "nibble/tests/core/ops/four_bit_matrix.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble::ops {
namespace {

using test::expanded;
using test::random;
using test::random_matrix;
using test::same_bytes;

struct MatrixCase {
  int64_t out, in, block_size;
  bool double_quantized, mxfp4 = false;

  FourBitMatrix make(MemoryPool& pool) const {
    return mxfp4 ? test::random_mxfp4(pool, out, in) : random_matrix(pool, out, in, block_size, double_quantized);
  }
};
constexpr MatrixCase kMatrices[] = {{64, 172, 64, true},    {5, 33, 64, false},         {7, 1, 32, false},
                                    {130, 65, 128, true},   {40, 600, 64, true},        {3, 2100, 4096, false},
                                    {96, 256, 32, true},    {12, 128, 64, true},        {70, 4672, 64, true},
                                    {33, 2240, 128, false}, {64, 160, 32, false, true}, {5, 33, 32, false, true}};

class FourBitAtLevel : public testing::TestWithParam<Isa> {};

TEST_P(FourBitAtLevel, AnyPieceHasTheBitsOfTheReference) {
  if (GetParam() > isa()) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
  for (const MatrixCase& k : kMatrices) {
    MemoryPool pool;
    const FourBitMatrix m = k.make(pool);
    const WeightView view(m, "test");
    const cpu::WeightPanels panels(view, GetParam());
    const int64_t rows[][2] = {{0, k.out}, {k.out / 2, k.out}}, cols[][2] = {{0, k.in}, {k.in / 3, k.in - k.in / 4}};
    for (const auto& row : rows) {
      for (const auto& col : cols) {
        const int64_t width = col[1] - col[0], stride = width + 3;
        std::vector<float> floats(static_cast<size_t>((row[1] - row[0]) * stride), -7.0f);
        std::vector<bf16> halves(floats.size(), bf16(-7.0f));
        panels.fill(row[0], row[1], col[0], col[1], floats.data(), stride);
        panels.fill(row[0], row[1], col[0], col[1], halves.data(), stride);
        for (size_t i = 0; i < floats.size(); ++i) {
          const int64_t r = static_cast<int64_t>(i) / stride, c = static_cast<int64_t>(i) % stride;
          const float expected = c < width ? ref::element(m, row[0] + r, col[0] + c) : -7.0f;
          ASSERT_EQ(std::bit_cast<uint32_t>(floats[i]), std::bit_cast<uint32_t>(expected)) << k.in << " element " << i;
          ASSERT_EQ(halves[i].bits, bf16(expected).bits) << k.in << " element " << i;
        }
      }
    }
  }
}

TEST_P(FourBitAtLevel, AProductIsThatOfTheExpandedMatrixBitForBit) {
  if (GetParam() > isa()) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
  for (const MatrixCase& k : kMatrices) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      MemoryPool pool;
      const FourBitMatrix m = k.make(pool);
      const WeightView packed(m, "test"), dense(expanded(pool, m, dtype));
      for (int64_t tokens : {1, 2, 9, 50}) {
        for (bool forward : {true, false}) {
          const Tensor x = random(pool, {tokens, forward ? k.in : k.out}, dtype);
          Tensor y = Tensor::zeros(pool, {tokens, forward ? k.out : k.in}, dtype), expected = y.clone(pool);
          cpu::gemm_packed({.a = x, .w = packed, .w_transposed = forward, .c = y}, GetParam());
          cpu::gemm_packed({.a = x, .w = dense, .w_transposed = forward, .c = expected}, GetParam());
          ASSERT_TRUE(same_bytes(y, expected)) << k.out << " " << k.in << " " << dtype_name(dtype) << " " << tokens;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, FourBitAtLevel, testing::ValuesIn(test::gemm_levels()),
                         [](const auto& level) { return std::string(isa_name(level.param)); });

/// Levels whose products of a vector read codes.
std::vector<Isa> levels_with_dots() {
  std::vector<Isa> levels;
  for (Isa level : test::gemm_levels()) {
    if (level <= isa() && cpu::four_bit_dots(level)) levels.push_back(level);
  }
  return levels;
}

/// What a product with X takes a code for, without its scale.
template <typename X>
double value_of_dots(const WeightView& view, int code) {
  const auto at = static_cast<size_t>(code);
  if constexpr (std::is_same_v<X, float>) return static_cast<double>(view.four_bit.table[at]);
  const cpu::FourBitDotsTable table = cpu::four_bit_dots_table(view.four_bit.table, view.table_factor);
  return static_cast<double>(static_cast<float>(table.values[at])) * static_cast<double>(table.inverse);
}

template <typename X>
class FourBitDots : public testing::Test {};
using DotsInputs = testing::Types<float, bf16>;
TYPED_TEST_SUITE(FourBitDots, DotsInputs);

TYPED_TEST(FourBitDots, MultiplyTheTablesValuesByTheScales) {
  if (levels_with_dots().empty()) GTEST_SKIP() << "this CPU has no such products";
  for (const MatrixCase& k : {MatrixCase{5, 64, 64, true}, MatrixCase{3, 192, 64, false}, MatrixCase{3, 192, 128, true},
                              MatrixCase{2, 4096 + 64, 64, true}, MatrixCase{9, 9024, 4096, true},
                              MatrixCase{6, cpu::kFourBitDotsDepth + 320, 64, true}}) {
    MemoryPool pool;
    const FourBitMatrix m = k.make(pool);
    const Tensor x = random(pool, {1, k.in}, dtype_of<TypeParam>::value);
    const WeightView view(m, "test");
    for (Isa level : levels_with_dots()) {
      std::vector<float> y(static_cast<size_t>(k.out) - 1);
      ASSERT_TRUE(cpu::WeightPanels(view, level).dots(1, k.out, x.data<const TypeParam>(), y.data()));
      for (int64_t row = 1; row < k.out; ++row) {
        double expected = 0;
        for (int64_t i = row * k.in; i < (row + 1) * k.in; ++i) {
          const uint8_t byte = m.packed.data<const uint8_t>()[i / 2];
          expected += static_cast<double>(static_cast<float>(x.data<const TypeParam>()[i - row * k.in])) *
                      value_of_dots<TypeParam>(view, i % 2 == 0 ? byte >> 4 : byte & 15) *
                      static_cast<double>(ref::block_scale(m, i / m.block_size));
        }
        EXPECT_NEAR(y[static_cast<size_t>(row - 1)], expected, 1e-5)
            << isa_name(level) << " " << k.in << " row " << row;
      }
    }
  }
  MemoryPool pool;
  float y[4];
  const TypeParam x[96] = {};
  for (const FourBitMatrix& m :
       {random_matrix(pool, 4, 96, 64, true), random_matrix(pool, 4, 64, 32, true), test::random_mxfp4(pool, 4, 64)}) {
    EXPECT_FALSE(cpu::WeightPanels(WeightView(m, "test"), isa()).dots(0, 4, x, y));
  }
}

TYPED_TEST(FourBitDots, AreCloserToTheMatrixThanItsWeightsInBf16) {
  if (levels_with_dots().empty()) GTEST_SKIP() << "this CPU has no such products";
  MemoryPool pool;
  constexpr int64_t kOut = 256, kIn = 1024;
  const FourBitMatrix m = random_matrix(pool, kOut, kIn, 64, true);
  const Tensor x = random(pool, {1, kIn}, dtype_of<TypeParam>::value);
  const Tensor exact = expanded(pool, m, DType::f32), rounded = expanded(pool, m, DType::bf16);
  const WeightView view(m, "test");
  for (Isa level : levels_with_dots()) {
    std::vector<float> y(kOut);
    ASSERT_TRUE(cpu::WeightPanels(view, level).dots(0, kOut, x.data<const TypeParam>(), y.data()));
    double of_dots = 0, of_rounded = 0;
    for (int64_t row = 0; row < kOut; ++row) {
      double exact_dot = 0, rounded_dot = 0;
      for (int64_t i = 0; i < kIn; ++i) {
        const double of_x = static_cast<double>(static_cast<float>(x.data<const TypeParam>()[i]));
        exact_dot += of_x * static_cast<double>(exact.data<const float>()[row * kIn + i]);
        rounded_dot += of_x * static_cast<double>(static_cast<float>(rounded.data<const bf16>()[row * kIn + i]));
      }
      of_dots += std::pow(static_cast<double>(y[static_cast<size_t>(row)]) - exact_dot, 2);
      of_rounded += std::pow(rounded_dot - exact_dot, 2);
    }
    EXPECT_LT(of_dots, (std::is_same_v<TypeParam, float> ? 1e-7 : 0.5) * of_rounded) << isa_name(level);
  }
}

TEST(WeightView, NoProductExpandsMoreThanASmallPieceAtOnce) {
  const auto most_resident = [] {  // bytes
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss * 1024;
  };
  MemoryPool pool;
  const int64_t out = 2048, in = 8192;
  const WeightView w(random_matrix(pool, out, in, 64, true), "test");
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t tokens : {1, 3, 20}) {
      const Tensor x = random(pool, {tokens, in}, dtype), dy = random(pool, {tokens, out}, dtype);
      Tensor y = Tensor::zeros(pool, {tokens, out}, DType::f32), dx = Tensor::zeros(pool, {tokens, in}, DType::f32);
      const size_t in_use = pool.in_use();
      const int64_t before = most_resident();
      pool.reset_peak();
      matmul_nt(x, w, y);
      matmul_nn(dy, w, dx);
      EXPECT_EQ(pool.peak(), in_use);
      EXPECT_LT(most_resident() - before, out * in / 2) << tokens << " tokens";  // expanded it has 4 or 8 times as much
    }
  }
}

TEST(WeightView, ASliceHasTheRowsOfTheWhole) {
  MemoryPool pool;
  for (const MatrixCase& k : kMatrices) {
    const FourBitMatrix m = k.make(pool);
    const int64_t begin = k.out / 3, end = k.out - k.out / 4;
    const Tensor rows = expanded(pool, m, DType::f32).rows(begin, end);
    for (const WeightView& whole : {WeightView(m, "test"), WeightView(expanded(pool, m, DType::f32))}) {
      const WeightView slice = whole.slice_rows(begin / 2, end).slice_rows(begin - begin / 2, end - begin / 2);
      Tensor dequantized = Tensor::empty(pool, {slice.rows(), slice.cols()}, DType::f32);
      dequantize(slice, dequantized);
      EXPECT_TRUE(same_bytes(dequantized, rows)) << k.out << " " << k.in;
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (int64_t tokens : {1, 50}) {
          const Tensor x = random(pool, {tokens, k.in}, dtype);
          Tensor all = Tensor::empty(pool, {tokens, k.out}, DType::f32),
                 y = Tensor::empty(pool, {tokens, slice.rows()}, DType::f32);
          Tensor expected = y.clone(pool);
          matmul_nt(x, whole, all);
          matmul_nt(x, slice, y);
          copy_columns_out(all, begin, expected);
          EXPECT_TRUE(same_bytes(y, expected)) << k.out << " " << k.in << " " << tokens << " tokens";
        }
      }
    }
  }
}

TEST(WeightView, BlockScalesAreThoseOfTheReference) {
  MemoryPool pool;
  for (const MatrixCase& k : kMatrices) {
    const FourBitMatrix m = k.make(pool);
    Tensor scales = Tensor::empty(pool, {m.blocks()}, DType::f32);
    block_scales(m, scales);
    for (int64_t b = 0; b < m.blocks(); ++b) EXPECT_EQ(scales.data<const float>()[b], ref::block_scale(m, b)) << b;
  }
  FourBitMatrix m = test::random_mxfp4(pool, 8, 1024);
  std::vector<uint8_t> every(256);
  std::iota(every.begin(), every.end(), uint8_t{0});
  m.exponents = Tensor::from<uint8_t>(pool, {256}, every);
  Tensor scales = Tensor::empty(pool, {256}, DType::f32);
  block_scales(m, scales);
  for (int64_t b = 0; b < 256; ++b) EXPECT_EQ(scales.data<const float>()[b], ref::block_scale(m, b)) << b;
}

}  // namespace
}  // namespace nibble::ops
