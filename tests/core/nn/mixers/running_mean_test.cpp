// A mixer that no family has, in one file: it generates, trains, checkpoints, shards and pipelines.

#include "nibble/core/ops/activation.h"
#include "nibble/tests/core/nn/new_kind.h"

namespace nibble {
namespace {

using namespace nibble::test;

/// y = out(silu(gate x) * the mean of value x over the document so far).
class RunningMean final : public Mixer {
 public:
  RunningMean(const std::string& prefix, int64_t width, int64_t hidden, const Makers& makers)
      : hidden_(hidden),
        gate_(makers.make_linear(prefix + "mean.gate", hidden, width, false)),
        value_(makers.make_linear(prefix + "mean.value", hidden, width, true)),
        out_(makers.make_linear(prefix + "mean.out", width, hidden, false)) {}

  bool has_trainable() const override {
    return gate_.has_trainable() || value_.has_trainable() || out_.has_trainable();
  }

  void forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
               std::unique_ptr<SublayerSaved>* saved) override {
    Saved* kept = new_saved<Saved>(saved);
    const Tensor value = project(value_, x, step, kept ? &kept->value_proj : nullptr);
    // Scores that are all zero weigh every key alike.
    const Tensor zeros = Tensor::zeros(step.pool(), value.shape(), value.dtype());
    Tensor mean = like(value, step);
    Tensor sums = Tensor::empty(step.pool(), {1, x.dim(0)}, DType::f32);
    ops::attention_forward(zeros, zeros, value, context.spans, params(), mean, sums);
    finish(x, mean, step, y, kept);
    if (kept) {
      kept->value = value;
      kept->sums = sums;
    }
  }

  void backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& of,
                Tensor* dx) override {
    auto& saved = dynamic_cast<Saved&>(of);
    Tensor dproduct = like(saved.mean, step), dgate = like(saved.mean, step), dmean = like(saved.mean, step), none;
    out_.backward(dy, step, std::move(saved.out_proj), &dproduct, false);
    ops::gated_backward(ops::Activation::silu, dproduct, saved.gate, saved.mean, dgate, dmean, none);
    const Tensor zeros = Tensor::zeros(step.pool(), saved.mean.shape(), saved.mean.dtype());
    Tensor dq = like(zeros, step), dk = like(zeros, step), dvalue = like(zeros, step);
    ops::attention_backward(dmean, zeros, zeros, saved.value, saved.mean, saved.sums, context.spans, params(), dq, dk,
                            dvalue);
    if (dx && !*dx) *dx = Tensor::empty(step.pool(), {dy.dim(0), value_.in_features()}, DType::f32);
    gate_.backward(dgate, step, std::move(saved.gate_proj), dx, false);
    value_.backward(dvalue, step, std::move(saved.value_proj), dx, true);
  }

  // A state of one row for a sequence, however long it is.
  std::unique_ptr<MixerCache> make_cache(int64_t sequences, DType, MemoryPool& pool) const override {
    auto cache = std::make_unique<Cache>();
    cache->means = Tensor::zeros(pool, {sequences, hidden_}, DType::f32);
    return cache;
  }

