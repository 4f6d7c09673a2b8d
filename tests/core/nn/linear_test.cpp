#include "nibble/core/nn/linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nibble/core/comm/communicator.h"
#include "nibble/tests/core/nn/plain_weight.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;

/// y += 1 per element and dx (+)= 10; doubles the gradient of the base.
class FakeAdapter final : public Adapter {
 public:
  explicit FakeAdapter(bool trainable) : trainable_(trainable) {}
  void forward(const Tensor&, const LinearWeight&, Tensor& y, const StepContext&, AdapterSaved* saved) const override {
    for (float& value : y.span<float>()) value += 1;
    if (saved) saved->tensors = {y.rows(0, 1)};
  }
  AdapterGradient backward(const Tensor& dy, const LinearWeight&, const StepContext& step) const override {
    Tensor doubled = dy.clone(step.pool());
    ops::scale(doubled, 2);
    return {.base = doubled, .tensors = {}};
  }
  void accumulate_gradients(const AdapterGradient&, const Tensor&, const Tensor& x, const StepContext&,
                            const AdapterSaved& saved) override {
    EXPECT_TRUE(x.defined());
    EXPECT_EQ(saved.tensors.size(), 1u);
    ++accumulated;
  }
  void backward_input(const AdapterGradient&, const Tensor&, const LinearWeight&, const StepContext&, Tensor& dx,
                      bool accumulate) const override {
    for (float& value : dx.span<float>()) value = 10 + (accumulate ? value : 0);
  }
  bool trainable() const override { return trainable_; }
  void visit(const ParameterVisitor& visitor) override { visitor(parameter_); }
  void merge_rows(int64_t, Tensor&) const override {}

  int accumulated = 0;

 private:
  bool trainable_;
  Parameter parameter_{.name = "adapter"};
};

class LinearTest : public ::testing::Test {
 protected:
  MemoryPool pool;
  SelfComm comm;
  RankContext rank{comm, pool};
  StepContext step{rank};

  Tensor matrix(Shape shape, std::vector<float> values) {
    return Tensor::from<float>(pool, std::move(shape), std::span<const float>(values));
  }
  /// W = [[1, 2], [3, 4], [5, 6]], b = [100, 200, 300]
  Linear make(bool train_weight, bool with_bias, bool train_bias = false) {
    Parameter weight{.name = "m.weight", .value = matrix({3, 2}, {1, 2, 3, 4, 5, 6}), .trainable = train_weight};
    if (train_weight) weight.gradient = Tensor::zeros(pool, {3, 2}, DType::f32);
    std::shared_ptr<Parameter> bias;
    if (with_bias) {
      bias = std::make_shared<Parameter>(
          Parameter{.name = "m.bias", .value = matrix({3}, {100, 200, 300}), .trainable = train_bias});
      if (train_bias) bias->gradient = Tensor::zeros(pool, {3}, DType::f32);
    }
    return Linear("m", std::make_unique<test::PlainWeight>(std::move(weight)), bias);
  }
  Tensor forward(Linear& linear, const Tensor& x, LinearSaved* saved) {
    Tensor y = Tensor::empty(pool, {x.dim(0), linear.out_features()}, DType::f32);
    linear.forward(x, y, step, saved);
    return y;
  }
};

TEST_F(LinearTest, GivesProductPlusBias) {
  Linear linear = make(false, true);
  const Tensor x = matrix({2, 2}, {1, 0, 0, 1});
  EXPECT_THAT(forward(linear, x, nullptr).span<const float>(), ElementsAre(101, 203, 305, 102, 204, 306));
}

TEST_F(LinearTest, AFrozenBiasMayBe16Bit) {
  Linear linear = make(false, true);
  Tensor half = Tensor::empty(pool, {3}, DType::bf16);
  ops::cast(linear.bias()->value, half);
  linear.bias()->value = half;
  EXPECT_THAT(forward(linear, matrix({1, 2}, {1, 0}), nullptr).span<const float>(), ElementsAre(101, 203, 305));
}

TEST_F(LinearTest, TheAdapterSeesTheProductWithoutBias) {
  Linear linear = make(false, true);
  linear.set_adapter(std::make_unique<FakeAdapter>(true));
  LinearSaved saved;
  const Tensor y = forward(linear, matrix({1, 2}, {1, 0}), &saved);
  EXPECT_THAT(y.span<const float>(), ElementsAre(102, 204, 306));
}

