#include "nibble/core/ops/norm.h"

#include "nibble/core/ops/ref/norm.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

class NormTest : public EverySimd {};
NIBBLE_EVERY_SIMD(NormTest);

constexpr int64_t kWidths[] = {1, 8, 20, 100, 256, 576};

// Sums of D <= 576 products in f32 with pairwise-like order: a few units of 6e-8, more where terms cancel.
constexpr double kRelative = 4e-6, kAbsolute = 4e-6;

TEST(NormReference, RmsGradientMatchesFiniteDifferences) {
  const int64_t tokens = 3, width = 20;
  const Values x = random_values(tokens * width, 1), w = random_values(width, 2), dy = random_values(tokens * width, 3);
  Values y(x.size()), inv(tokens), dx(x.size()), dw(w.size());
  const auto loss = [&](const Values& xs, const Values& ws) {
    ops::ref::rms_norm_forward(xs.data(), ws.data(), tokens, width, 1e-5, 1.0, y.data(), inv.data());
    return dot(y, dy);
  };
  loss(x, w);
  ops::ref::rms_norm_backward(dy.data(), x.data(), w.data(), tokens, width, 1.0, inv.data(), dx.data(), dw.data());
  expect_gradient([&](const Values& v) { return loss(v, w); }, x, dx, "dx");
  expect_gradient([&](const Values& v) { return loss(x, v); }, w, dw, "dw");
}

TEST(NormReference, LayerGradientMatchesFiniteDifferences) {
  const int64_t tokens = 3, width = 20;
  const Values x = random_values(tokens * width, 1), w = random_values(width, 2), b = random_values(width, 4);
  const Values dy = random_values(tokens * width, 3);
  Values y(x.size()), mean(tokens), inv(tokens), dx(x.size()), dw(w.size()), db(w.size());
  const auto loss = [&](const Values& xs, const Values& ws, const Values& bs) {
    ops::ref::layer_norm_forward(xs.data(), ws.data(), bs.data(), tokens, width, 1e-5, y.data(), mean.data(),
                                 inv.data());
    return dot(y, dy);
  };
  loss(x, w, b);
  ops::ref::layer_norm_backward(dy.data(), x.data(), w.data(), tokens, width, mean.data(), inv.data(), dx.data(),
                                dw.data(), db.data());
  expect_gradient([&](const Values& v) { return loss(v, w, b); }, x, dx, "dx");
  expect_gradient([&](const Values& v) { return loss(x, v, b); }, w, dw, "dw");
  expect_gradient([&](const Values& v) { return loss(x, w, v); }, b, db, "db");
}

TEST_P(NormTest, RmsForwardMatchesReference) {
  for (int64_t width : kWidths) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (double offset : {0.0, 1.0}) {
        const int64_t tokens = 37;
        const Tensor x = random_tensor({tokens, width}, DType::f32, 1, 3), w = random_tensor({width}, DType::f32, 2);
        Tensor y = Tensor::empty(pool(), x.shape(), dtype), inv = Tensor::empty(pool(), {tokens}, DType::f32);
        ops::rms_norm_forward(x, w, 1e-5f, static_cast<float>(offset), y, inv);
        Values expected(static_cast<size_t>(x.numel())), expected_inv(static_cast<size_t>(tokens));
        ops::ref::rms_norm_forward(values_of(x).data(), values_of(w).data(), tokens, width, 1e-5, offset,
                                   expected.data(), expected_inv.data());
        expect_close(y, expected, rounding(dtype, kRelative), 1e-7, "y");
        expect_close(inv, expected_inv, kRelative, 0, "inv_rms");
      }
    }
  }
}

TEST_P(NormTest, RmsBackwardMatchesReferenceAndAdds) {
  for (int64_t width : kWidths) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      const int64_t tokens = 150;  // more than one block of weight gradients
      const Tensor x = random_tensor({tokens, width}, DType::f32, 1), w = random_tensor({width}, DType::f32, 2);
      const Tensor dy = random_tensor({tokens, width}, dtype, 3);
      Tensor inv = Tensor::empty(pool(), {tokens}, DType::f32), y = Tensor::empty(pool(), x.shape(), DType::f32);
      ops::rms_norm_forward(x, w, 1e-5f, 1.0f, y, inv);
      Tensor dx = random_tensor(x.shape(), DType::f32, 4), dw = random_tensor({width}, DType::f32, 5);
      Values expected_dx = values_of(dx), expected_dw = values_of(dw);
      ops::rms_norm_backward(dy, x, w, 1.0f, inv, dx, dw);
      ops::ref::rms_norm_backward(values_of(dy).data(), values_of(x).data(), values_of(w).data(), tokens, width, 1.0,
                                  values_of(inv).data(), expected_dx.data(), expected_dw.data());
      expect_close(dx, expected_dx, kRelative, kAbsolute, "dx");
      expect_close(dw, expected_dw, kRelative, 4 * kAbsolute, "dw");
    }
  }
}

