// What only the level amx promises. The tests of products (core/ops) run at it in this program as well.

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/gemm/gemm_packed.h"
#include "nibble/core/ops/cpu/gemm/weight_panels.h"
#include "nibble/recipes/environment/doctor.h"
#include "nibble/tests/amx/software_tiles.h"
#include "nibble/tests/core/ops/four_bit_matrix.h"

namespace nibble::ops {
namespace {

using test::random;

class Amx : public testing::Test {
 protected:
  void SetUp() override {
    if (isa() != Isa::amx) GTEST_SKIP() << "this CPU has no AVX2, or NIBBLE_ISA takes it away";
  }
};

struct Case {
  int64_t rows, columns, depth;
};

/// sum, plus the products of a [rows, depth] and b [columns, depth] in the order of the instruction: 32 depths at a
/// time, those of even and of odd ones apart.
float added(float sum, const bf16* a, int64_t a_stride, const bf16* b, int64_t b_stride, int64_t depth) {
  for (int64_t k0 = 0; k0 < depth; k0 += 32) {
    std::array<float, 2> parts{};
    for (int64_t k = k0; k < std::min(depth, k0 + 32); ++k) {
      float& part = parts[static_cast<size_t>(k % 2)];
      part = std::fma(static_cast<float>(a[k * a_stride]), static_cast<float>(b[k * b_stride]), part);
    }
    sum += parts[0] + parts[1];
  }
  return sum;
}

TEST_F(Amx, EverySumHasTheOrderOfTheInstruction) {
  for (const Case& k : {Case{1, 1, 1}, Case{1, 70, 33}, Case{5, 64, 64}, Case{16, 16, 31}, Case{16, 128, 300},
                        Case{17, 65, 62}, Case{32, 32, 32}, Case{33, 130, 2}, Case{48, 64, 96}, Case{49, 48, 1056},
                        Case{95, 20, 4100}, Case{130, 200, 64}}) {
    for (const auto& [a_transposed, w_transposed] : {std::pair{false, true}, {false, false}, {true, false}}) {
      for (const int64_t rank : {0, 2, 16, 40}) {
        for (const bool accumulate : {false, true}) {
          MemoryPool pool;
          const Tensor a = random(pool, a_transposed ? Shape{k.depth, k.rows} : Shape{k.rows, k.depth}, DType::bf16);
          const Tensor b =
              random(pool, w_transposed ? Shape{k.columns, k.depth} : Shape{k.depth, k.columns}, DType::bf16, 2);
          const Tensor left = random(pool, {k.rows, std::max<int64_t>(rank, 1)}, DType::bf16, 3);
          const Tensor right = random(pool, {std::max<int64_t>(rank, 1), k.columns}, DType::bf16, 4);
          Tensor c = random(pool, {k.rows, k.columns}, DType::f32, 5);
          const Tensor before = c.clone(pool);
          const WeightView w(b), low_w(right);
          const cpu::PackedProduct product{.a = a,
                                           .a_transposed = a_transposed,
                                           .w = w,
                                           .w_transposed = w_transposed,
                                           .c = c,
                                           .accumulate = accumulate};
          const cpu::PackedProduct low{.a = left, .w = low_w, .w_transposed = false, .c = c, .accumulate = true};
          const bool fused = rank > 0 && cpu::gemm_packed_fuses(product, low, isa());
          EXPECT_EQ(fused, rank > 0 && !a_transposed && k.depth % 2 == 0);
          cpu::gemm_packed(product, isa(), fused ? &low : nullptr);
          for (int64_t m = 0; m < k.rows; ++m) {
            for (int64_t n = 0; n < k.columns; ++n) {
              const bf16* row = a.data<const bf16>() + (a_transposed ? m : m * k.depth);
              const bf16* column = b.data<const bf16>() + (w_transposed ? n * k.depth : n);
              float sum = 0;
              // Where A is packed, sums of parts of the depth are added to the result one after another.
              const int64_t part = a_transposed ? cpu::packed_left_depth(cpu::kGemmAmx) : k.depth;
              if (a_transposed && accumulate) sum = before.data<const float>()[m * k.columns + n];
              for (int64_t d = 0; d < k.depth; d += part) {
                const int64_t row_step = a_transposed ? k.rows : 1, column_step = w_transposed ? 1 : k.columns;
                const float of_part = added(0, row + d * row_step, row_step, column + d * column_step, column_step,
                                            std::min(part, k.depth - d));
                sum = d == 0 && !(a_transposed && accumulate) ? of_part : sum + of_part;
              }
              if (fused) {
                sum = added(sum, left.data<const bf16>() + m * rank, 1, right.data<const bf16>() + n, k.columns, rank);
              }
              if (accumulate && !a_transposed) sum += before.data<const float>()[m * k.columns + n];
              ASSERT_EQ(c.data<const float>()[m * k.columns + n], sum)
                  << to_string({k.rows, k.columns, k.depth}) << " rank " << rank << " element " << m << ", " << n;
            }
          }
        }
      }
    }
  }
}

TEST_F(Amx, WeightsIn4BitsGiveTheBitsOfWhatTheyAreExpandedTo) {
  for (const Case& k : {Case{1, 70, 64}, Case{33, 130, 192}, Case{50, 64, 2112}}) {
    for (const bool transposed : {true, false}) {
      MemoryPool pool;
      const WeightView w(
          test::random_matrix(pool, transposed ? k.columns : k.depth, transposed ? k.depth : k.columns, 64, true),
          "test");
      Tensor expanded = Tensor::empty(pool, {w.rows(), w.cols()}, DType::bf16);
      cpu::WeightPanels(w, isa()).fill(0, w.rows(), 0, w.cols(), expanded.data<bf16>(), w.cols());
      const WeightView dense(expanded);
      const Tensor x = random(pool, {k.rows, k.depth}, DType::bf16);
      std::array<Tensor, 2> results;
      for (size_t i = 0; i < 2; ++i) {
        results[i] = Tensor::zeros(pool, {k.rows, k.columns}, DType::f32);
        cpu::gemm_packed({.a = x, .w = i == 0 ? w : dense, .w_transposed = transposed, .c = results[i]}, isa());
      }
      EXPECT_TRUE(test::same_bytes(results[0], results[1])) << to_string({k.rows, k.columns, k.depth});
    }
  }
}

TEST_F(Amx, NoThreadKeepsItsTilesAfterAProduct) {
  const int before = threads();
  set_threads(3);
  MemoryPool pool;
  const Tensor x = random(pool, {200, 256}, DType::bf16), w = random(pool, {600, 256}, DType::bf16, 2);
  Tensor c = Tensor::zeros(pool, {200, 600}, DType::f32);
  matmul_nt(x, w, c);
  set_threads(before);
  if (test::tile_instructions() == 0) GTEST_SKIP() << "this CPU has tiles of its own, which are not counted";
  EXPECT_EQ(test::threads_with_tiles(), 0);
}

TEST_F(Amx, DoctorNamesIt) {
  if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP() << "doctor measures the CPU's own instructions";
  std::string cpu;
  for (const Finding& finding : examine_machine("/tmp", false)) cpu += finding.name == "cpu" ? finding.value : "";
  EXPECT_NE(cpu.find("kernels for amx"), std::string::npos) << cpu;
}

}  // namespace
}  // namespace nibble::ops
