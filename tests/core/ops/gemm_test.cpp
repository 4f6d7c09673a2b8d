#include "nibble/core/ops/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/gemm/gemm_openblas.h"
#include "nibble/core/ops/ref/gemm.h"
#include "nibble/tests/core/ops/op_test.h"
#include "nibble/tests/random_stream.h"

namespace nibble::ops {
namespace {

enum class Form { nt, nn, tn };

struct ProductCase {
  Form form;
  DType a, b, c;
  int64_t rows, columns, depth;
  bool accumulate = false;
  float alpha = 1.0f;
};

std::string describe(const ProductCase& k) {
  return std::string(k.form == Form::nt   ? "nt "
                     : k.form == Form::nn ? "nn "
                                          : "tn ") +
         std::string(dtype_name(k.a)) + " " + std::string(dtype_name(k.b)) + " " + std::string(dtype_name(k.c)) + " " +
         to_string({k.rows, k.columns, k.depth}) + (k.accumulate ? " accumulate" : "") + " alpha " +
         std::to_string(k.alpha);
}

Tensor random_operand(MemoryPool& pool, Shape shape, DType dtype, uint64_t index) {
  test::RandomStream stream(7, 1, index);
  Tensor built = Tensor::empty(pool, std::move(shape), dtype);
  const auto fill = [&](auto elements) {
    for (auto& element : elements) element = std::decay_t<decltype(element)>(stream.next_uniform() * 2 - 1);
  };
  if (dtype == DType::f32) fill(built.span<float>());
  if (dtype == DType::bf16) fill(built.span<bf16>());
  if (dtype == DType::f16) fill(built.span<f16>());
  return built;
}

/// As doubles; what the product multiplies when it computes in bf16: rounded to bf16 first.
std::vector<double> values(const Tensor& x, bool rounded_to_bf16 = false) {
  std::vector<double> built;
  built.reserve(static_cast<size_t>(x.numel()));
  const auto read = [&](auto elements) {
    for (const auto element : elements) {
      const auto value = static_cast<float>(element);
      built.push_back(rounded_to_bf16 ? static_cast<float>(bf16(value)) : value);
    }
  };
  if (x.dtype() == DType::f32) read(x.span<const float>());
  if (x.dtype() == DType::bf16) read(x.span<const bf16>());
  if (x.dtype() == DType::f16) read(x.span<const f16>());
  return built;
}

struct Operands {
  MemoryPool pool;
  Tensor a, b, c;

  explicit Operands(const ProductCase& k) {
    a = random_operand(pool, k.form == Form::tn ? Shape{k.depth, k.rows} : Shape{k.rows, k.depth}, k.a, 1);
    b = random_operand(pool, k.form == Form::nt ? Shape{k.columns, k.depth} : Shape{k.depth, k.columns}, k.b, 2);
    c = random_operand(pool, {k.rows, k.columns}, k.c, 3);
  }
  /// The same operands, which those of `other` are, and a result of its own.
  Operands(const Operands& other) : a(other.a), b(other.b), c(other.c.clone(pool)) {}
};

cpu::PackedProduct product_of(const ProductCase& k, Operands& x, const WeightView& w) {
  return {.a = x.a,
          .a_transposed = k.form == Form::tn,
          .w = w,
          .w_transposed = k.form == Form::nt,
          .c = x.c,
          .accumulate = k.accumulate,
          .alpha = k.alpha};
}

/// The product by our kernel of `level`.
void multiply(const ProductCase& k, Operands& x, Isa level) {
  const WeightView w(x.b);
  const cpu::PackedProduct product = product_of(k, x, w);
  if (cpu::few_rows_fit(product, level)) {
    cpu::gemm_few_rows(product, level);
  } else if (cpu::thin_fits(product, level)) {
    cpu::gemm_thin(product, level);
  } else if (cpu::swapped_fits(product, level)) {
    cpu::gemm_swapped(product, level);
  } else {
    cpu::gemm_packed(product, level);
  }
}

void multiply(const ProductCase& k, Operands& x) {
  if (k.form == Form::nt) matmul_nt(x.a, x.b, x.c, k.accumulate, k.alpha);
  if (k.form == Form::nn) matmul_nn(x.a, x.b, x.c, k.accumulate, k.alpha);
  if (k.form == Form::tn) matmul_tn(x.a, x.b, x.c, k.accumulate, k.alpha);
}

/// |result - reference| is bounded by the rounding of K sums, sqrt(K) 2^-24 sum |a||b| (the probabilistic bound of
/// Higham and Mary 2019; the mean of |a||b| is 1/4 here), and of the result.
void expect_equal_to_reference(const ProductCase& k, const Operands& before, const Tensor& result) {
  std::vector<double> expected = values(before.c);
  ref::matmul(values(before.a).data(), k.form == Form::tn, values(before.b, k.a == DType::bf16).data(),
              k.form == Form::nt, k.rows, k.columns, k.depth, static_cast<double>(k.alpha), k.accumulate,
              expected.data());
  const std::vector<double> actual = values(result);
  const auto depth = static_cast<double>(k.depth);
  const double sum_error = std::sqrt(depth) * std::exp2(-24) * (depth / 4 + 1) * std::abs(k.alpha) + 1e-7;
  const double rounding = k.c == DType::bf16 ? 1.0 / 256 : 2e-7;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], sum_error + rounding * std::abs(expected[i]))
        << describe(k) << " element " << i;
  }
}