  void forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                      MixerCache& of) override {
    auto& cache = dynamic_cast<Cache&>(of);
    const Tensor value = project(value_, x, step, nullptr);
    Tensor mean = like(value, step);
    for (size_t i = 0; i < context.spans.size(); ++i) {
      const auto [sequence, length] = context.continued[i];
      Tensor state = cache.means.rows(sequence, sequence + 1);
      auto count = static_cast<float>(length);
      for (int64_t t = context.spans[i].q_begin; t < context.spans[i].q_end; ++t, ++count) {
        ops::scale(state, count / (count + 1));
        ops::add(value.rows(t, t + 1), state, 1 / (count + 1));
        Tensor row = mean.rows(t, t + 1);
        ops::cast(state, row);
      }
    }
    finish(x, mean, step, y, nullptr);
  }

  void visit(const ParameterVisitor& visitor) override {
    visit_linears([&](Linear& linear) { linear.visit(visitor); });
  }
  void visit_linears(const std::function<void(Linear&)>& visitor) override {
    for (Linear* linear : {&gate_, &value_, &out_}) visitor(*linear);
  }

 private:
  struct Cache final : MixerCache {
    void reserve(int64_t) override {}
    void copy(int64_t from, int64_t to, int64_t) override {
      Tensor mean = means.rows(to, to + 1);
      ops::cast(means.rows(from, from + 1), mean);
    }
    Tensor means;  // [sequences, hidden] f32
  };

  struct Saved final : SublayerSaved {
    void visit(const TensorVisitor& visitor) override {
      for (LinearSaved* linear : {&gate_proj, &value_proj, &out_proj}) linear->visit(visitor);
      for (Tensor* tensor : {&gate, &value, &mean, &sums}) visitor(*tensor);
    }
    bool has_input() const override { return gate_proj.x || value_proj.x; }
    void set_input(const Tensor& x) override { gate_proj.x = value_proj.x = x; }

    LinearSaved gate_proj, value_proj, out_proj;
    Tensor gate, value, mean, sums;
  };

  ops::AttentionParams params() const { return {.heads = 1, .kv_heads = 1, .head_size = hidden_, .alibi_slopes = {}}; }
  static Tensor like(const Tensor& x, const StepContext& step) {
    return Tensor::empty(step.pool(), x.shape(), x.dtype());
  }
  Tensor project(Linear& linear, const Tensor& x, const StepContext& step, LinearSaved* saved) const {
    Tensor result = Tensor::empty(step.pool(), {x.dim(0), hidden_}, step.compute_dtype);
    linear.forward(x, result, step, saved);
    return result;
  }
  void finish(const Tensor& x, const Tensor& mean, const StepContext& step, Tensor& y, Saved* kept) {
    const Tensor gate = project(gate_, x, step, kept ? &kept->gate_proj : nullptr);
    Tensor product = like(mean, step);
    ops::gated_forward(ops::Activation::silu, gate, mean, product);
    out_.forward(product, y, step, kept ? &kept->out_proj : nullptr);
    if (!kept) return;
    kept->gate = gate;
    kept->mean = mean;
  }

  int64_t hidden_;
  Linear gate_, value_, out_;
};

DecoderConfig running_mean_config() {
  return with_kind([](LayerConfig& layer) {
    layer.mixer = [](const DecoderConfig& config, int64_t l, const std::string& prefix, const Makers& makers) {
      return std::make_unique<RunningMean>(prefix, config.width, 8 + 4 * l, makers);
    };
  });
}

TEST(RunningMean, IsWhatItSays) {
  Rank rank;
  Decoder decoder = random_decoder(running_mean_config(), 1, rank.context());
  std::vector<std::string> names;
  decoder.visit_linears([&](Linear& linear) {
    if (linear.name().find("layers.1.") != std::string::npos) names.push_back(linear.name());
  });
  EXPECT_EQ(names, (std::vector<std::string>{"model.layers.1.mean.gate", "model.layers.1.mean.value",
                                             "model.layers.1.mean.out", "model.layers.1.mlp.gate_proj",
                                             "model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj"}));
}

TEST(RunningMean, ItsGradientsAreFiniteDifferences) { expect_gradients_are_finite_differences(running_mean_config()); }
TEST(RunningMean, WhatItKeepsMayBeComputedAgainOrLieInAFile) { expect_same_bits_however_kept(running_mean_config()); }
TEST(RunningMean, ContinuesCachedSequences) { expect_cached_text(running_mean_config()); }
TEST(RunningMean, RunsOnEveryDevice) { expect_same_on_devices(running_mean_config()); }
TEST(RunningMean, TrainsShardsAndPipelines) { expect_trains_shards_and_pipelines(running_mean_config()); }

}  // namespace
}  // namespace nibble
