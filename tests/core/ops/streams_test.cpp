#include "nibble/core/ops/residual.h"

#include "nibble/core/ops/activation.h"
#include "nibble/core/ops/ref/activation.h"
#include "nibble/core/ops/ref/streams.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

class StreamsTest : public EverySimd {};
NIBBLE_EVERY_SIMD(StreamsTest);

TEST_P(StreamsTest, MixIsItsReferenceForwardAndBackward) {
  const int64_t tokens = 19, width = 37;
  const std::vector<std::pair<int64_t, int64_t>> kinds = {{4, 4}, {1, 3}, {2, 1}};
  for (const auto& [from, to] : kinds) {
    const Tensor x = random_tensor({from * tokens, width}, DType::f32, 1),
                 c = random_tensor({tokens, to * from}, DType::f32, 2);
    const Tensor dy = random_tensor({to * tokens, width}, DType::f32, 3);
    Tensor y = random_tensor(dy.shape(), DType::f32, 4), dx = random_tensor(x.shape(), DType::f32, 5);
    Tensor dc = Tensor::empty(pool(), c.shape(), DType::f32);
    Values sums = values_of(y), dsums = values_of(dx), dcs(static_cast<size_t>(c.numel()));
    ops::ref::mix_streams_forward(values_of(x).data(), values_of(c).data(), from, to, tokens, width, sums.data());
    ops::ref::mix_streams_backward(values_of(dy).data(), values_of(x).data(), values_of(c).data(), from, to, tokens,
                                   width, dsums.data(), dcs.data());
    ops::mix_streams_forward(x, c, y);
    ops::mix_streams_backward(dy, x, c, dx, dc);
    expect_close(y, sums, 1e-6, 1e-5, "y");
    expect_close(dx, dsums, 1e-6, 1e-5, "dx");
    expect_close(dc, dcs, 1e-6, 1e-5, "dcoefficients");
  }
}

// The second row is below the least root mean square, the third is zero, as is the fourth of the other.
TEST_P(StreamsTest, MatchedRowsAreThoseOfTheReference) {
  const int64_t tokens = 21, width = 45;
  Values small = random_values(tokens * width, 1), other = random_values(tokens * width, 2, 3);
  for (int64_t i = 0; i < width; ++i) {
    small[static_cast<size_t>(width + i)] *= 1e-3;
    small[static_cast<size_t>(2 * width + i)] = 0;
    other[static_cast<size_t>(3 * width + i)] = 0;
  }
  const Tensor x = tensor_of(small, {tokens, width}, DType::f32), like = tensor_of(other, {tokens, width}, DType::f32);
  const Tensor dy = random_tensor(x.shape(), DType::f32, 3);
  Tensor y = Tensor::empty(pool(), x.shape(), DType::f32), dlike = random_tensor(x.shape(), DType::f32, 4);
  Tensor dx = dy.clone(pool());
  Values expected(small.size()), expected_dx(small.size()), expected_dlike = values_of(dlike);
  ops::ref::match_rms_forward(values_of(x).data(), values_of(like).data(), tokens, width, expected.data());
  ops::ref::match_rms_backward(values_of(dy).data(), values_of(x).data(), values_of(like).data(), tokens, width,
                               expected_dx.data(), expected_dlike.data());
  ops::match_rms_forward(x, like, y);
  ops::match_rms_backward(dx, x, like, dx, dlike);  // in its own place
  expect_close(y, expected, 2e-6, 1e-6, "y");
  expect_close(dx, expected_dx, 1e-5, 1e-4, "dx");
  expect_close(dlike, expected_dlike, 1e-5, 1e-5, "dlike");
}