std::vector<ProductCase> product_cases() {
  const std::vector<std::vector<int64_t>> sizes = {
      {1, 1, 1},    {1, 70, 33},   {2, 3, 5},    {5, 64, 64},  {7, 65, 129},    {13, 130, 16}, {49, 16, 300},
      {50, 150, 3}, {3, 17, 1100}, {2, 9, 2100}, {96, 8, 257}, {20, 100, 1026}, {530, 70, 40}, {6, 40, 2101}};
  const std::vector<std::vector<DType>> dtypes = {
      {DType::f32, DType::f32, DType::f32},   {DType::bf16, DType::bf16, DType::bf16},
      {DType::bf16, DType::bf16, DType::f32}, {DType::f32, DType::f16, DType::bf16},
      {DType::f32, DType::bf16, DType::f32},  {DType::bf16, DType::f32, DType::f32},
      {DType::bf16, DType::f16, DType::bf16}};
  std::vector<ProductCase> built;
  for (Form form : {Form::nt, Form::nn, Form::tn}) {
    for (const auto& size : sizes) {
      for (const auto& dtype : dtypes) {
        if (form == Form::tn && dtype[2] != DType::f32) continue;
        built.push_back({form, dtype[0], dtype[1], dtype[2], size[0], size[1], size[2]});
        built.push_back({form, dtype[0], dtype[1], dtype[2], size[0], size[1], size[2], true, -0.25f});
      }
    }
  }
  return built;
}

class GemmAtLevel : public testing::TestWithParam<Isa> {};

TEST_P(GemmAtLevel, EveryFormEqualsTheReference) {
  if (GetParam() > isa()) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
  for (const ProductCase& k : product_cases()) {
    const Operands before(k);
    Operands x = before;
    multiply(k, x, GetParam());
    expect_equal_to_reference(k, before, x.c);
    if (HasFatalFailure()) return;
  }
}

TEST_P(GemmAtLevel, GivesTheSameBitsOnOneTwoAndThreeThreads) {
  if (GetParam() > isa()) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
  const int before = threads();
  for (const ProductCase& k : product_cases()) {
    const Operands untouched(k);
    std::vector<std::vector<double>> results;
    for (int count : {1, 2, 3}) {
      set_threads(count);
      Operands x = untouched;
      multiply(k, x, GetParam());
      results.push_back(values(x.c));
    }
    ASSERT_EQ(results[0], results[1]) << describe(k);
    ASSERT_EQ(results[0], results[2]) << describe(k);
  }
  set_threads(before);
}

INSTANTIATE_TEST_SUITE_P(Levels, GemmAtLevel, testing::ValuesIn(test::gemm_levels()),
                         [](const auto& level) { return std::string(isa_name(level.param)); });

