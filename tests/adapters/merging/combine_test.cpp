// By hand; what PEFT computes on adapters is held by tests/oracles/combine_peft.py.

#include "nibble/adapters/merging/combine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nibble/core/base/error.h"
#include "nibble/core/ops/gemm.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::Pointwise;

class CombineTest : public ::testing::Test {
 protected:
  Tensor matrix(Shape shape, const std::vector<float>& values) { return Tensor::from<float>(pool, shape, values); }

  /// Rank 1 on a 2 x 2 weight.
  PeftAdapter adapter(const std::vector<float>& a, const std::vector<float>& b, double alpha = 1) {
    PeftAdapter result;
    result.options.r = 1;
    result.options.lora_alpha = alpha;
    result.options.target_modules.names = {"q"};
    result.tensors["m.q.lora_A.weight"] = matrix({1, 2}, a);
    result.tensors["m.q.lora_B.weight"] = matrix({2, 1}, b);
    return result;
  }

  /// The change of m.q with scaling 1.
  std::vector<float> change(const CombinedAdapter& combined) {
    EXPECT_EQ(combined.options.lora_alpha, static_cast<double>(combined.options.r));
    EXPECT_EQ(combined.tensors.size(), 2u);
    Tensor result = Tensor::empty(pool, {2, 2}, DType::f32);
    ops::matmul_nn(combined.tensors[1].second, combined.tensors[0].second, result);
    return {result.span<const float>().begin(), result.span<const float>().end()};
  }

  CombinedAdapter combine(const std::string& method, double density = -1, int64_t rank = 0) {
    CombineOptions options;
    set_combine_method(method, options);
    options.density = density;
    options.rank = rank;
    return combine_adapters({{&x, 2}, {&y, -1}}, options, pool);
  }

  MemoryPool pool;
  PeftAdapter x = adapter({1, -3}, {2, 1}), y = adapter({2, 1}, {-1, 4}, 4);
};

TEST_F(CombineTest, CatIsTheWeightedSumOfTheChanges) {
  // 2 * [2 -6; 1 -3] - 4 * [-2 -1; 8 4]
  const CombinedAdapter result = combine("cat");
  EXPECT_EQ(result.options.r, 2);
  EXPECT_THAT(change(result), ElementsAre(12, -8, -30, -22));
}

TEST_F(CombineTest, SvdOfFullRankIsTheWeightedSumToo) {
  EXPECT_THAT(change(combine("svd", -1, 2)), Pointwise(FloatNear(1e-4f), {12.f, -8.f, -30.f, -22.f}));
}

TEST_F(CombineTest, LinearWeighsBothFactorsByTheRoot) {
  // A = sqrt2 [1 -3] - 2 [2 1], B = sqrt2 [2 1] + 2 [-1 4]
  const float s = std::sqrt(2.0f), a0 = s - 4, a1 = -3 * s - 2, b0 = 2 * s - 2, b1 = s + 8;
  EXPECT_THAT(change(combine("linear")), Pointwise(FloatNear(1e-4f), {b0 * a0, b0 * a1, b1 * a0, b1 * a1}));
}

TEST_F(CombineTest, TiesKeepsTheLargeAndLetsTheMajorityDecide) {
  // A: density 0.5 keeps -3 of x and 2 of y; the signs are (+ from y) and (- from x). B: 2 of x and 4 of y.
  const float s = std::sqrt(2.0f), a0 = -2 * 2, a1 = s * -3, b0 = s * 2, b1 = 2 * 4;
  EXPECT_THAT(change(combine("ties", 0.5)), Pointwise(FloatNear(1e-4f), {b0 * a0, b0 * a1, b1 * a0, b1 * a1}));
}

TEST_F(CombineTest, DareKeepsScaledElementsOrNothing) {
  CombineOptions options;
  set_combine_method("dare_linear", options);
  options.density = 0.5;
  const CombinedAdapter result = combine_adapters({{&x, 1}, {&x, 1}}, options, pool);
  for (const float value : result.tensors[1].second.span<const float>()) {
    EXPECT_EQ(value, std::round(value / 2) * 2) << "each of 2 and 1 is dropped or doubled";
  }
}

TEST_F(CombineTest, RanksThatDifferAreRefusedWhereTheyMustNot) {
  y.options.r = 2;
  EXPECT_THAT(test::error_of<InputError>([&] { combine("cat"); }),
              ::testing::HasSubstr("m.q has rank 1, adapter_config.json says 2"));
  y.tensors["m.q.lora_A.weight"] = matrix({2, 2}, {1, 2, 3, 4});
  y.tensors["m.q.lora_B.weight"] = matrix({2, 2}, {1, 2, 3, 4});
  EXPECT_THROW(combine("linear"), UsageError);
  EXPECT_EQ(combine("cat").options.r, 3);
}

TEST_F(CombineTest, MoreThanPlainLoraIsRefused) {
  y.options.use_dora = true;
  EXPECT_THROW(combine("cat"), UsageError);
  y.options.use_dora = false;
  y.options.modules_to_save = {"lm_head"};
  EXPECT_THROW(combine("cat"), UsageError) << "of which the file lacks the tensor";
  y.options.modules_to_save.clear();
  y.options.trainable_token_indices = {{"", {1}}};
  EXPECT_THROW(combine("cat"), UsageError);
  y.options.trainable_token_indices.clear();
  y.tensors["lm_head.weight"] = matrix({2, 2}, {1, 2, 3, 4});
  EXPECT_THROW(combine("cat"), UsageError);
}

TEST_F(CombineTest, WhatAMethodDoesNotLookAtIsRefused) {
  EXPECT_THROW(combine("cat", -1, 2), UsageError);
  EXPECT_THROW(combine("svd", 0.5, 2), UsageError);
}

TEST_F(CombineTest, ASumThatIsNotFiniteIsRefused) {
  EXPECT_THAT(test::error_of<NumericError>([&] {
                combine_adapters({{&x, 1e90}, {&y, 1}}, {}, pool);
              }),
              ::testing::HasSubstr("m.q: the sum, element 0 of "));
}

TEST_F(CombineTest, ATableBelowALoraStaysUnlessThereAreTwo) {
  const std::string name = "embed.base_layer.weight";
  x.tensors[name] = matrix({3, 1}, {1, 2, 3});
  EXPECT_THAT(combine("cat").tensors.back().second.span<const float>(), ElementsAre(1, 2, 3));
  y.tensors[name] = matrix({3, 1}, {1, 2, 3});
  EXPECT_EQ(combine("cat").tensors.back().first, kPeftPrefix + name);
  y.tensors[name] = matrix({3, 1}, {1, 2, 4});
  EXPECT_THROW(combine("cat"), InputError);
}

TEST_F(CombineTest, TiesNeedsADensityAndUnknownMethodsAreRefused) {
  EXPECT_THROW(combine("ties"), UsageError);
  EXPECT_THROW(combine("dare_linear", 0), UsageError);
  EXPECT_THROW(combine("cat_svd"), UsageError);
  EXPECT_THROW(combine("mean"), UsageError);
}

}  // namespace
}  // namespace nibble
