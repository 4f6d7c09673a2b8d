// A feed-forward that no family has, in one file: it trains, checkpoints, shards and pipelines. Its weights are tensors
// of several matrices, as experts have them.

#include "nibble/adapters/attach.h"
#include "nibble/core/ops/activation.h"
#include "nibble/tests/core/nn/new_kind.h"

namespace nibble {
namespace {

using namespace nibble::test;

/// y = the sum over experts of down_e gelu(up_e x).
class ExpertSum final : public FeedForward {
 public:
  ExpertSum(const std::string& prefix, int64_t width, int64_t hidden, const Makers& makers)
      : up_(makers.make_linears(prefix + "experts.up_proj", kExperts, hidden, width)),
        down_(makers.make_linears(prefix + "experts.down_proj", kExperts, width, hidden)) {}

  bool has_trainable() const override { return up_[0].has_trainable() || down_[0].has_trainable(); }

  void forward(const Tensor& x, const LayerContext&, const StepContext& step, Tensor& y,
               std::unique_ptr<SublayerSaved>* saved) override {
    Saved* kept = new_saved<Saved>(saved);
    Tensor sum = Tensor::zeros(step.pool(), y.shape(), DType::f32);
    for (size_t e = 0; e < kExperts; ++e) {
      Tensor hidden = make(x, up_[e].out_features(), step), active = make(x, up_[e].out_features(), step);
      Tensor part = Tensor::empty(step.pool(), y.shape(), y.dtype());
      up_[e].forward(x, hidden, step, kept ? &kept->up[e] : nullptr);
      ops::activation_forward(kActivation, hidden, active);
      down_[e].forward(active, part, step, kept ? &kept->down[e] : nullptr);
      ops::add(part, sum);
      if (kept) kept->hidden[e] = hidden;
    }
    ops::cast(sum, y);
  }

  void backward(const Tensor& dy, const LayerContext&, const StepContext& step, SublayerSaved& of,
                Tensor* dx) override {
    auto& saved = dynamic_cast<Saved&>(of);
    if (dx && !*dx) *dx = Tensor::empty(step.pool(), {dy.dim(0), up_[0].in_features()}, DType::f32);
    for (size_t e = 0; e < kExperts; ++e) {
      Tensor dactive = make(dy, up_[e].out_features(), step), dhidden = make(dy, up_[e].out_features(), step);
      down_[e].backward(dy, step, std::move(saved.down[e]), &dactive, false);
      ops::activation_backward(kActivation, dactive, saved.hidden[e], dhidden);
      up_[e].backward(dhidden, step, std::move(saved.up[e]), dx, e > 0);
    }
  }

  void visit(const ParameterVisitor& visitor) override {
    visit_linears([&](Linear& linear) { linear.visit(visitor); });
  }
  void visit_linears(const std::function<void(Linear&)>& visitor) override {
    for (std::vector<Linear>* linears : {&up_, &down_}) std::for_each(linears->begin(), linears->end(), visitor);
  }

 private:
  static constexpr size_t kExperts = 3;
  static constexpr ops::Activation kActivation = ops::Activation::gelu_tanh;

  struct Saved final : SublayerSaved {
    void visit(const TensorVisitor& visitor) override {
      for (size_t e = 0; e < kExperts; ++e) {
        up[e].visit(visitor);
        down[e].visit(visitor);
        visitor(hidden[e]);
      }
    }
    bool has_input() const override { return up[0].x.defined(); }
    void set_input(const Tensor& x) override {
      for (LinearSaved& linear : up) linear.x = x;
    }

    std::array<LinearSaved, kExperts> up, down;
    std::array<Tensor, kExperts> hidden;
  };

  static Tensor make(const Tensor& x, int64_t width, const StepContext& step) {
    return Tensor::empty(step.pool(), {x.dim(0), width}, step.compute_dtype);
  }

  std::vector<Linear> up_, down_;
};

DecoderConfig config() {
  return with_kind([](LayerConfig& layer) {
    layer.feed_forward = [](const DecoderConfig& config, int64_t l, const std::string& prefix, const Makers& makers) {
      return std::make_unique<ExpertSum>(prefix, config.width, 8 + 4 * l, makers);
    };
  });
}

TEST(ExpertSum, OneParameterHoldsAllMatrices) {
  Rank rank;
  Decoder decoder = random_decoder(config(), 1, rank.context());
  std::map<std::string, Shape> shapes;
  int linears = 0;
  decoder.visit(
      [&](Parameter& parameter) { EXPECT_TRUE(shapes.emplace(parameter.name, parameter.value.shape()).second); });
  decoder.visit_linears([&](Linear& linear) { linears += linear.name().starts_with("model.layers.3.experts."); });
  EXPECT_EQ(shapes.at("model.layers.3.experts.up_proj"), (Shape{3, 20, 16}));
  EXPECT_EQ(shapes.at("model.layers.3.experts.down_proj"), (Shape{3, 16, 20}));
  EXPECT_EQ(linears, 6);
  EXPECT_EQ(state_dict(decoder).size(), shapes.size());
}

// What is written is read again, every matrix a view of the file.
TEST(ExpertSum, ItsTensorsAreMappedFromTheFile) {
  Rank rank;
  TemporaryDirectory directory;
  Decoder decoder = random_decoder(config(), 1, rank.context());
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const NamedTensor& tensor : state_dict(decoder)) tensors.emplace_back(tensor.name, tensor.value);
  write_safetensors(directory / "model.safetensors", tensors);
  write_bytes(directory / "config.json", "{}");
  Decoder read = load_decoder(directory.path(), rank.context(), {.config = config()});
  read.visit_linears([](Linear& linear) { EXPECT_FALSE(linear.weight().parameter()->value.writable()); });
  const Batch batch = documents(0, rank.context().pool);
  EXPECT_EQ(all_logits(read, batch, rank.step()), all_logits(decoder, batch, rank.step()));
}

TEST(ExpertSum, AdaptersStandBesideEveryMatrix) {
  Rank rank;
  Decoder decoder = random_decoder(config(), 1, rank.context());
  AdapterOptions lora;
  lora.r = 2;
  lora.target_modules.pattern = R"(.*experts\.(up|down)_proj\.\d+)";
  attach_adapter(decoder, lora, rank.context());
  Optimizer optimizer(trainable_parameters(decoder), {}, rank.context().pool);
  EXPECT_EQ(optimizer.parameters().size(), 2u * 2 * 3 * 2);  // layers, tensors, matrices, A and B
  const Batch batch = documents(0, rank.context().pool);
  StepOptions options{.lr = 0.05};
  std::vector<double> losses;
  for (options.step = 1; options.step <= 8; ++options.step) {
    losses.push_back(train_step(decoder, {&batch, 1}, optimizer, options, rank.context()).loss);
  }
  EXPECT_LT(losses.back(), 0.99 * losses.front());
  for (const Parameter* parameter : optimizer.parameters()) {
    EXPECT_GT(ops::sum_of_squares(parameter->gradient), 0) << parameter->name;
  }
}

TEST(ExpertSum, ItsGradientsAreFiniteDifferences) { expect_gradients_are_finite_differences(config()); }
TEST(ExpertSum, WhatItKeepsMayBeComputedAgainOrLieInAFile) { expect_same_bits_however_kept(config()); }
TEST(ExpertSum, ContinuesCachedSequences) { expect_cached_text(config()); }
TEST(ExpertSum, RunsOnEveryDevice) { expect_same_on_devices(config()); }
TEST(ExpertSum, TrainsShardsAndPipelines) { expect_trains_shards_and_pipelines(config()); }

}  // namespace
}  // namespace nibble