TEST(GemmOpenBlas, EveryFormItHasEqualsTheReference) {
  int64_t multiplied = 0;
  for (const ProductCase& k : product_cases()) {
    const Operands before(k);
    Operands x = before;
    const WeightView w(x.b);
    if (!cpu::gemm_openblas(product_of(k, x, w))) continue;
    ++multiplied;
    expect_equal_to_reference(k, before, x.c);
    if (HasFatalFailure()) return;
  }
  EXPECT_GE(multiplied, 14 * 3 * 2);  // at least all in f32
}

TEST(Gemm, EveryFormEqualsTheReference) {
  for (const ProductCase& k : product_cases()) {
    const Operands before(k);
    Operands x = before;
    multiply(k, x);
    expect_equal_to_reference(k, before, x.c);
    if (HasFatalFailure()) return;
  }
}

TEST(Gemm, GivesTheSameBitsOnOneTwoAndThreeThreads) {
  const int before = threads();
  for (const ProductCase& k : product_cases()) {
    const Operands untouched(k);
    std::vector<std::vector<double>> results;
    for (int count : {1, 2, 3}) {
      set_threads(count);
      Operands x = untouched;
      multiply(k, x);
      results.push_back(values(x.c));
    }
    ASSERT_EQ(results[0], results[1]) << describe(k);
    ASSERT_EQ(results[0], results[2]) << describe(k);
  }
  set_threads(before);
}

TEST(Gemm, ProductsOfBf16InTheArithmeticOfF32EqualTheReferenceForAnyNumberOfThreads) {
  const test::MultipliesBf16 in_floats(Bf16Products::f32);
  const int before_test = threads();
  for (const ProductCase& k : product_cases()) {
    if (k.a != DType::bf16) continue;
    const Operands before(k);
    std::vector<std::vector<double>> results;
    for (const int count : {1, 3}) {
      set_threads(count);
      Operands x = before;
      multiply(k, x);
      if (results.empty()) expect_equal_to_reference(k, before, x.c);
      results.push_back(values(x.c));
      if (HasFatalFailure()) return;
    }
    ASSERT_EQ(results[0], results[1]) << describe(k);
  }
  set_threads(before_test);
}

// What is widened is what f32 tensors of the same values hold, multiplied in the same order.
TEST(Gemm, ProductsOfBf16InTheArithmeticOfF32HaveTheBitsOfF32Tensors) {
  for (const Form form : {Form::nt, Form::nn, Form::tn}) {
    ProductCase narrow{form, DType::bf16, DType::bf16, DType::f32, 150, 200, 1030}, wide = narrow;
    wide.a = wide.b = DType::f32;
    Operands x(narrow), y(wide);
    for (int64_t i = 0; i < x.a.numel(); ++i) y.a.data<float>()[i] = static_cast<float>(x.a.data<bf16>()[i]);
    for (int64_t i = 0; i < x.b.numel(); ++i) y.b.data<float>()[i] = static_cast<float>(x.b.data<bf16>()[i]);
    multiply(wide, y);
    const test::MultipliesBf16 in_floats(Bf16Products::f32);
    multiply(narrow, x);
    EXPECT_EQ(values(x.c), values(y.c)) << describe(narrow);
  }
}

TEST(Gemm, AProductCutIntoUnevenJobsHasTheSameBitsForAnyNumberOfThreads) {
  const int before = threads();
  const auto case_of = [](Form form, DType dtype, int64_t rows, int64_t columns) {
    return ProductCase{form, dtype, dtype, DType::f32, rows, columns, 1030};
  };
  // A left side that is packed: more rows than at once, more columns than a panel; as many rows as the buffers hold;
  // sums of bf16 in two chunks of columns.
  for (const ProductCase& k : {case_of(Form::nt, DType::bf16, 131, 200), case_of(Form::nn, DType::bf16, 131, 200),
                               case_of(Form::tn, DType::bf16, 310, 600), case_of(Form::tn, DType::f32, 310, 600),
                               case_of(Form::tn, DType::bf16, 678, 700),
                               ProductCase{Form::nn, DType::bf16, DType::bf16, DType::bf16, 5, 3100, 1031}}) {
    const Operands untouched(k);
    std::vector<std::vector<double>> results;
    for (const int count : {1, 2, 3, 5, 8, 48}) {
      set_threads(count);
      Operands x = untouched;
      multiply(k, x);
      if (results.empty()) expect_equal_to_reference(k, untouched, x.c);
      results.push_back(values(x.c));
      EXPECT_EQ(results.front(), results.back()) << count << " threads";
    }
  }
  set_threads(before);
}

