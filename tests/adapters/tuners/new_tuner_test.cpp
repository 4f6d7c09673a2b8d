// The worked example of CONTRIBUTING.md, "A tuner": learned scales of outputs, in one file. It trains, merges, and any
// weight is its base.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "nibble/core/comm/communicator.h"
#include "nibble/core/nn/linear.h"
#include "nibble/core/ops/weight_norm.h"
#include "nibble/tests/adapters/tuners/linear_size.h"
#include "nibble/tests/core/nn/plain_weight.h"

namespace nibble {
namespace {

using test::kIn, test::kOut, test::kT;

/// y = l * (W x), l [out] f32, as (IA)^3 does with keys and values (Liu et al. 2022).
class OutputScale final : public Adapter {
 public:
  explicit OutputScale(std::shared_ptr<Parameter> scale) : scale_(std::move(scale)) {}

  void forward(const Tensor&, const LinearWeight&, Tensor& y, const StepContext& step,
               AdapterSaved* saved) const override {
    if (saved && trainable()) saved->tensors = {y.clone(step.pool())};
    ops::scale_columns(y, scale_->value, 0, y);
  }
  AdapterGradient backward(const Tensor& dy, const LinearWeight&, const StepContext& step) const override {
    Tensor scaled = Tensor::empty(step.pool(), dy.shape(), dy.dtype(), "gradient of an adapter");
    ops::scale_columns(dy, scale_->value, 0, scaled);
    return {.base = scaled, .tensors = {}};
  }
  void accumulate_gradients(const AdapterGradient&, const Tensor& dy, const Tensor&, const StepContext& step,
                            const AdapterSaved& saved) override {
    Tensor ones = Tensor::empty(step.pool(), {dy.dim(1)}, DType::f32);
    std::fill_n(ones.data<float>(), ones.numel(), 1.0f);
    ops::scale_columns_backward(dy, saved.tensors.at(0), ones, scale_->gradient);
  }
  // All of dx goes through the base, whose gradient is scaled.
  void backward_input(const AdapterGradient&, const Tensor&, const LinearWeight&, const StepContext&, Tensor& dx,
                      bool accumulate) const override {
    if (!accumulate) dx.zero();
  }
  bool trainable() const override { return scale_->trainable; }
  void visit(const ParameterVisitor& visitor) override { visitor(*scale_); }
  void merge_rows(int64_t begin, Tensor& rows) const override {
    for (int64_t n = 0; n < rows.dim(0); ++n) {
      for (int64_t i = 0; i < rows.dim(1); ++i) {
        rows.data<float>()[n * rows.dim(1) + i] *= scale_->value.data<const float>()[begin + n];
      }
    }
  }

 private:
  std::shared_ptr<Parameter> scale_;
};

class NewTuner : public ::testing::Test {
 protected:
  MemoryPool pool;
  SelfComm comm;
  RankContext rank{comm, pool, 1, 42};
  StepContext step{rank};
  std::shared_ptr<Parameter> scale =
      std::make_shared<Parameter>(test::random_parameter(pool, "base_model.model.m.output_scale", {kOut}, true));
  Linear linear{"m", std::make_unique<test::PlainWeight>(test::random_parameter(pool, "W", {kOut, kIn}, false))};

  void SetUp() override { linear.set_adapter(std::make_unique<OutputScale>(scale)); }

  Tensor random(Shape shape, const std::string& name) {
    return test::random_parameter(pool, name, std::move(shape), false).value;
  }
  Tensor forward(const Tensor& x, LinearSaved* saved = nullptr) {
    Tensor y = Tensor::empty(pool, {x.dim(0), kOut}, DType::f32);
    linear.forward(x, y, step, saved);
    return y;
  }
  double loss(const Tensor& x, const Tensor& dy) {
    const Tensor y = forward(x);
    double sum = 0;
    for (int64_t i = 0; i < y.numel(); ++i) sum += double{y.data<const float>()[i]} * dy.data<const float>()[i];
    return sum;
  }
};

TEST_F(NewTuner, ItsGradientsMatchFiniteDifferences) {
  Tensor x = random({kT, kIn}, "x");
  const Tensor dy = random({kT, kOut}, "dy");
  LinearSaved saved;
  forward(x, &saved);
  Tensor dx = Tensor::empty(pool, x.shape(), DType::f32);
  linear.backward(dy, step, std::move(saved), &dx, false);
  const auto check = [&](Tensor& value, const Tensor& gradient, const char* name) {
    for (int64_t i = 0; i < value.numel(); ++i) {
      float& element = value.data<float>()[i];
      const float before = element;
      element = before + 0.05f;
      const double above = loss(x, dy);
      element = before - 0.05f;
      const double below = loss(x, dy);
      element = before;
      const double wanted = (above - below) / 0.1;
      EXPECT_NEAR(gradient.data<const float>()[i], wanted, 5e-4 * (1 + std::abs(wanted))) << name << i;
    }
  };
  check(x, dx, "x");
  check(scale->value, scale->gradient, "scale");
}

TEST_F(NewTuner, ItsMergedRowsMultiplyLikeIt) {
  const Tensor x = random({kT, kIn}, "x"), y = forward(x);
  Parameter merged{.name = "merged", .value = linear.weight().dequantize(0, kOut, pool)};
  Tensor head = merged.value.rows(0, 4), tail = merged.value.rows(4, kOut);
  linear.adapter()->merge_rows(0, head);
  linear.adapter()->merge_rows(4, tail);
  Tensor wanted = Tensor::empty(pool, y.shape(), DType::f32);
  test::PlainWeight(merged).forward(x, wanted, false);
  for (int64_t i = 0; i < y.numel(); ++i) {
    EXPECT_NEAR(y.data<const float>()[i], wanted.data<const float>()[i], 1e-4);
  }
}

TEST_F(NewTuner, WithoutAdaptersAPassIsTheBases) {
  const Tensor x = random({kT, kIn}, "x");
  step.adapters_enabled = false;
  const Tensor y = forward(x);
  Tensor wanted = Tensor::empty(pool, y.shape(), DType::f32);
  linear.weight().forward(x, wanted, false);
  for (int64_t i = 0; i < y.numel(); ++i) EXPECT_EQ(y.data<const float>()[i], wanted.data<const float>()[i]);
}

}  // namespace
}  // namespace nibble
