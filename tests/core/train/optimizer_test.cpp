#include "nibble/core/train/optimizer.h"

#include <gtest/gtest.h>

#include <array>

#include "nibble/core/base/error.h"
#include "nibble/tests/core/train/toy.h"

namespace nibble {
namespace {

struct Golden {
  double grad_norm;
  std::array<double, 5> w;
  std::array<double, 2> b;
};

// Five steps of torch 2.15.0: torch.nn.utils.clip_grad_norm_(0.7), then AdamW (betas 0.8/0.95, eps 1e-6, weight decay
// 0.1 on w and 0 on b) or SGD (no momentum), lr 1e-2 / k, gradients as in gradients_of().
const std::array<Golden, 5> kAdamW = {{
    {3.00838828,
     {0.48950043320655823, -1.2387521266937256, 3.0065879821777344, 0.00099900003988295794, -7.502500057220459},
     {0.24000021815299988, -2.0099573135375977}},
    {1.5167073,
     {0.48472917079925537, -1.2332478761672974, 3.0080835819244385, 0.00099850050173699856, -7.5037469863891602},
     {0.24053509533405304, -2.0148296356201172}},
    {1.11821342,
     {0.48152071237564087, -1.2295453548431396, 3.0054640769958496, 0.00099816767033189535, -7.504554271697998},
     {0.24283626675605774, -2.0181145668029785}},
    {1.10131788,
     {0.47902151942253113, -1.2267271280288696, 3.0028479099273682, 0.00099791819229722023, -7.5050868988037109},
     {0.2449134886264801, -2.0206208229064941}},
    {1.26901579,
     {0.47695225477218628, -1.2244679927825928, 3.000521183013916, 0.00099771865643560886, -7.5054059028625488},
     {0.2467392235994339, -2.0226309299468994}},
}};
const std::array<double, 5> kSgdW = {0.4963529109954834, -1.246959924697876, 2.9931550025939941, 0.00099771854002028704,
                                     -7.497258186340332};
const std::array<double, 2> kSgdB = {0.2528156042098999, -2.0000097751617432};

struct TwoTensors {
  MemoryPool pool;
  std::unique_ptr<Parameter> w = test::toy_parameter(pool, "layers.0.w", {0.5f, -1.25f, 3.0f, 1e-3f, -7.5f});
  std::unique_ptr<Parameter> b = test::toy_parameter(pool, "layers.0.norm.bias", {0.25f, -2.0f});