/// An epilogue of rank `rank` for a product in the form of `k`; its right side is f32.
struct Epilogue {
  ProductCase narrow;
  Operands operands;
  LowRankEpilogue factors;

  Epilogue(const ProductCase& k, int64_t rank)
      : narrow{k.form, k.a, DType::f32, k.c, k.rows, k.columns, rank, true},
        operands(narrow),
        factors{operands.a, operands.b, k.form == Form::nt} {}
};

void expect_epilogues_are_added() {
  const int before_test = threads();
  for (const ProductCase& k : product_cases()) {
    if (k.form == Form::tn || k.alpha != 1) continue;
    const Operands before(k);
    const auto add = [](const ProductCase& c, const Operands& x, std::vector<double>& sums) {
      ref::matmul(values(x.a).data(), false, values(x.b, c.a == DType::bf16).data(), c.form == Form::nt, c.rows,
                  c.columns, c.depth, 1.0, c.accumulate, sums.data());
    };
    std::vector<double> product(static_cast<size_t>(before.c.numel()));
    add(k, before, product);
    for (const int64_t rank : {1, 2, 16, 40}) {
      for (const bool accumulate : {false, true}) {
        const Epilogue epilogue(k, rank);
        std::vector<std::vector<double>> results;
        for (const int count : {1, 3}) {
          set_threads(count);
          Operands x = before;
          if (k.form == Form::nt) matmul_nt(x.a, x.b, x.c, accumulate, 1.0f, &epilogue.factors);
          if (k.form == Form::nn) matmul_nn(x.a, x.b, x.c, accumulate, 1.0f, &epilogue.factors);
          results.push_back(values(x.c));
        }
        ASSERT_EQ(results[0], results[1]) << describe(k) << " rank " << rank;

        std::vector<double> expected = product;
        if (accumulate) {
          const std::vector<double> there = values(before.c);
          for (size_t i = 0; i < expected.size(); ++i) expected[i] += there[i];
        }
        add(epilogue.narrow, epilogue.operands, expected);
        const auto depth = static_cast<double>(k.depth + rank);
        const double sum_error = std::sqrt(depth) * std::exp2(-24) * (depth / 4 + 1) + 1e-7;
        // Where the two cannot be computed at once, what the wider one gives is rounded as well.
        const double rounding = k.c == DType::bf16 ? 1.0 / 256 : 2e-7;
        for (size_t i = 0; i < expected.size(); ++i) {
          const double between = rounding * (std::abs(expected[i]) + static_cast<double>(rank));
          ASSERT_NEAR(results[0][i], expected[i], sum_error + between + rounding * std::abs(expected[i]))
              << describe(k) << " rank " << rank << (accumulate ? " accumulate" : "") << " element " << i;
        }
      }
    }
  }
  set_threads(before_test);
}

TEST(Gemm, ALowRankEpilogueIsAddedToTheProduct) { expect_epilogues_are_added(); }

TEST(Gemm, ALowRankEpilogueIsAddedToTheProductOfBf16InTheArithmeticOfF32) {
  const test::MultipliesBf16 in_floats(Bf16Products::f32);
  expect_epilogues_are_added();
}