TEST_F(LinearTest, BackwardGivesEveryGradient) {
  Linear linear = make(true, true, true);
  LinearSaved saved;
  const Tensor x = matrix({2, 2}, {1, 2, 3, 4});
  forward(linear, x, &saved);
  Tensor dx = Tensor::empty(pool, {2, 2}, DType::f32);
  linear.backward(matrix({2, 3}, {1, 0, 2, 0, 1, 0}), step, std::move(saved), &dx, false);
  EXPECT_THAT(dx.span<const float>(), ElementsAre(11, 14, 3, 4));
  EXPECT_THAT(linear.weight().parameter()->gradient.span<const float>(), ElementsAre(1, 2, 3, 4, 2, 4));
  EXPECT_THAT(linear.bias()->gradient.span<const float>(), ElementsAre(1, 1, 2));
}

TEST_F(LinearTest, TheAdapterRescalesTheGradientOfTheBaseAndDxAccumulates) {
  for (const bool accumulate : {false, true}) {
    Linear linear = make(true, false);
    linear.set_adapter(std::make_unique<FakeAdapter>(true));
    LinearSaved saved;
    forward(linear, matrix({1, 2}, {1, 2}), &saved);
    Tensor dx = matrix({1, 2}, {1000, 2000});
    linear.backward(matrix({1, 3}, {1, 0, 0}), step, std::move(saved), &dx, accumulate);
    const float before = accumulate ? 1 : 0;
    EXPECT_THAT(dx.span<const float>(), ElementsAre(1000 * before + 10 + 2, 2000 * before + 10 + 4));
    EXPECT_THAT(linear.weight().parameter()->gradient.span<const float>(), ElementsAre(2, 4, 0, 0, 0, 0));
  }
}

TEST_F(LinearTest, TransposedIsTheInputGradientAndLeavesTheGradientsAlone) {
  for (const bool adapted : {false, true}) {
    Linear linear = make(true, true, true);
    if (adapted) linear.set_adapter(std::make_unique<FakeAdapter>(true));
    Tensor x = matrix({1, 2}, {1000, 2000});
    linear.transposed(matrix({1, 3}, {1, 0, 0}), x, step);
    const float base = adapted ? 10 : 0;
    const float factor = adapted ? 2 : 1;
    EXPECT_THAT(x.span<const float>(), ElementsAre(base + factor * 1, base + factor * 2));
    EXPECT_THAT(linear.weight().parameter()->gradient.span<const float>(), ElementsAre(0, 0, 0, 0, 0, 0));
    EXPECT_THAT(linear.bias()->gradient.span<const float>(), ElementsAre(0, 0, 0));
  }
}

TEST_F(LinearTest, KeepsTheInputOnlyWhenBackwardNeedsIt) {
  const Tensor x = matrix({1, 2}, {1, 2});
  LinearSaved frozen, trained, adapted;
  Linear plain = make(false, true, true);
  forward(plain, x, &frozen);
  EXPECT_FALSE(frozen.x.defined());
  Linear dense = make(true, false);
  forward(dense, x, &trained);
  EXPECT_EQ(trained.x.raw(), x.raw());
  plain.set_adapter(std::make_unique<FakeAdapter>(true));
  forward(plain, x, &adapted);
  EXPECT_EQ(adapted.x.raw(), x.raw());
}

TEST_F(LinearTest, KnowsWhetherAnythingInItIsTrained) {
  EXPECT_FALSE(make(false, true).has_trainable());
  EXPECT_TRUE(make(true, false).has_trainable());
  EXPECT_TRUE(make(false, true, true).has_trainable());
  Linear linear = make(false, false);
  linear.set_adapter(std::make_unique<FakeAdapter>(false));
  EXPECT_FALSE(linear.has_trainable());
  linear.set_adapter(std::make_unique<FakeAdapter>(true));
  EXPECT_TRUE(linear.has_trainable());
}

TEST_F(LinearTest, VisitsWeightThenBiasThenAdapter) {
  Linear linear = make(false, true);
  linear.set_adapter(std::make_unique<FakeAdapter>(true));
  std::vector<std::string> names;
  linear.visit([&](Parameter& parameter) { names.push_back(parameter.name); });
  EXPECT_THAT(names, ElementsAre("m.weight", "m.bias", "adapter"));
}

}  // namespace
}  // namespace nibble
