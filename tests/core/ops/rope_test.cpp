#include "nibble/core/ops/rope.h"

#include "nibble/core/ops/ref/rope.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

class RopeTest : public EverySimd {};
NIBBLE_EVERY_SIMD(RopeTest);

struct Tables {
  Tensor positions, cos, sin;
};

Tables tables(int64_t tokens, int64_t half) {
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < tokens; ++t) positions.push_back(static_cast<int32_t>(t * 7 % 50));
  Values cosines, sines;
  for (int64_t p = 0; p < 50; ++p) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(p) * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
  }
  return {Tensor::from<int32_t>(pool(), {tokens}, positions), tensor_of(cosines, {50, half}, DType::f32),
          tensor_of(sines, {50, half}, DType::f32)};
}

// Two products and a sum: three roundings.
TEST_P(RopeTest, MatchesReferenceForWholeAndPartialRotation) {
  const std::pair<int64_t, int64_t> sizes[] = {{8, 8}, {20, 20}, {64, 64}, {64, 16}, {96, 96}, {80, 32}, {128, 128}};
  for (const auto& [head_size, rot] : sizes) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (int variant = 0; variant < 4; ++variant) {
        const bool inverse = variant % 2 != 0;
        const ops::RopePairs pairs = variant < 2 ? ops::RopePairs::halves : ops::RopePairs::neighbours;
        const int64_t tokens = 21, heads = 3;
        const Tables at = tables(tokens, rot / 2);
        Tensor x = random_tensor({tokens, heads * head_size}, dtype, 1);
        Values expected = values_of(x);
        ops::rope(x, heads, at.positions, at.cos, at.sin, inverse, pairs);
        ops::ref::rope(expected.data(), tokens, heads, head_size, rot, at.positions.data<const int32_t>(),
                       values_of(at.cos).data(), values_of(at.sin).data(), inverse, pairs);
        expect_close(x, expected, rounding(dtype, 1e-6), 1e-6, "x");
      }
    }
  }
}

TEST_P(RopeTest, BeginsBehindTheElementsThatAreNotRotated) {
  for (const ops::RopePairs pairs : {ops::RopePairs::halves, ops::RopePairs::neighbours}) {
    const Tables at = tables(9, 4);
    Tensor x = random_tensor({9, 2 * 20}, DType::f32, 1);
    Values expected = values_of(x);
    ops::rope(x, 2, at.positions, at.cos, at.sin, false, pairs, 12);
    ops::ref::rope(expected.data(), 9, 2, 20, 8, at.positions.data<const int32_t>(), values_of(at.cos).data(),
                   values_of(at.sin).data(), false, pairs, 12);
    expect_close(x, expected, 1e-6, 1e-6, "x");
  }
}

TEST_P(RopeTest, InverseIsTheTransposeSoItIsTheGradient) {
  const int64_t tokens = 6, heads = 2, head_size = 20;
  const Tables at = tables(tokens, head_size / 2);
  Tensor x = random_tensor({tokens, heads * head_size}, DType::f32, 1), g = random_tensor(x.shape(), DType::f32, 2);
  const Values before = values_of(x), g_before = values_of(g);
  ops::rope(x, heads, at.positions, at.cos, at.sin, false);
  ops::rope(g, heads, at.positions, at.cos, at.sin, true);
  EXPECT_NEAR(dot(values_of(x), g_before), dot(before, values_of(g)), 1e-4);  // <R x, g> = <x, R^T g>
}

TEST(Rope, PositionPastTheTableIsRefused) {
  const Tables at = tables(1, 4);
  Tensor x = random_tensor({1, 8}, DType::f32, 1);
  const Tensor far = Tensor::from<int32_t>(pool(), {1}, std::vector<int32_t>{50});
  EXPECT_THROW(ops::rope(x, 1, far, at.cos, at.sin, false), std::logic_error);
}

}  // namespace
}  // namespace nibble
