// The hand-written backward pass of a Block against differences of its forward pass, for every shape a family can give
// it.

#include "nibble/core/nn/block.h"

#include <gtest/gtest.h>

#include <cmath>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/nn/feed_forward/mlp.h"
#include "nibble/core/nn/mixers/attention.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/tests/random_stream.h"

namespace nibble {
namespace {

struct PlainConfig : BlockConfig {
  AttentionConfig attention;
  MlpConfig mlp;
};

struct PlainNames : NormNames {
  AttentionNames attention;
  MlpNames mlp;
};

struct Form {
  std::string name;
  PlainConfig config;
  PlainNames names;
};

PlainConfig plain_config() {
  PlainConfig config;
  config.width = 12;
  config.attention.width = 12;
  config.attention.heads = 4;
  config.attention.kv_heads = 2;
  config.attention.head_size = 6;
  config.attention.scale = 0.4f;
  config.attention.rotary = 0;
  config.mlp.width = 12;
  config.mlp.hidden = 20;
  return config;
}

std::vector<Form> forms() {
  std::vector<Form> result;
  const auto add = [&](const std::string& name) -> Form& {
    return result.emplace_back(Form{.name = name, .config = plain_config(), .names = {}});
  };
  add("Llama");
  Form& window = add("WindowAndQkvBias");
  window.config.attention.window = 3;
  window.config.attention.qkv_bias = true;
  add("NormOfQueriesAndKeys").config.attention.qk_norm = HeadNormConfig{};
  add("NormOfAllHeadsTogether").config.attention.qk_norm = HeadNormConfig{.kind = HeadNormKind::whole, .norm = {}};
  const NormConfig layer_norm = {.kind = NormKind::layer, .eps = 1e-5f};
  add("NormOfEachHead").config.attention.qk_norm = HeadNormConfig{.kind = HeadNormKind::every_head, .norm = layer_norm};
  add("NormOfEachHeadInOneParameter").config.attention.qk_norm =
      HeadNormConfig{.kind = HeadNormKind::rows, .norm = {.kind = NormKind::layer}};
  add("ClippedQueriesKeysAndValues").config.attention.qkv_clip = 2.4f;  // few elements lie near the kink
  Form& scaled = add("ScaledResidual");
  scaled.config.residual_scale = 0.3f;
  scaled.names.post_mlp_norm = "post_mlp";
  for (NormPlace place : {NormPlace::sum, NormPlace::stream}) {
    Form& around = add(place == NormPlace::sum ? "NormsOfSums" : "NormsInTheStream");
    around.config.norm = layer_norm;
    around.config.norm.bias = true;
    around.config.norm_place = place;
  }
  Form& bare = add("NormsWithoutParameters");
  bare.config.norm = layer_norm;
  bare.config.norm.weight = false;
  Form& codegen = add("TiltedFusedValueBeforeKey");
  codegen.config.attention.qkv_groups = 2;
  codegen.config.attention.value_before_key = true;
  codegen.config.attention.rotary = -1;
  codegen.config.attention.alibi_slopes = {0.5f, 0.25f, 0.125f, 0.0625f};
  codegen.names.attention.qkv = "attn.qkv_proj";
  Form& gemma = add("NormsBeforeAndAfterWithCaps");
  gemma.config.norm.weight_offset = 1;
  gemma.config.attention.softcap = 2;
  gemma.config.mlp.activation = ops::Activation::gelu_tanh;
  gemma.names.post_attention_norm = "post_attention";
  gemma.names.post_mlp_norm = "post_mlp";
  Form& post = add("NormsOnlyAfter");
  post.names.attention_norm = post.names.mlp_norm = "";
  post.names.post_attention_norm = "post_attention";
  post.names.post_mlp_norm = "post_mlp";
  Form& neox = add("ParallelTwoLayerNormsFusedByHead");
  neox.config.parallel_residual = true;
  neox.config.norm = {.kind = NormKind::layer, .eps = 1e-5f, .bias = true};
  neox.config.attention.kv_heads = 4;
  neox.config.attention.qkv_groups = 4;
  neox.config.attention.qkv_bias = neox.config.attention.output_bias = neox.config.mlp.bias = true;
  neox.config.mlp.gated = false;
  neox.config.mlp.activation = ops::Activation::gelu_erf;
  neox.names.attention.qkv = "attention.query_key_value";
  Form& falcon = add("ParallelOneNormFusedByGroup");
  falcon.config.parallel_residual = true;
  falcon.config.attention.qkv_groups = 2;
  falcon.config.mlp.gated = false;
  falcon.names.attention.qkv = "attention.query_key_value";
  falcon.names.mlp_norm = "";
  Form& phi = add("FusedOneAfterAnother");
  phi.names.attention.qkv = "self_attn.qkv_proj";
  phi.names.mlp.gate_up = "mlp.gate_up_proj";
  return result;
}

class BlockBackward : public ::testing::TestWithParam<size_t> {
 protected:
  static constexpr int64_t kTokens = 11;

