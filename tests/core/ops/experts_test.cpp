#include "nibble/core/ops/experts.h"

#include <limits>

#include "nibble/core/ops/ref/elementwise.h"
#include "nibble/core/ops/ref/experts.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;
using ops::GroupScore;
using ops::RouterScore;
using ops::Routing;

constexpr int64_t kRoutedTokens = 70, kExperts = 12;

/// One of every kind that a family has.
std::vector<Routing> all_routings() {
  return {
      {.k = 2, .normalize = true},                          // Mixtral
      {.k = 3},                                             // OLMoE
      {.k = 4, .score = RouterScore::chosen_softmax},       // gpt-oss
      {.k = 1, .score = RouterScore::sigmoid},              // Llama 4
      {.k = 3, .groups = 4, .top_groups = 2, .scale = 16},  // DeepSeek V2
      {.k = 4,
       .score = RouterScore::sigmoid,
       .groups = 3,
       .top_groups = 2,
       .group_score = GroupScore::two_best,
       .normalize = true,
       .epsilon = 1e-20f,
       .scale = 2.5f},                                                 // DeepSeek V3
      {.k = 3, .score = RouterScore::sigmoid, .logits_choose = true},  // Kolibri
      {.k = 2, .score = RouterScore::sparse_mixer, .jitter = 0.4f},    // Phi-3.5-MoE
      {.k = 12, .score = RouterScore::sigmoid, .normalize = true, .epsilon = 1e-6f},
  };
}

struct Routed {
  Tensor chosen, weights;
};

Routed route(const Tensor& logits, const Tensor& correction, const Routing& routing) {
  const Shape shape = {logits.dim(0), routing.k};
  Routed result{Tensor::empty(pool(), shape, DType::i32), Tensor::empty(pool(), shape, DType::f32)};
  ops::route(logits, correction, routing, result.chosen, result.weights);
  return result;
}

std::vector<int64_t> row_of(const Tensor& chosen, int64_t t) {
  const int32_t* row = chosen.data<const int32_t>() + t * chosen.dim(1);
  return {row, row + chosen.dim(1)};
}

TEST(Route, ChoosesAndWeighsAsTheReference) {
  const Tensor logits = random_tensor({kRoutedTokens, kExperts}, DType::f32, 1, 2);
  for (const Tensor& correction : {Tensor(), random_tensor({kExperts}, DType::f32, 2, 0.3)}) {
    for (const Routing& routing : all_routings()) {
      const auto [chosen, weights] = route(logits, correction, routing);
      const Values values = values_of(logits), corrections = correction ? values_of(correction) : Values();
      Values expected;
      for (int64_t t = 0; t < kRoutedTokens; ++t) {
        const double* row = values.data() + t * kExperts;
        const auto best = ops::ref::choose(row, correction ? corrections.data() : nullptr, kExperts, routing);
        EXPECT_EQ(row_of(chosen, t), best);
        for (const double weight : ops::ref::router_weights(row, kExperts, best, routing)) expected.push_back(weight);
      }
      expect_close(weights, expected, 1e-6, 1e-9, "weights");
    }
  }
}

