#include "nibble/core/nn/mixers/gated_delta.h"

#include <cmath>

#include "nibble/core/ops/columns.h"

namespace nibble {

namespace {

LinearAttentionConfig attention_config(const GatedDeltaConfig& config) {
  LinearAttentionConfig made;
  made.params = {.heads = config.heads,
                 .key_heads = config.key_heads,
                 .key_size = config.key_size,
                 .value_size = config.value_size,
                 .scale = 1 / std::sqrt(static_cast<float>(config.key_size)),
                 .delta = true};
  made.taps = config.taps;
  made.activation = config.activation;
  made.norm = ops::GatedNormParams{.group = config.value_size, .eps = config.eps};
  made.one_norm_weight = true;
  return made;
}

std::vector<Linear> make_projections(const std::string& prefix, const GatedDeltaConfig& config, const Makers& makers) {
  const int64_t keys = config.key_heads * config.key_size, values = config.heads * config.value_size;
  std::vector<Linear> made;
  const auto add = [&](const std::string& name, int64_t rows) {
    made.push_back(makers.make_linear(prefix + name, rows, config.width, false));
  };
  if (config.fused) {
    add("in_proj_qkvz", 2 * keys + 2 * values);
    add("in_proj_ba", 2 * config.heads);
  } else {
    add("in_proj_qkv", 2 * keys + values);
    add("in_proj_z", values);
    add("in_proj_b", config.heads);
    add("in_proj_a", config.heads);
  }
  return made;
}

}  // namespace

GatedDelta::GatedDelta(const std::string& prefix, const GatedDeltaConfig& config, const Makers& makers)
    : LinearAttentionMixer(
          make_projections(prefix, config, makers),
          LinearAttention(prefix, {}, attention_config(config), makers.parameter),
          makers.make_linear(prefix + "out_proj", config.width, config.heads * config.value_size, false)),
      config_(config) {}

// Of a fused projection the rows of each key head are its query, its key, its values and their gates, or the betas and
// decays of its values.
LinearAttention::Inputs GatedDelta::split(const std::vector<Tensor>& projected, const StepContext& step) const {
  if (!config_.fused) return {projected[0], projected[1], projected[3], projected[2]};
  const LinearAttentionConfig& config = sizes();
  const int64_t tokens = projected[0].dim(0), rows = tokens * config_.key_heads, keys = config.keys();
  const auto by_head = [&](const Tensor& x) { return x.reshape({rows, x.numel() / rows}); };
  const auto take = [&](const Tensor& from, int64_t begin, int64_t columns) {
    Tensor part = Tensor::empty(step.pool(), {rows, columns}, from.dtype(), "projection");
    ops::copy_columns_out(by_head(from), begin, part);
    return part.reshape({tokens, columns * config_.key_heads});
  };
  const int64_t K = config_.key_size, together = config_.heads / config_.key_heads, V = together * config_.value_size;
  LinearAttention::Inputs in{
      Tensor::empty(step.pool(), {tokens, 2 * keys + config.values()}, projected[0].dtype(), "projection"),
      take(projected[0], 2 * K + V, V), take(projected[1], together, together), take(projected[1], 0, together)};
  ops::copy_columns_in(take(projected[0], 0, K), 0, in.mixed);
  ops::copy_columns_in(take(projected[0], K, K), keys, in.mixed);
  ops::copy_columns_in(take(projected[0], 2 * K, V), 2 * keys, in.mixed);
  return in;
}

std::vector<Tensor> GatedDelta::join(const LinearAttention::Inputs& gradients, const StepContext& step) const {
  if (!config_.fused) return {gradients.mixed, gradients.gate, gradients.beta, gradients.step};
  const LinearAttentionConfig& config = sizes();
  const int64_t tokens = gradients.mixed.dim(0), rows = tokens * config_.key_heads, keys = config.keys();
  std::vector<Tensor> made;
  for (const Linear& linear : projections()) {
    made.push_back(Tensor::empty(step.pool(), {rows, linear.out_features() / config_.key_heads},
                                 gradients.mixed.dtype(), "projection gradient"));
  }
  const auto put = [&](const Tensor& part, int64_t begin, Tensor& to) {
    ops::copy_columns_in(part.reshape({rows, part.numel() / rows}), begin, to);
  };
  const auto mixed = [&](int64_t begin, int64_t columns) {
    Tensor part = Tensor::empty(step.pool(), {tokens, columns}, gradients.mixed.dtype(), "projection gradient");
    ops::copy_columns_out(gradients.mixed, begin, part);
    return part;
  };
  const int64_t K = config_.key_size, together = config_.heads / config_.key_heads, V = together * config_.value_size;
  put(mixed(0, keys), 0, made[0]);
  put(mixed(keys, keys), K, made[0]);
  put(mixed(2 * keys, config.values()), 2 * K, made[0]);
  put(gradients.gate, 2 * K + V, made[0]);
  put(gradients.beta, 0, made[1]);
  put(gradients.step, together, made[1]);
  for (Tensor& gradient : made) gradient = gradient.reshape({tokens, gradient.numel() / tokens});
  return made;
}

}  // namespace nibble