  BlockBackward()
      : form_(forms()[GetParam()]),
        block_("layer.", form_.names, form_.config,
               std::make_unique<Attention>("layer.", form_.names.attention, form_.config.attention, makers()),
               std::make_unique<Mlp>("layer.", form_.names.mlp, form_.config.mlp, makers()), makers().parameter) {
    block_.visit([&](Parameter& parameter) { parameter.make_trainable(pool()); });
  }

  MemoryPool& pool() { return rank_.context().pool; }
  StepContext step() { return {.rank = rank_.context(), .row_keys = {}}; }
  LayerContext context() {
    return {.positions = positions_, .spans = spans_, .rotary = {rotary_.at(positions_, spans_, pool())}};
  }

  Tensor random(const Shape& shape, float scale, float middle = 0) {
    test::RandomStream stream(3, 9, counter_++);
    Tensor result = Tensor::empty(pool(), shape, DType::f32);
    for (float& value : result.span<float>()) value = middle + scale * stream.next_normal();
    return result;
  }

  Makers makers() {
    const ParameterMaker parameter = [this](const std::string& name, const Shape& shape) {
      return std::make_shared<Parameter>(
          Parameter{.name = name, .value = random(shape, 0.3f, shape.size() == 1 ? 0.7f : 0.0f), .gradient = {}});
    };
    return {[parameter](const std::string& module, const Shape& shape) {
              return std::make_unique<DenseWeight>(parameter(module + ".weight", shape));
            },
            parameter};
  }

  static double dot(const Tensor& a, const Tensor& b) {
    double sum = 0;
    for (int64_t i = 0; i < a.numel(); ++i) {
      sum += static_cast<double>(a.data<const float>()[i]) * static_cast<double>(b.data<const float>()[i]);
    }
    return sum;
  }

  // Numerical derivative of sum(weights * forward(x)) when `value` moves along `direction`: five points, exact to
  // fourth order.
  double derivative(Tensor& value, const Tensor& direction) {
    const float reach = 2e-3f;
    const Tensor start = value.clone(pool());
    const auto at = [&](float steps) {
      ops::add(direction, value, steps * reach);
      const double result = dot(block_.forward(x_, context(), step(), nullptr), weights_);
      ops::cast(start, value);
      return result;
    };
    return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * static_cast<double>(reach));
  }

  LocalRank rank_{2};
  uint64_t counter_ = 0;
  Form form_;
  Tensor positions_ = Tensor::from<int32_t>(pool(), {kTokens}, std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3});
  std::vector<ops::AttentionSpan> spans_{{0, 7, 0, 7}, {7, kTokens, 7, kTokens}};
  RotaryTable rotary_{RopeConfig{.size = 4, .base = 100}};
  Tensor x_ = random({kTokens, 12}, 1);
  Tensor weights_ = random({kTokens, 12}, 1);
  Block block_;
};

TEST_P(BlockBackward, MatchesFiniteDifferencesOfForward) {
  BlockSaved saved;
  block_.forward(x_, context(), step(), &saved);
  Tensor gradient = weights_.clone(pool());
  block_.backward(gradient, context(), step(), std::move(saved), true);
  const auto expect_derivative = [&](const std::string& name, Tensor& value, const Tensor& result) {
    const Tensor direction = random(value.shape(), 1);
    const double wanted = derivative(value, direction);
    // f32 differences: about four digits of a typical derivative
    const double size = std::sqrt(dot(result, result));
    EXPECT_NEAR(dot(result, direction), wanted, 2e-3 * size + 1e-3) << name;
    EXPECT_GT(size, 1e-3) << name;
  };
  expect_derivative("input", x_, gradient);
  block_.visit([&](Parameter& parameter) { expect_derivative(parameter.name, parameter.value, parameter.gradient); });
}

TEST_P(BlockBackward, WithoutInputGradientTheParametersGradientsAreTheSame) {
  std::vector<std::vector<float>> result[2];
  for (const bool input_gradient : {true, false}) {
    block_.visit([](Parameter& parameter) { parameter.gradient.zero(); });
    BlockSaved saved;
    block_.forward(x_, context(), step(), &saved);
    Tensor gradient = weights_.clone(pool());
    block_.backward(gradient, context(), step(), std::move(saved), input_gradient);
    block_.visit([&](Parameter& parameter) {
      const std::span<const float> values = parameter.gradient.span<const float>();
      result[input_gradient].emplace_back(values.begin(), values.end());
    });
  }
  EXPECT_EQ(result[0], result[1]);
}

INSTANTIATE_TEST_SUITE_P(Forms, BlockBackward, ::testing::Range(size_t{0}, forms().size()),
                         [](const auto& test) { return forms()[test.param].name; });

}  // namespace
}  // namespace nibble