TEST_P(StreamsTest, GaussianTopkIsItsReference) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const double deviations : {1.6448536, 0.0, -0.3}) {
      const Tensor x = random_tensor({33, 101}, dtype, 1, 2), dy = random_tensor(x.shape(), dtype, 2);
      Tensor y = Tensor::empty(pool(), x.shape(), dtype), dx = dy.clone(pool());
      Values value(static_cast<size_t>(x.numel())), gradient(value.size());
      ops::ref::gaussian_topk_forward(values_of(x).data(), deviations, 33, 101, value.data());
      ops::ref::gaussian_topk_backward(values_of(dy).data(), values_of(x).data(), deviations, 33, 101, gradient.data());
      ops::gaussian_topk_forward(x, static_cast<float>(deviations), y);
      ops::gaussian_topk_backward(dx, x, static_cast<float>(deviations), dx);
      expect_close(y, value, rounding(dtype, 1e-6), 2e-6, "y");
      expect_close(dx, gradient, rounding(dtype, 1e-6), 2e-6, "dx");
    }
  }
}

TEST(Streams, GradientsMatchFiniteDifferences) {
  const Values x = random_values(2 * 3 * 4, 1), c = random_values(3 * 6, 2), weights = random_values(3 * 3 * 4, 3);
  const auto mixed = [&](const Values& at, const Values& with) {
    Values y(weights.size());
    ops::ref::mix_streams_forward(at.data(), with.data(), 2, 3, 3, 4, y.data());
    return dot(y, weights);
  };
  Values dx(x.size()), dc(c.size());
  ops::ref::mix_streams_backward(weights.data(), x.data(), c.data(), 2, 3, 3, 4, dx.data(), dc.data());
  expect_gradient([&](const Values& at) { return mixed(at, c); }, x, dx, "mixed streams");
  expect_gradient([&](const Values& with) { return mixed(x, with); }, c, dc, "coefficients");

  Values rows = random_values(3 * 8, 4);
  const Values like = random_values(3 * 8, 5), g = random_values(3 * 8, 6);
  for (size_t i = 0; i < 8; ++i) rows[i] *= 1e-3;  // below the least
  const auto matched = [&](const Values& at, const Values& with) {
    Values y(g.size());
    ops::ref::match_rms_forward(at.data(), with.data(), 3, 8, y.data());
    return dot(y, g);
  };
  Values drows(rows.size()), dlike(rows.size());
  ops::ref::match_rms_backward(g.data(), rows.data(), like.data(), 3, 8, drows.data(), dlike.data());
  expect_gradient([&](const Values& at) { return matched(at, like); }, rows, drows, "matched");
  expect_gradient([&](const Values& with) { return matched(rows, with); }, like, dlike, "what is matched");

  const Values gates = random_values(2 * 9, 7), dy = random_values(2 * 9, 8);
  Values dgates(gates.size());
  ops::ref::gaussian_topk_backward(dy.data(), gates.data(), 0.4, 2, 9, dgates.data());
  const auto sparse = [&](const Values& at) {
    Values y(dy.size());
    ops::ref::gaussian_topk_forward(at.data(), 0.4, 2, 9, y.data());
    return dot(y, dy);
  };
  expect_gradient(sparse, gates, dgates, "sparse gates");
}

TEST(Streams, SameBitsForAnyNumberOfThreads) {
  const int64_t tokens = 61;
  const Tensor x = random_tensor({4 * tokens, 33}, DType::f32, 1), c = random_tensor({tokens, 16}, DType::f32, 2);
  expect_same_bits_for_any_threads([&] {
    Tensor y = x.clone(pool()), dx = Tensor::zeros(pool(), x.shape(), DType::f32);
    Tensor dc = Tensor::empty(pool(), c.shape(), DType::f32), sparse = Tensor::empty(pool(), x.shape(), DType::f32);
    ops::mix_streams_forward(x, c, y);
    ops::mix_streams_backward(y, x, c, dx, dc);
    ops::gaussian_topk_forward(x, 0.5f, sparse);
    return std::vector<Tensor>{y, dx, dc, sparse};
  });
}

}  // namespace
}  // namespace nibble