TEST(Route, OfEqualScoresTheLowerExpertIsBetter) {
  const Tensor logits = tensor_of({1, 2, 2, 0, 2, 2}, {1, 6}, DType::f32);
  EXPECT_EQ(row_of(route(logits, {}, {.k = 2}).chosen, 0), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(row_of(route(logits, {}, {.k = 1, .groups = 3, .top_groups = 1}).chosen, 0), (std::vector<int64_t>{1}));
}

TEST(Route, TheCorrectionChoosesAndDoesNotWeigh) {
  const Tensor logits = tensor_of({3, 0, 0, 1}, {1, 4}, DType::f32),
               correction = tensor_of({0, 0, 5, 0}, {4}, DType::f32);
  const auto [chosen, weights] = route(logits, correction, {.k = 1, .score = RouterScore::sigmoid});
  EXPECT_EQ(row_of(chosen, 0), (std::vector<int64_t>{2}));
  EXPECT_FLOAT_EQ(weights.data<const float>()[0], 0.5f);
}

TEST(Route, NanIsWorseThanEveryNumberAndReachesTheWeights) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor logits = tensor_of({nan, -1, nan, -2, nan, nan, nan, nan}, {2, 4}, DType::f32);
  const auto [chosen, weights] = route(logits, {}, {.k = 2, .score = RouterScore::sigmoid});
  EXPECT_EQ(row_of(chosen, 0), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(row_of(chosen, 1), (std::vector<int64_t>{0, 1}));
  EXPECT_GE(ops::first_nonfinite(weights), 2);
}

TEST(RouteReference, GradientMatchesFiniteDifferences) {
  for (const Routing& routing : all_routings()) {
    const Values logits = random_values(kExperts, 3, 1.5), dweights = random_values(routing.k, 4);
    const auto chosen = ops::ref::choose(logits.data(), static_cast<const double*>(nullptr), kExperts, routing);
    const Values gradient = ops::ref::router_gradient(dweights.data(), logits.data(), kExperts, chosen, routing);
    expect_gradient(
        [&](const Values& at) { return dot(ops::ref::router_weights(at.data(), kExperts, chosen, routing), dweights); },
        logits, gradient, "logits");
  }
}

TEST(Route, BackwardMatchesTheReference) {
  const Tensor logits = random_tensor({kRoutedTokens, kExperts}, DType::f32, 1, 2);
  for (const Routing& routing : all_routings()) {
    const Tensor chosen = route(logits, {}, routing).chosen;
    const Tensor dweights = random_tensor({kRoutedTokens, routing.k}, DType::f32, 5);
    Tensor dlogits = Tensor::empty(pool(), logits.shape(), DType::f32);
    ops::route_backward(dweights, logits, chosen, routing, dlogits);
    const Values values = values_of(logits), upstream = values_of(dweights);
    Values expected;
    for (int64_t t = 0; t < kRoutedTokens; ++t) {
      for (const double gradient : ops::ref::router_gradient(
               upstream.data() + t * routing.k, values.data() + t * kExperts, kExperts, row_of(chosen, t), routing)) {
        expected.push_back(gradient);
      }
    }
    expect_close(dlogits, expected, 1e-5, 1e-7, "dlogits");
  }
}

TEST(RouterBalance, CountsInWholeNumbersWhatTheReferenceSums) {
  const Tensor logits = random_tensor({kRoutedTokens, kExperts}, DType::f32, 1, 2);
  Tensor sums = Tensor::zeros(pool(), {kExperts}, DType::i64);
  ops::router_balance(logits, sums);
  Values expected(kExperts);
  ops::ref::router_balance(values_of(logits).data(), kRoutedTokens, kExperts, expected.data());
  for (size_t e = 0; e < expected.size(); ++e) {
    EXPECT_NEAR(static_cast<double>(sums.data<const int64_t>()[e]) / ops::kBalanceUnit, expected[e], 1e-6);
  }
  // Rows in two parts, the later first: the same bits.
  Tensor parts = Tensor::zeros(pool(), {kExperts}, DType::i64);
  ops::router_balance(logits.rows(33, kRoutedTokens), parts);
  ops::router_balance(logits.rows(0, 33), parts);
  EXPECT_EQ(std::memcmp(parts.raw(), sums.raw(), sums.bytes()), 0);
}

TEST(RouterBalance, GradientMatchesFiniteDifferences) {
  const Values logits = random_values(2 * kExperts, 6), dsums = random_values(kExperts, 7);
  Values gradient(logits.size());
  ops::ref::router_balance_backward(logits.data(), dsums.data(), 2, kExperts, gradient.data());
  expect_gradient(
      [&](const Values& at) {
        Values sums(kExperts);
        ops::ref::router_balance(at.data(), 2, kExperts, sums.data());
        return dot(sums, dsums);
      },
      logits, gradient, "logits");
  Tensor dlogits = Tensor::zeros(pool(), {2, kExperts}, DType::f32);
  ops::router_balance_backward(tensor_of(logits, {2, kExperts}, DType::f32), tensor_of(dsums, {kExperts}, DType::f32),
                               dlogits);
  expect_close(dlogits, gradient, 1e-5, 1e-7, "dlogits");
}

TEST(ScaleRows, MatchesTheReferenceBothWays) {
  const Shape shape = {37, 29};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor(shape, dtype, 8), dy = random_tensor(shape, dtype, 9);
    const Tensor weights = random_tensor({37, 1}, DType::f32, 10);
    Tensor y = Tensor::empty(pool(), shape, dtype), dx = dy.clone(pool());
    Tensor dweights = Tensor::empty(pool(), {37, 1}, DType::f32);
    ops::scale_rows(x, weights, y);
    ops::scale_rows_backward(dx, x, weights, dx, dweights);
    Values ys(x.numel()), dxs(x.numel()), sums(37);
    ops::ref::scale_rows(values_of(x).data(), values_of(weights).data(), 37, 29, ys.data());
    ops::ref::scale_rows_backward(values_of(dy).data(), values_of(x).data(), values_of(weights).data(), 37, 29,
                                  dxs.data(), sums.data());
    expect_close(y, ys, rounding(dtype, 1e-6), 1e-30, "y");
    expect_close(dx, dxs, rounding(dtype, 1e-6), 1e-30, "dx");
    expect_close(dweights, sums, 1e-5, 1e-6, "dweights");
  }
}

TEST(Experts, SameBitsForAnyThreads) {
  const Tensor logits = random_tensor({300, kExperts}, DType::f32, 1, 2), x = random_tensor({300, 65}, DType::bf16, 2);
  const Tensor dy = random_tensor({300, 65}, DType::bf16, 3), weights = random_tensor({300, 1}, DType::f32, 4);
  expect_same_bits_for_any_threads([&] {
    const Routing routing = {.k = 3, .normalize = true};
    const auto [chosen, of_chosen] = route(logits, {}, routing);
    Tensor dlogits = Tensor::empty(pool(), logits.shape(), DType::f32);
    ops::route_backward(of_chosen, logits, chosen, routing, dlogits);
    Tensor sums = Tensor::zeros(pool(), {kExperts}, DType::i64);
    ops::router_balance(logits, sums);
    Tensor y = Tensor::empty(pool(), x.shape(), DType::bf16), dx = Tensor::empty(pool(), x.shape(), DType::bf16);
    Tensor dweights = Tensor::empty(pool(), {300, 1}, DType::f32);
    ops::scale_rows(x, weights, y);
    ops::scale_rows_backward(dy, x, weights, dx, dweights);
    return std::vector<Tensor>{chosen, of_chosen, dlogits, sums, y, dx, dweights};
  });
}

}  // namespace
}  // namespace nibble