TEST_P(NormTest, LayerForwardMatchesReferenceWithAndWithoutBias) {
  for (int64_t width : kWidths) {
    for (bool biased : {false, true}) {
      const int64_t tokens = 19;
      const Tensor x = random_tensor({tokens, width}, DType::f32, 1, 2), w = random_tensor({width}, DType::f32, 2);
      const Tensor b = biased ? random_tensor({width}, DType::f32, 3) : Tensor();
      Tensor y = Tensor::empty(pool(), x.shape(), DType::bf16);
      Tensor mean = Tensor::empty(pool(), {tokens}, DType::f32), inv = Tensor::empty(pool(), {tokens}, DType::f32);
      ops::layer_norm_forward(x, w, b, 1e-5f, y, mean, inv);
      Values expected(static_cast<size_t>(x.numel())), means(tokens), invs(tokens), shift;
      if (biased) shift = values_of(b);
      ops::ref::layer_norm_forward(values_of(x).data(), values_of(w).data(), biased ? shift.data() : nullptr, tokens,
                                   width, 1e-5, expected.data(), means.data(), invs.data());
      expect_close(mean, means, kRelative, 1e-6, "mean");
      expect_close(inv, invs, kRelative, 0, "inv_std");
      expect_close(y, expected, rounding(DType::bf16, kRelative), kAbsolute, "y");
    }
  }
}

TEST_P(NormTest, LayerBackwardMatchesReferenceAndAdds) {
  for (int64_t width : kWidths) {
    const int64_t tokens = 150;
    const Tensor x = random_tensor({tokens, width}, DType::f32, 1), w = random_tensor({width}, DType::f32, 2);
    const Tensor dy = random_tensor({tokens, width}, DType::bf16, 3);
    Tensor mean = Tensor::empty(pool(), {tokens}, DType::f32), inv = Tensor::empty(pool(), {tokens}, DType::f32);
    Tensor y = Tensor::empty(pool(), x.shape(), DType::f32);
    ops::layer_norm_forward(x, w, Tensor(), 1e-2f, y, mean, inv);
    Tensor dx = random_tensor(x.shape(), DType::f32, 4), dw = random_tensor({width}, DType::f32, 5);
    Tensor db = random_tensor({width}, DType::f32, 6);
    Values dxs = values_of(dx), dws = values_of(dw), dbs = values_of(db);
    ops::layer_norm_backward(dy, x, w, mean, inv, dx, dw, db);
    ops::ref::layer_norm_backward(values_of(dy).data(), values_of(x).data(), values_of(w).data(), tokens, width,
                                  values_of(mean).data(), values_of(inv).data(), dxs.data(), dws.data(), dbs.data());
    expect_close(dx, dxs, kRelative, 4 * kAbsolute, "dx");
    expect_close(dw, dws, kRelative, 4 * kAbsolute, "dw");
    expect_close(db, dbs, kRelative, 4 * kAbsolute, "db");
  }
}

TEST_P(NormTest, BitsDoNotDependOnThreads) {
  const Tensor x = random_tensor({300, 100}, DType::f32, 1), w = random_tensor({100}, DType::f32, 2);
  expect_same_bits_for_any_threads([&] {
    Tensor y = Tensor::empty(pool(), x.shape(), DType::f32), inv = Tensor::empty(pool(), {300}, DType::f32);
    Tensor dx = Tensor::zeros(pool(), x.shape(), DType::f32), dw = Tensor::zeros(pool(), {100}, DType::f32);
    ops::rms_norm_forward(x, w, 1e-5f, 0, y, inv);
    ops::rms_norm_backward(y, x, w, 0, inv, dx, dw);
    return std::vector<Tensor>{y, inv, dx, dw};
  });
}

}  // namespace
}  // namespace nibble
