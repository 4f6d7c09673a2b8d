#include "nibble/adapters/tuners/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "nibble/core/base/parallel.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/nn/linear.h"
#include "nibble/tests/adapters/tuners/linear_size.h"
#include "nibble/tests/core/nn/plain_weight.h"

namespace nibble {
namespace {

using test::kIn, test::kOut, test::kR, test::kT;

struct Made {
  std::shared_ptr<Parameter> a, b, b_bias;
  std::unique_ptr<Linear> linear;
};

class LoraTest : public ::testing::Test {
 protected:
  MemoryPool pool;
  SelfComm comm;
  RankContext rank{comm, pool, 1, 42};

  std::shared_ptr<Parameter> parameter(const std::string& name, Shape shape, bool trainable = true) {
    return std::make_shared<Parameter>(test::random_parameter(pool, name, std::move(shape), trainable, 0.5f));
  }
  Made make(float dropout, bool with_bias = true, double scaling = 1.5) {
    Made result{parameter("A", {kR, kIn}), parameter("B", {kOut, kR}), nullptr, nullptr};
    if (with_bias) result.b_bias = parameter("b", {kOut});
    auto weight = std::make_unique<test::PlainWeight>(test::random_parameter(pool, "W", {kOut, kIn}, false));
    result.linear = std::make_unique<Linear>("model.layers.3.self_attn.q_proj", std::move(weight));
    result.linear->set_adapter(std::make_unique<LoraAdapter>(result.linear->name(), LoraSettings{scaling, dropout},
                                                             result.a, result.b, result.b_bias));
    return result;
  }
  StepContext training(uint64_t step = 5) {
    StepContext context{rank, DType::f32, true, step, {}};
    context.row_keys = Tensor::empty(pool, {kT}, DType::i64);
    for (int64_t t = 0; t < kT; ++t) context.row_keys.data<int64_t>()[t] = (int64_t{t / 4} << 32) + t % 4;
    return context;
  }
  Tensor random(Shape shape, const std::string& name) {
    return test::random_parameter(pool, name, std::move(shape), false).value;
  }
  Tensor forward(Linear& linear, const Tensor& x, const StepContext& step, LinearSaved* saved = nullptr) {
    Tensor y = Tensor::empty(pool, {x.dim(0), linear.out_features()}, x.dtype());
    linear.forward(x, y, step, saved);
    return y;
  }
  /// sum of y * dy: a loss whose gradient with respect to y is dy
  double loss(Linear& linear, const Tensor& x, const Tensor& dy, const StepContext& step) {
    const Tensor y = forward(linear, x, step);
    double sum = 0;
    for (int64_t i = 0; i < y.numel(); ++i) sum += double{y.data<const float>()[i]} * dy.data<const float>()[i];
    return sum;
  }
  void expect_gradient(Tensor& value, const Tensor& gradient, const std::function<double()>& evaluate,
                       const std::string& name) {
    constexpr float kStep = 0.05f;  // the loss is quadratic in each element at most
    for (int64_t i = 0; i < value.numel(); ++i) {
      float& element = value.data<float>()[i];
      const float before = element;
      element = before + kStep;
      const double above = evaluate();
      element = before - kStep;
      const double below = evaluate();
      element = before;
      const double wanted = (above - below) / (2 * double{kStep});
      EXPECT_NEAR(gradient.data<const float>()[i], wanted, 2e-4 * (1 + std::abs(wanted))) << name << "[" << i << "]";
    }
  }
};

TEST_F(LoraTest, GradientsMatchFiniteDifferencesWithAndWithoutDropout) {
  for (const float dropout : {0.0f, 0.4f}) {
    Made result = make(dropout);
    const StepContext step = training();
    Tensor x = random({kT, kIn}, "x");
    const Tensor dy = random({kT, kOut}, "dy");
    LinearSaved saved;
    forward(*result.linear, x, step, &saved);
    Tensor dx = Tensor::empty(pool, x.shape(), DType::f32);
    result.linear->backward(dy, step, std::move(saved), &dx, false);
    const auto evaluate = [&] { return loss(*result.linear, x, dy, step); };
    expect_gradient(result.a->value, result.a->gradient, evaluate, "A");
    expect_gradient(result.b->value, result.b->gradient, evaluate, "B");
    expect_gradient(result.b_bias->value, result.b_bias->gradient, evaluate, "b");
    expect_gradient(x, dx, evaluate, "x");
  }
}

TEST_F(LoraTest, AddsScaledProductOfItsMatrices) {
  Made result = make(0, true, 2.0);
  const Tensor x = random({kT, kIn}, "x");
  const Tensor y = forward(*result.linear, x, StepContext{rank});
  const auto at = [](const Tensor& m, int64_t i, int64_t j) { return double{m.data<const float>()[i * m.dim(1) + j]}; };
  const Tensor w = result.linear->weight().dequantize(0, kOut, pool);
  for (int64_t t = 0; t < kT; ++t) {
    for (int64_t o = 0; o < kOut; ++o) {
      double wanted = 2.0 * result.b_bias->value.data<const float>()[o];
      for (int64_t i = 0; i < kIn; ++i) {
        wanted += at(x, t, i) * at(w, o, i);
        for (int64_t r = 0; r < kR; ++r)
          wanted += 2.0 * at(x, t, i) * at(result.a->value, r, i) * at(result.b->value, o, r);
      }
      EXPECT_NEAR(at(y, t, o), wanted, 1e-4);
    }
  }
}

TEST_F(LoraTest, DxAndGradientsAccumulate) {
  for (const float dropout : {0.0f, 0.3f}) {
    Made result = make(dropout);
    const StepContext step = training();
    const Tensor x = random({kT, kIn}, "x"), dy = random({kT, kOut}, "dy");
    Tensor once = Tensor::empty(pool, x.shape(), DType::f32), twice = Tensor::zeros(pool, x.shape(), DType::f32);
    LinearSaved first, second;
    forward(*result.linear, x, step, &first);
    forward(*result.linear, x, step, &second);
    result.linear->backward(dy, step, std::move(first), &once, false);
    const Tensor a_once = result.a->gradient.clone(pool);
    ops::add(once, twice);
    result.linear->backward(dy, step, std::move(second), &twice, true);
    for (int64_t i = 0; i < once.numel(); ++i) {
      EXPECT_NEAR(twice.data<const float>()[i], 2 * once.data<const float>()[i], 1e-4);
    }
    for (int64_t i = 0; i < a_once.numel(); ++i) {
      EXPECT_NEAR(result.a->gradient.data<const float>()[i], 2 * a_once.data<const float>()[i], 1e-4);
    }
  }
}

TEST_F(LoraTest, DropoutIsOffOutsideTrainingAndKeyedByStepAndModule) {
  Made result = make(0.5f);
  const Tensor x = random({kT, kIn}, "x");
  const auto values = [&](const StepContext& step) {
    const Tensor y = forward(*result.linear, x, step);
    return std::vector<float>(y.span<const float>().begin(), y.span<const float>().end());
  };
  const std::vector<float> plain = values(StepContext{rank});
  EXPECT_NE(values(training(5)), plain);
  EXPECT_EQ(values(training(5)), values(training(5)));
  EXPECT_NE(values(training(5)), values(training(6)));
  LoraAdapter other("model.layers.3.self_attn.k_proj", {1.5, 0.5f}, result.a, result.b, result.b_bias);
  Tensor y = Tensor::empty(pool, {kT, kOut}, DType::f32);
  result.linear->weight().forward(x, y, false);
  other.forward(x, result.linear->weight(), y, training(5), nullptr);
  EXPECT_NE(std::vector<float>(y.span<const float>().begin(), y.span<const float>().end()), values(training(5)));
}

TEST_F(LoraTest, MergedRowsMultiplyLikeWeightAndAdapter) {
  Made result = make(0, false);
  const Tensor x = random({kT, kIn}, "x");
  const Tensor y = forward(*result.linear, x, StepContext{rank});
  Parameter merged{.name = "merged", .value = Tensor::empty(pool, {kOut, kIn}, DType::f32)};
  for (int64_t begin = 0; begin < kOut; begin += 4) {
    const int64_t end = std::min(begin + 4, kOut);
    Tensor rows = result.linear->weight().dequantize(begin, end, pool);
    result.linear->adapter()->merge_rows(begin, rows);
    Tensor place = merged.value.rows(begin, end);
    ops::cast(rows, place);
  }
  Tensor y_merged = Tensor::empty(pool, y.shape(), DType::f32);
  test::PlainWeight(merged).forward(x, y_merged, false);
  for (int64_t i = 0; i < y.numel(); ++i) {
    EXPECT_NEAR(y.data<const float>()[i], y_merged.data<const float>()[i], 1e-4);
  }
}

TEST_F(LoraTest, AFrozenAdapterStillPassesTheGradientDown) {
  Made result = make(0, false);
  Tensor wanted = Tensor::empty(pool, {kT, kIn}, DType::f32), dx = Tensor::empty(pool, {kT, kIn}, DType::f32);
  const Tensor x = random({kT, kIn}, "x"), dy = random({kT, kOut}, "dy");
  LinearSaved saved, frozen;
  forward(*result.linear, x, StepContext{rank}, &saved);
  result.linear->backward(dy, StepContext{rank}, std::move(saved), &wanted, false);
  result.a->trainable = result.b->trainable = false;
  result.a->gradient = result.b->gradient = {};
  EXPECT_FALSE(result.linear->has_trainable());
  forward(*result.linear, x, StepContext{rank}, &frozen);
  result.linear->backward(dy, StepContext{rank}, std::move(frozen), &dx, false);
  EXPECT_THAT(dx.span<const float>(), ::testing::Pointwise(::testing::FloatEq(), wanted.span<const float>()));
}

TEST_F(LoraTest, ComputesInBf16WithF32Gradients) {
  MemoryPool dense_pool;
  auto weight = parameter("W", {64, 96}, false);
  Linear linear("m", std::make_unique<DenseWeight>(weight));
  auto a = parameter("A", {8, 96}), b = parameter("B", {64, 8});
  linear.set_adapter(std::make_unique<LoraAdapter>("m", LoraSettings{0.5, 0}, a, b));
  const Tensor x = random({33, 96}, "x"), dy = random({33, 64}, "dy");
  Tensor x16 = Tensor::empty(pool, x.shape(), DType::bf16), dy16 = Tensor::empty(pool, dy.shape(), DType::bf16);
  ops::cast(x, x16);
  ops::cast(dy, dy16);
  const auto norm_of_difference = [](const Tensor& p, const Tensor& q) {
    double sum = 0, size = 0;
    for (int64_t i = 0; i < p.numel(); ++i) {
      const double v = p.data<const float>()[i], w = q.data<const float>()[i];
      sum += (v - w) * (v - w);
      size += w * w;
    }
    return std::sqrt(sum / size);
  };
  LinearSaved saved, saved16;
  Tensor y = forward(linear, x, StepContext{rank}, &saved), dx = Tensor::empty(pool, x.shape(), DType::f32);
  linear.backward(dy, StepContext{rank}, std::move(saved), &dx, false);
  const Tensor da = a->gradient.clone(pool), db = b->gradient.clone(pool);
  a->gradient.zero();
  b->gradient.zero();
  const StepContext step16{rank, DType::bf16};
  Tensor y16 = forward(linear, x16, step16, &saved16), dx16 = Tensor::empty(pool, x.shape(), DType::f32);
  linear.backward(dy16, step16, std::move(saved16), &dx16, false);
  Tensor y_wide = Tensor::empty(pool, y.shape(), DType::f32);
  ops::cast(y16, y_wide);
  EXPECT_LT(norm_of_difference(y_wide, y), 1e-2);
  EXPECT_LT(norm_of_difference(dx16, dx), 1e-2);
  EXPECT_LT(norm_of_difference(a->gradient, da), 1e-2);
  EXPECT_LT(norm_of_difference(b->gradient, db), 1e-2);
}

TEST_F(LoraTest, BackwardNeedsNoBufferAsLargeAsItsOutput) {
  constexpr int64_t kTokens = 256, kWide = 4096;
  auto weight = parameter("W", {kWide, 64}, false);
  Linear linear("m", std::make_unique<DenseWeight>(weight));
  linear.set_adapter(
      std::make_unique<LoraAdapter>("m", LoraSettings{}, parameter("A", {8, 64}), parameter("B", {kWide, 8})));
  const Tensor x = random({kTokens, 64}, "x"), dy = random({kTokens, kWide}, "dy");
  Tensor y = Tensor::empty(pool, {kTokens, kWide}, DType::f32), dx = Tensor::empty(pool, x.shape(), DType::f32);
  LinearSaved saved;
  pool.reset_peak();
  const size_t before = pool.in_use();
  linear.forward(x, y, StepContext{rank}, &saved);
  linear.backward(dy, StepContext{rank}, std::move(saved), &dx, false);
  EXPECT_LT(pool.peak() - before, dy.bytes() / 16);
}

TEST_F(LoraTest, BitsDoNotDependOnTheNumberOfThreads) {
  auto weight = parameter("W", {192, 160}, false);
  Linear linear("m", std::make_unique<DenseWeight>(weight));
  auto a = parameter("A", {16, 160}), b = parameter("B", {192, 16});
  linear.set_adapter(std::make_unique<LoraAdapter>("m", LoraSettings{}, a, b));
  const Tensor x = random({300, 160}, "x"), dy = random({300, 192}, "dy");
  const auto run = [&](int count) {
    set_threads(count);
    a->gradient.zero();
    b->gradient.zero();
    LinearSaved saved;
    Tensor y = forward(linear, x, StepContext{rank}, &saved), dx = Tensor::empty(pool, x.shape(), DType::f32);
    linear.backward(dy, StepContext{rank}, std::move(saved), &dx, false);
    std::vector<float> all;
    for (const Tensor& part : {y, dx, a->gradient, b->gradient}) {
      all.insert(all.end(), part.span<const float>().begin(), part.span<const float>().end());
    }
    return all;
  };
  const std::vector<float> one = run(1);
  EXPECT_EQ(one, run(2));
  EXPECT_EQ(one, run(3));
  set_threads(1);
}

}  // namespace
}  // namespace nibble