  void set_gradients(int k) {
    const float x = static_cast<float>(k);
    const std::array<float, 5> gw = {0.1f * x, -0.02f, 1e-4f * (x - 2), 0.0f, 3.0f / x};
    const std::array<float, 2> gb = {0.5f - x * 0.3f, 1e-3f};
    std::copy(gw.begin(), gw.end(), w->gradient.data<float>());
    std::copy(gb.begin(), gb.end(), b->gradient.data<float>());
  }
  Optimizer optimizer(OptimizerKind kind) {
    OptimizerOptions options;
    options.kind = kind;
    options.beta1 = 0.8;
    options.beta2 = 0.95;
    options.eps = 1e-6;
    options.weight_decay = 0.1;
    options.no_decay = {"norm"};
    return Optimizer({w.get(), b.get()}, options, pool);
  }
};

template <size_t N>
void expect_values(const Tensor& got, const std::array<double, N>& want, const std::string& what) {
  ASSERT_EQ(got.numel(), static_cast<int64_t>(N));
  for (size_t i = 0; i < N; ++i) {
    EXPECT_NEAR(got.data<const float>()[i], want[i], 3e-7 * std::abs(want[i])) << what << "[" << i << "]";
  }
}

TEST(Optimizer, AdamWFollowsTorchWithDecayOnlyWhereItIsDue) {
  TwoTensors setup;
  Optimizer optimizer = setup.optimizer(OptimizerKind::adamw);
  for (int k = 1; k <= 5; ++k) {
    setup.set_gradients(k);
    const Golden& golden = kAdamW[static_cast<size_t>(k - 1)];
    optimizer.step(1e-2 / k, std::min(1.0, 0.7 / (golden.grad_norm + 1e-6)));
    expect_values(setup.w->value, golden.w, "w after " + std::to_string(k));
    expect_values(setup.b->value, golden.b, "b after " + std::to_string(k));
  }
  EXPECT_EQ(optimizer.updates(), 5);
}

TEST(Optimizer, SgdFollowsTorchWithDecoupledDecay) {
  TwoTensors setup;
  Optimizer optimizer = setup.optimizer(OptimizerKind::sgd);
  for (int k = 1; k <= 5; ++k) {
    setup.set_gradients(k);
    optimizer.step(1e-2 / k, std::min(1.0, 0.7 / (kAdamW[static_cast<size_t>(k - 1)].grad_norm + 1e-6)));
  }
  expect_values(setup.w->value, kSgdW, "w");
  expect_values(setup.b->value, kSgdB, "b");
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(Optimizer, StateIsNamedAfterItsParameterAndCarriesARunOn) {
  TwoTensors whole, first;
  Optimizer a = whole.optimizer(OptimizerKind::adamw), b = first.optimizer(OptimizerKind::adamw);
  for (int k = 1; k <= 2; ++k) {
    whole.set_gradients(k);
    a.step(1e-2);
    first.set_gradients(k);
    b.step(1e-2);
  }
  TwoTensors second;
  Optimizer c = second.optimizer(OptimizerKind::adamw);
  const std::vector<NamedTensor> from = b.state(), to = c.state();
  ASSERT_EQ(from.size(), 4u);
  EXPECT_EQ(from[0].name, "layers.0.w.exp_avg");
  EXPECT_EQ(from[3].name, "layers.0.norm.bias.exp_avg_sq");
  for (size_t i = 0; i < from.size(); ++i)
    std::memcpy(to[i].value.mutable_raw(), from[i].value.raw(), from[i].value.bytes());
  std::memcpy(second.w->value.mutable_raw(), first.w->value.raw(), first.w->value.bytes());
  c.set_updates(b.updates());
  whole.set_gradients(3);
  a.step(1e-2);
  second.set_gradients(3);
  c.step(1e-2);
  EXPECT_EQ(test::values(second.w->value), test::values(whole.w->value));
}

TEST(Optimizer, EightBitStateOfLargeTensorsCarriesARunOn) {
  constexpr int64_t kCount = ops::kEightBitMinimum + 100;
  struct Large {
    MemoryPool pool;
    std::unique_ptr<Parameter> w = test::toy_parameter(pool, "w", std::vector<float>(kCount, 0.5f));
    std::unique_ptr<Parameter> b = test::toy_parameter(pool, "b", {1.0f, 2.0f});
    Optimizer optimizer{{w.get(), b.get()}, {.kind = OptimizerKind::adamw8bit}, pool};

    void step(int k) {
      for (int64_t i = 0; i < kCount; ++i) w->gradient.data<float>()[i] = static_cast<float>((i * k) % 17 - 8);
      b->gradient.data<float>()[0] = static_cast<float>(k);
      optimizer.step(1e-2);
    }
  };
  Large whole, first, second;
  whole.step(1);
  whole.step(2);
  first.step(1);
  const std::vector<NamedTensor> from = first.optimizer.state(), to = second.optimizer.state();
  ASSERT_EQ(from.size(), 6u) << "codes and absmax of two states, and two small tensors in f32";
  EXPECT_EQ(from[0].name, "w.exp_avg");
  EXPECT_EQ(from[0].value.dtype(), DType::u8);
  EXPECT_EQ(from[1].name, "w.exp_avg.absmax");
  EXPECT_EQ(from[4].name, "b.exp_avg");
  EXPECT_EQ(from[4].value.dtype(), DType::f32);
  for (size_t i = 0; i < from.size(); ++i)
    std::memcpy(to[i].value.mutable_raw(), from[i].value.raw(), from[i].value.bytes());
  std::memcpy(second.w->value.mutable_raw(), first.w->value.raw(), first.w->value.bytes());
  std::memcpy(second.b->value.mutable_raw(), first.b->value.raw(), first.b->value.bytes());
  second.optimizer.set_updates(1);
  second.step(2);
  EXPECT_EQ(test::values(second.w->value), test::values(whole.w->value));
  EXPECT_EQ(test::values(second.b->value), test::values(whole.b->value));
}

// Without gradients a step is decay alone: 1 - rate x decay of the tensor's group.
TEST(Optimizer, LoraPlusSortsTensorsByNamesAndGlobalDimensions) {
  const std::string layer = "base_model.model.model.layers.0.q_proj.", table = "base_model.model.model.embed_tokens.";
  const std::string norm = "base_model.model.model.norm.weight";
  const Shape matrix = {2, 2}, vector = {4};
  struct Tested {
    std::string name;
    Shape global;
    double factor;
  };
  const double plain = 1 - 0.1 * 0.5, larger = 1 - 3 * 0.1 * 0.5, embedding = 1 - 0.01 * 0.1 * 0.5;
  for (const bool layer_norms : {false, true}) {
    const Tested all[] = {{layer + "lora_A.weight", matrix, plain},
                          {layer + "lora_B.weight", matrix, larger},
                          {layer + "lora_B.bias", vector, 1},
                          {layer + "lora_magnitude_vector", vector, larger},
                          {layer + "base_layer.bias", vector, 1},
                          {table + "lora_embedding_A", matrix, embedding},
                          {table + "lora_embedding_B", matrix, embedding},
                          {table + "lora_magnitude_vector", vector, larger},
                          {table + "token_adapter.trainable_tokens_delta", matrix, plain},
                          {norm, vector, layer_norms ? 1 : larger},
                          {"base_model.model.lm_head.weight", matrix, plain}};
    for (const auto& [name, global, factor] : all) {
      MemoryPool pool;
      const auto shard = test::toy_parameter(pool, name, {1, 1, 1, 1});  // flat, as a rank has it
      OptimizerOptions options;
      options.weight_decay = 0.5;
      options.loraplus_lr_ratio = 3;
      options.embedding_lr_ratio = 0.01;
      options.layer_norms = layer_norms;
      Optimizer optimizer({shard.get()}, options, pool, false, [&](const Parameter&) { return global; });
      optimizer.step(0.1);
      for (const float value : test::values(shard->value)) EXPECT_FLOAT_EQ(value, static_cast<float>(factor)) << name;
    }
  }
}

TEST(Optimizer, RefusesNothingToTrainAndEqualNames) {
  TwoTensors setup;
  EXPECT_THROW(Optimizer({}, {}, setup.pool), UsageError);
  EXPECT_THROW(Optimizer({setup.w.get(), setup.w.get()}, {}, setup.pool), UsageError);
  setup.w->trainable = false;
  EXPECT_THROW(Optimizer({setup.w.get()}, {}, setup.pool), std::logic_error);
}

TEST(Optimizer, PatternsMatchPartsOfNames) {
  const std::string name = "model.layers.10.input_layernorm.weight";
  for (const char* pattern : {"norm", "layers.*.weight", "layers.1?.input", "*", "", "model", "weight"}) {
    EXPECT_TRUE(name_matches(pattern, name)) << pattern;
  }
  for (const char* pattern : {"bias", "layers.?.input", "weight.*x", "norms"}) {
    EXPECT_FALSE(name_matches(pattern, name)) << pattern;
  }
}

}  // namespace
}  // namespace nibble
