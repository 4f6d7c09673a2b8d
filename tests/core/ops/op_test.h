#pragma once
// What the tests of ops share: random tensors, comparison with a reference in double, gradients by finite differences,
// and running a test with every compiled version of a kernel.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "nibble/core/base/isa_levels.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/gemm/bf16_products.h"
#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"
#include "nibble/core/ops/cpu/simd_targets.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/tensor/tensor.h"
#include "nibble/tests/random_stream.h"

namespace nibble::test {

using Values = std::vector<double>;

inline MemoryPool& pool() {
  static MemoryPool the_pool;
  return the_pool;
}

/// Tests of a fixture derived from this run once for each version (scalar, SSE4, AVX2, AVX-512; NEON) this CPU can run.
class EverySimd : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    ops::cap_simd_targets();
    hwy::SetSupportedTargetsForTest(GetParam());
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    set_threads(1);
  }
};

/// Found once: Highway asks the CPU, which a virtual machine has to emulate.
inline const std::vector<int64_t>& simd_versions() {
  static const std::vector<int64_t> versions = [] {
    ops::cap_simd_targets();
    const int64_t supported = hwy::SupportedTargets() | HWY_SCALAR;
    std::vector<int64_t> found;
    for (int64_t target : {HWY_AVX3, HWY_AVX2, HWY_SSE4, HWY_NEON, HWY_SCALAR}) {
      if ((supported & HWY_TARGETS & target) != 0) found.push_back(target);
    }
    return found;
  }();
  return versions;
}

#define NIBBLE_EVERY_SIMD(fixture)                                                \
  INSTANTIATE_TEST_SUITE_P(, fixture, ::testing::ValuesIn(test::simd_versions()), \
                           [](const auto& version) { return hwy::TargetName(version.param); })

/// The instruction set levels whose matrix products have a kernel of their own.
inline std::vector<Isa> gemm_levels() {
  const auto kernels = [](Isa level) {
    return std::pair(&ops::cpu::gemm_kernel(level, DType::f32), &ops::cpu::gemm_kernel(level, DType::bf16));
  };
  std::vector<Isa> found;
  for (const Isa level : isa_levels()) {
    if (found.empty() || kernels(level) != kernels(found.back())) found.push_back(level);
  }
  return found;
}

inline Values random_values(int64_t count, uint64_t seed, double spread = 1) {
  test::RandomStream stream(seed, 0, 0);
  Values values(static_cast<size_t>(count));
  for (double& value : values) value = spread * static_cast<double>(stream.next_normal());
  return values;
}

/// The values rounded to `dtype`.
inline Tensor tensor_of(const Values& values, const Shape& shape, DType dtype) {
  Tensor exact = Tensor::empty(pool(), shape, DType::f32), rounded = Tensor::empty(pool(), shape, dtype);
  NIBBLE_CHECK(static_cast<int64_t>(values.size()) == exact.numel(), "number of values");
  for (size_t i = 0; i < values.size(); ++i) exact.data<float>()[i] = static_cast<float>(values[i]);
  ops::cast(exact, rounded);
  return rounded;
}

inline Tensor random_tensor(const Shape& shape, DType dtype, uint64_t seed, double spread = 1) {
  return tensor_of(random_values(element_count(shape), seed, spread), shape, dtype);
}

inline Values values_of(const Tensor& x) {
  Tensor exact = Tensor::empty(pool(), x.shape(), DType::f32);
  ops::cast(x, exact);
  return Values(exact.data<float>(), exact.data<float>() + exact.numel());
}

/// Each element differs from `expected` by at most relative * |expected| + absolute.
inline void expect_close(const Tensor& actual, const Values& expected, double relative, double absolute,
                         const std::string& what) {
  const Values values = values_of(actual);
  ASSERT_EQ(values.size(), expected.size()) << what;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], relative * std::abs(expected[i]) + absolute) << what << " element " << i;
  }
}

/// Half a unit in the last place of bf16, relative: what rounding once costs; f32 sums get `f32` instead.
inline double rounding(DType dtype, double f32) { return dtype == DType::bf16 ? 0x1p-8 + f32 : f32; }

/// gradient = the derivative of f at x, by central differences (f in double: error about step^2 f''' + 1e-16 f / step).
inline void expect_gradient(const std::function<double(const Values&)>& f, const Values& x, const Values& gradient,
                            const std::string& what) {
  ASSERT_EQ(x.size(), gradient.size()) << what;
  const double step = 1e-5;
  Values moved = x;
  for (size_t i = 0; i < x.size(); ++i) {
    moved[i] = x[i] + step;
    const double above = f(moved);
    moved[i] = x[i] - step;
    const double below = f(moved);
    moved[i] = x[i];
    ASSERT_NEAR((above - below) / (2 * step), gradient[i], 1e-7 + 1e-7 * std::abs(gradient[i]))
        << what << " element " << i;
  }
}

inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Products of bf16 are in this arithmetic for as long as it lives.
struct MultipliesBf16 {
  explicit MultipliesBf16(ops::Bf16Products products) { ops::set_bf16_products(products); }
  ~MultipliesBf16() { ops::set_bf16_products(before); }
  const ops::Bf16Products before = ops::bf16_products();
};

/// What run() returns is the same bits with 1, 2 and 3 threads.
inline void expect_same_bits_for_any_threads(const std::function<std::vector<Tensor>()>& run) {
  set_threads(1);
  const std::vector<Tensor> one = run();
  for (int count : {2, 3}) {
    set_threads(count);
    const std::vector<Tensor> many = run();
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(std::memcmp(one[i].raw(), many[i].raw(), one[i].bytes()), 0) << count << " threads, result " << i;
    }
  }
  set_threads(1);
}

}  // namespace nibble::test
