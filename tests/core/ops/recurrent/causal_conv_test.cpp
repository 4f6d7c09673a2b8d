#include "nibble/core/ops/recurrent/causal_conv.h"

#include "nibble/core/ops/ref/causal_conv.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

class CausalConvTest : public EverySimd {};
NIBBLE_EVERY_SIMD(CausalConvTest);

// The second document is shorter than the filters.
const std::vector<ops::AttentionSpan> kConvDocuments = {{0, 70, 0, 70}, {70, 72, 0, 2}, {72, 150, 0, 78}};
constexpr int64_t kConvTokens = 150, kConvWidth = 83, kTaps = 4;

TEST(CausalConvReference, GradientsAreFiniteDifferences) {
  const int64_t tokens = 6, width = 2, taps = 3;
  const Values x = random_values(tokens * width + width * taps + width, 1), dy = random_values(tokens * width, 2);
  const auto loss = [&](const Values& at) {
    Values y(dy.size());
    ops::ref::causal_conv_forward(at.data(), at.data() + tokens * width, at.data() + (tokens + taps) * width, tokens,
                                  width, taps, y.data());
    return dot(y, dy);
  };
  Values gradient(x.size(), 0.0);
  ops::ref::causal_conv_backward(dy.data(), x.data(), x.data() + tokens * width, tokens, width, taps, gradient.data(),
                                 gradient.data() + tokens * width, gradient.data() + (tokens + taps) * width);
  expect_gradient(loss, x, gradient, "convolution");
}

struct Expected {
  Values y, dx, dw, db;
};

Expected reference(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& dy) {
  Expected result{Values(static_cast<size_t>(x.numel())), Values(static_cast<size_t>(x.numel())),
                  Values(static_cast<size_t>(w.numel()), 0.0), Values(static_cast<size_t>(kConvWidth), 0.0)};
  const Values from = values_of(x), filters = values_of(w), bias = values_of(b), upstream = values_of(dy);
  for (const ops::AttentionSpan& span : kConvDocuments) {
    const int64_t at = span.q_begin * kConvWidth, tokens = span.q_end - span.q_begin;
    ops::ref::causal_conv_forward(from.data() + at, filters.data(), bias.data(), tokens, kConvWidth, kTaps,
                                  result.y.data() + at);
    ops::ref::causal_conv_backward(upstream.data() + at, from.data() + at, filters.data(), tokens, kConvWidth, kTaps,
                                   result.dx.data() + at, result.dw.data(), result.db.data());
  }
  return result;
}

TEST_P(CausalConvTest, MatchesReference) {
  const Tensor w = random_tensor({kConvWidth, 1, kTaps}, DType::f32, 2), b = random_tensor({kConvWidth}, DType::f32, 3);
  for (const DType in : {DType::f32, DType::bf16}) {
    for (const DType out : {DType::f32, DType::bf16}) {
      const Tensor x = random_tensor({kConvTokens, kConvWidth}, in, 1),
                   dy = random_tensor({kConvTokens, kConvWidth}, out, 4);
      const Expected expected = reference(x, w, b, dy);
      Tensor y = Tensor::empty(pool(), x.shape(), out), dx = Tensor::empty(pool(), x.shape(), in);
      Tensor dw = Tensor::zeros(pool(), w.shape(), DType::f32), db = Tensor::zeros(pool(), b.shape(), DType::f32);
      ops::causal_conv_forward(x, w, b, kConvDocuments, nullptr, y);
      ops::causal_conv_backward(dy, x, w, kConvDocuments, dx, dw, db);
      expect_close(y, expected.y, rounding(out, 1e-6), 1e-5, "y");
      expect_close(dx, expected.dx, rounding(in, 1e-6), 1e-5, "dx");
      expect_close(dw, expected.dw, 1e-5, 1e-4, "dw");
      expect_close(db, expected.db, 1e-5, 1e-4, "db");
    }
  }
}

TEST_P(CausalConvTest, StatesGoOnWhereTheyWereLeft) {
  const Tensor x = random_tensor({kConvTokens, kConvWidth}, DType::bf16, 1);
  const Tensor w = random_tensor({kConvWidth, 1, kTaps}, DType::f32, 2);
  const ops::AttentionSpan whole{0, kConvTokens, 0, kConvTokens};
  Tensor y = Tensor::empty(pool(), x.shape(), DType::f32);
  ops::causal_conv_forward(x, w, {}, {&whole, 1}, nullptr, y);
  Tensor states = Tensor::zeros(pool(), {2, (kTaps - 1) * kConvWidth}, DType::f32);
  const std::vector<int64_t> rows = {1};
  for (int64_t begin = 0, count = 1; begin < kConvTokens; begin += count, count = count % 5 + 1) {
    const int64_t end = std::min(kConvTokens, begin + count);
    const ops::AttentionSpan span{0, end - begin, 0, end - begin};
    ops::RecurrentState state{states, rows};
    Tensor part = Tensor::empty(pool(), {end - begin, kConvWidth}, DType::f32);
    ops::causal_conv_forward(x.rows(begin, end), w, {}, {&span, 1}, &state, part);
    ASSERT_EQ(values_of(part), values_of(y.rows(begin, end))) << begin;
  }
  for (const double value : values_of(states.rows(0, 1))) ASSERT_EQ(value, 0);
}

TEST_P(CausalConvTest, BitsDoNotDependOnThreads) {
  const Tensor x = random_tensor({kConvTokens, kConvWidth}, DType::f32, 1);
  const Tensor w = random_tensor({kConvWidth, 1, kTaps}, DType::f32, 2);
  expect_same_bits_for_any_threads([&] {
    Tensor y = Tensor::empty(pool(), x.shape(), DType::f32), dx = Tensor::empty(pool(), x.shape(), DType::f32);
    Tensor dw = Tensor::zeros(pool(), w.shape(), DType::f32), db = Tensor::zeros(pool(), {kConvWidth}, DType::f32);
    ops::causal_conv_forward(x, w, {}, kConvDocuments, nullptr, y);
    ops::causal_conv_backward(y, x, w, kConvDocuments, dx, dw, db);
    return std::vector<Tensor>{y, dx, dw, db};
  });
}

}  // namespace
}  // namespace nibble
