#include "nibble/adapters/tuners/dora.h"

#include <gtest/gtest.h>

#include <cmath>

#include "nibble/core/comm/communicator.h"
#include "nibble/core/nn/linear.h"
#include "nibble/core/nn/linear_weight.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/weight_norm.h"
#include "nibble/tests/adapters/tuners/linear_size.h"
#include "nibble/tests/core/nn/plain_weight.h"

namespace nibble {
namespace {

using test::kIn, test::kOut, test::kR, test::kT;

class DoraTest : public ::testing::Test {
 protected:
  MemoryPool pool;
  SelfComm comm;
  RankContext rank{comm, pool, 1, 42};
  std::shared_ptr<Parameter> m;

  std::shared_ptr<Parameter> parameter(const std::string& name, Shape shape) {
    return std::make_shared<Parameter>(test::random_parameter(pool, name, std::move(shape), true, 0.5f));
  }
  /// magnitude: given, or (planned) started from the weight
  std::unique_ptr<Linear> make(float dropout, bool given) {
    auto linear = std::make_unique<Linear>(
        "m", std::make_unique<test::PlainWeight>(test::random_parameter(pool, "W", {kOut, kIn}, false)));
    auto lora = std::make_unique<LoraAdapter>("m", LoraSettings{1.5, dropout}, parameter("A", {kR, kIn}),
                                              parameter("B", {kOut, kR}));
    m = parameter("m", {kOut});
    if (!given) m->value = Tensor::planned({kOut}, DType::f32);
    linear->set_adapter(std::make_unique<DoraAdapter>("m", std::move(lora), m, linear->weight(), pool));
    return linear;
  }
  StepContext training() {
    StepContext context{rank, DType::f32, true, 5, {}};
    context.row_keys = Tensor::empty(pool, {kT}, DType::i64);
    for (int64_t t = 0; t < kT; ++t) context.row_keys.data<int64_t>()[t] = t;
    return context;
  }
  Tensor forward(Linear& linear, const Tensor& x, const StepContext& step, LinearSaved* saved = nullptr) {
    Tensor y = Tensor::empty(pool, {x.dim(0), kOut}, DType::f32);
    linear.forward(x, y, step, saved);
    return y;
  }
  Tensor random(Shape shape, const std::string& name) {
    return test::random_parameter(pool, name, std::move(shape), false).value;
  }
};

TEST_F(DoraTest, AMagnitudeThatStartsFromTheWeightChangesNothingBesideTheLora) {
  auto dora = make(0, false);
  const Tensor x = random({kT, kIn}, "x");
  Linear lora("m", std::make_unique<test::PlainWeight>(test::random_parameter(pool, "W", {kOut, kIn}, false)));
  lora.set_adapter(
      std::make_unique<LoraAdapter>("m", LoraSettings{1.5, 0}, parameter("A", {kR, kIn}), parameter("B", {kOut, kR})));
  const Tensor y = forward(*dora, x, StepContext{rank}), wanted = forward(lora, x, StepContext{rank});
  for (int64_t i = 0; i < y.numel(); ++i) {
    EXPECT_NEAR(y.data<const float>()[i], wanted.data<const float>()[i], 1e-4);
  }
}

TEST_F(DoraTest, GradientsOfInputAndMagnitudeMatchFiniteDifferences) {
  for (const float dropout : {0.0f, 0.4f}) {
    auto linear = make(dropout, true);
    const StepContext step = training();
    Tensor x = random({kT, kIn}, "x");
    const Tensor dy = random({kT, kOut}, "dy");
    LinearSaved saved;
    forward(*linear, x, step, &saved);
    Tensor dx = Tensor::zeros(pool, x.shape(), DType::f32);
    linear->backward(dy, step, std::move(saved), &dx, true);
    const auto loss = [&] {
      const Tensor y = forward(*linear, x, step);
      double sum = 0;
      for (int64_t i = 0; i < y.numel(); ++i) sum += double{y.data<const float>()[i]} * dy.data<const float>()[i];
      return sum;
    };
    const auto check = [&](Tensor& value, const Tensor& gradient, const char* name) {
      for (int64_t i = 0; i < value.numel(); ++i) {
        float& element = value.data<float>()[i];
        const float before = element;
        element = before + 0.05f;
        const double above = loss();
        element = before - 0.05f;
        const double below = loss();
        element = before;
        const double wanted = (above - below) / 0.1;
        EXPECT_NEAR(gradient.data<const float>()[i], wanted, 5e-4 * (1 + std::abs(wanted))) << name << i;
      }
    };
    check(x, dx, "x");
    check(m->value, m->gradient, "m");
  }
}

// What goes into a norm in bf16 has a gradient in f32.
TEST_F(DoraTest, AnOutputInBf16MayHaveAGradientInF32) {
  const Tensor x = random({kT, kIn}, "x"), dy = random({kT, kOut}, "dy");
  const auto magnitude_gradient = [&](DType dtype) {
    Linear linear("m", std::make_unique<DenseWeight>(parameter("W", {kOut, kIn})));
    m = parameter("m", {kOut});
    auto lora =
        std::make_unique<LoraAdapter>("m", LoraSettings{1.5, 0}, parameter("A", {kR, kIn}), parameter("B", {kOut, kR}));
    linear.set_adapter(std::make_unique<DoraAdapter>("m", std::move(lora), m, linear.weight(), pool));
    const StepContext step{rank, dtype};
    Tensor input = Tensor::empty(pool, x.shape(), dtype), y = Tensor::empty(pool, dy.shape(), dtype);
    ops::cast(x, input);
    LinearSaved saved;
    linear.forward(input, y, step, &saved);
    Tensor dx = Tensor::zeros(pool, x.shape(), DType::f32);
    linear.backward(dy, step, std::move(saved), &dx, true);
    return m->gradient;
  };
  const Tensor wanted = magnitude_gradient(DType::f32), found = magnitude_gradient(DType::bf16);
  for (int64_t i = 0; i < kOut; ++i) {
    EXPECT_NEAR(found.data<const float>()[i], wanted.data<const float>()[i], 0.05) << i;
    EXPECT_NE(found.data<const float>()[i], 0) << i;
  }
}

TEST_F(DoraTest, MergedRowsMultiplyLikeTheAdapter) {
  auto linear = make(0, true);
  const Tensor x = random({kT, kIn}, "x");
  const Tensor y = forward(*linear, x, StepContext{rank});
  Parameter merged{.name = "merged", .value = linear->weight().dequantize(0, kOut, pool)};
  Tensor head = merged.value.rows(0, 4), tail = merged.value.rows(4, kOut);
  linear->adapter()->merge_rows(0, head);
  linear->adapter()->merge_rows(4, tail);
  Tensor wanted = Tensor::empty(pool, y.shape(), DType::f32);
  test::PlainWeight(merged).forward(x, wanted, false);
  for (int64_t i = 0; i < y.numel(); ++i) {
    EXPECT_NEAR(y.data<const float>()[i], wanted.data<const float>()[i], 1e-4);
  }
}

}  // namespace
}  // namespace nibble