TEST(Gemm, AThinProductGivesTheBitsOfAPackedOne) {
  int64_t thin = 0, kernels = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const cpu::GemmKernel& kernel = cpu::gemm_kernel(isa(), dtype);
    if (kernel.multiply_thin == nullptr || kernel.compute != dtype) continue;
    ++kernels;
    for (const auto& [rows, columns] :
         {std::pair{16, 333}, {333, 16}, {1, 5}, {9, 64}, {64, 9}, {64, 257}, {257, 40}, {8, 32}}) {
      for (const int64_t depth : {1, 2, 127, 1024, 2101}) {
        for (const bool accumulate : {false, true}) {
          const ProductCase k = {Form::tn, dtype, dtype, DType::f32, rows, columns, depth, accumulate, 0.3f};
          Operands x(k), y = x;
          const WeightView w(x.b), v(y.b);
          if (!cpu::thin_fits(product_of(k, x, w), isa())) continue;
          ++thin;
          cpu::gemm_thin(product_of(k, x, w), isa());
          cpu::gemm_packed(product_of(k, y, v), isa());
          ASSERT_EQ(values(x.c), values(y.c)) << describe(k);
        }
      }
    }
  }
  if (kernels == 0) GTEST_SKIP() << "this CPU has no thin products";
  EXPECT_EQ(thin, kernels * 8 * 5 * 2);
}

TEST_P(GemmAtLevel, ASwappedProductGivesTheBitsOfAPackedOne) {
  if (GetParam() > isa()) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
  int64_t swapped = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [rows, columns] :
         {std::pair{1, 17}, {5, 64}, {33, 70}, {64, 201}, {65, 130}, {128, 263}, {150, 310}}) {
      for (const int64_t depth : {4, 36, 516, 2100, 4200}) {
        const Operands sides({Form::nt, dtype, dtype, DType::f32, rows, columns, depth});
        for (const int64_t rank : {0, 4, 40}) {
          const ProductCase k = {Form::nt,
                                 dtype,
                                 dtype,
                                 rank == 4 ? DType::bf16 : DType::f32,
                                 rows,
                                 columns,
                                 depth,
                                 rank == 40,
                                 rank > 0 ? 1.0f : 0.3f};
          Operands x = sides;
          if (k.c != DType::f32) x.c = random_operand(x.pool, {rows, columns}, k.c, 3);
          Operands y = x;
          const WeightView w(x.b), v(y.b);
          const cpu::PackedProduct one = product_of(k, x, w), other = product_of(k, y, v);
          const Operands low({Form::nt, dtype, DType::f32, k.c, rows, columns, std::max<int64_t>(rank, 1)});
          const WeightView right(low.b);
          const auto epilogue_of = [&](Tensor& c) { return cpu::PackedProduct{.a = low.a, .w = right, .c = c}; };
          const cpu::PackedProduct first = epilogue_of(x.c), second = epilogue_of(y.c);
          const cpu::PackedProduct *fused = rank > 0 ? &first : nullptr, *packed = rank > 0 ? &second : nullptr;
          if (!cpu::swapped_fits(one, GetParam(), fused)) continue;
          if (fused && !cpu::gemm_packed_fuses(one, first, GetParam())) continue;
          ++swapped;
          cpu::gemm_swapped(one, GetParam(), fused);
          cpu::gemm_packed(other, GetParam(), packed);
          ASSERT_EQ(values(x.c), values(y.c)) << describe(k) << " rank " << rank;
        }
      }
    }
  }
  EXPECT_GE(swapped, 60);
}

TEST(Gemm, AnEmptySumIsZeroOrLeavesTheResult) {
  Operands x({Form::nt, DType::f32, DType::f32, DType::f32, 2, 3, 0});
  const std::vector<double> before = values(x.c);
  matmul_nt(x.a, x.b, x.c, true);
  EXPECT_EQ(values(x.c), before);
  matmul_nt(x.a, x.b, x.c, false);
  EXPECT_EQ(values(x.c), std::vector<double>(6, 0.0));
}

TEST(Gemm, NaNInOneRowStaysInThatRow) {
  Operands x({Form::nt, DType::bf16, DType::bf16, DType::f32, 7, 65, 129});
  x.a.data<bf16>()[3 * 129 + 128] = bf16(NAN);
  matmul_nt(x.a, x.b, x.c);
  for (int64_t i = 0; i < x.c.numel(); ++i) EXPECT_EQ(std::isnan(x.c.data<float>()[i]), i / 65 == 3) << i;
}

TEST(Gemm, RefusesSizesThatDoNotFit) {
  Operands x({Form::nt, DType::f32, DType::f32, DType::f32, 2, 3, 4});
  EXPECT_THROW(matmul_nn(x.a, x.b, x.c), std::logic_error);
}

}  // namespace
}  // namespace nibble::ops
