#include "nibble/core/ops/optimizer.h"

#include "nibble/core/ops/ref/optimizer.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

class OptimizerTest : public EverySimd {};
NIBBLE_EVERY_SIMD(OptimizerTest);

TEST(OptimizerReference, FirstAdamWStepMovesByTheLearningRate) {
  // After one step m / (1 - beta1) = g and v / (1 - beta2) = g^2, so w moves by lr sign(g), apart from eps.
  double w = 2, m = 0, v = 0;
  const double g = -0.3;
  ops::ref::adamw(&w, &g, &m, &v, 1, {.lr = 0.01, .eps = 0, .weight_decay = 0.1});
  EXPECT_NEAR(w, 2 * (1 - 0.001) + 0.01, 1e-15);
}

// 50 steps: each rounds w once (6e-8 |w|), m and v a few units relative.
TEST_P(OptimizerTest, AdamWFollowsTheReferenceOverManySteps) {
  const int64_t count = 1003;
  Tensor w = random_tensor({count}, DType::f32, 1), m = Tensor::zeros(pool(), {count}, DType::f32);
  Tensor v = Tensor::zeros(pool(), {count}, DType::f32);
  Values ws = values_of(w), ms(count), vs(count);
  for (int64_t step = 1; step <= 50; ++step) {
    const Tensor g = random_tensor({count}, DType::f32, 100 + static_cast<uint64_t>(step));
    const ops::AdamWParams params = {.lr = 1e-2,
                                     .beta1 = 0.9,
                                     .beta2 = 0.95,
                                     .eps = 1e-8,
                                     .weight_decay = 0.1,
                                     .step = step,
                                     .gradient_scale = 0.5f};
    ops::adamw(w, g, m, v, params);
    ops::ref::adamw(ws.data(), values_of(g).data(), ms.data(), vs.data(), count, params);
  }
  expect_close(m, ms, 2e-6, 2e-7, "m");
  expect_close(v, vs, 4e-6, 0, "v");
  expect_close(w, ws, 4e-6, 2e-6, "w");
}

TEST_P(OptimizerTest, SgdMatchesReference) {
  Tensor w = random_tensor({77}, DType::f32, 1);
  const Tensor g = random_tensor({77}, DType::f32, 2);
  Values ws = values_of(w);
  ops::sgd(w, g, 0.1f, 0.01f, 0.5f);
  ops::ref::sgd(ws.data(), values_of(g).data(), 77, static_cast<double>(0.1f), static_cast<double>(0.01f), 0.5);
  expect_close(w, ws, 2e-7, 1e-8, "w");
}

TEST_P(OptimizerTest, BitsDoNotDependOnThreads) {
  const Tensor g = random_tensor({100003}, DType::f32, 2);
  expect_same_bits_for_any_threads([&] {
    Tensor w = g.clone(pool()), m = g.clone(pool()), v = Tensor::zeros(pool(), g.shape(), DType::f32);
    ops::adamw(w, g, m, v, {.lr = 1e-3});
    return std::vector<Tensor>{w, m, v};
  });
}

}  // namespace
}  // namespace nibble
