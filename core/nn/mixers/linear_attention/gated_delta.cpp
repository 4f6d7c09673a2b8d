#include "nibble/core/nn/mixers/linear_attention/gated_delta.h"

#include <cmath>

#include "nibble/core/ops/columns.h"

namespace nibble {

namespace {

LinearAttentionConfig attention_config(const GatedDeltaConfig& config) {
  LinearAttentionConfig result;
  result.params = {.heads = config.heads,
                   .key_heads = config.key_heads,
                   .key_size = config.key_size,
                   .value_size = config.value_size,
                   .scale = 1 / std::sqrt(static_cast<float>(config.key_size)),
                   .delta = true};
  result.taps = config.taps;
  result.activation = config.activation;
  result.params.channel_decay = config.channel_decay;
  result.norm =
      ops::GatedNormParams{.group = config.value_size, .eps = config.eps, .sigmoid_gate = config.sigmoid_gate};
  result.beta_scale = config.beta_scale;
  result.decay_shape = config.decay_shape;
  result.limits.least_decay = config.least_decay;
  result.one_norm_weight = true;
  return result;
}

// Columns of the decay's projection.
int64_t decays(const GatedDeltaConfig& config) { return attention_config(config).decays(); }

std::map<size_t, Linear> make_second(const std::string& prefix, const GatedDeltaNames& names,
                                     const GatedDeltaConfig& config, const Makers& makers) {
  std::map<size_t, Linear> result;
  const auto add = [&](size_t i, const std::string& first, const std::string& name, int64_t rows) {
    if (!first.empty()) result.emplace(i, makers.make_linear(prefix + name, rows, config.value_size, false));
  };
  add(3, names.first_gate, names.gate, config.heads * config.value_size);
  add(5, names.first_decay, names.decay, decays(config));
  return result;
}

std::vector<Linear> make_projections(const std::string& prefix, const GatedDeltaNames& names,
                                     const GatedDeltaConfig& config, const Makers& makers) {
  const int64_t keys = config.key_heads * config.key_size, values = config.heads * config.value_size;
  std::vector<Linear> result;
  const auto add = [&](const std::string& name, int64_t rows) {
    result.push_back(makers.make_linear(prefix + name, rows, config.width, false));
  };
  if (config.fused) {
    add("in_proj_qkvz", 2 * keys + 2 * values);
    add("in_proj_ba", 2 * config.heads);
  } else if (config.apart) {
    const auto add_first = [&](const std::string& first, const std::string& name, int64_t rows) {
      first.empty() ? add(name, rows) : add(first, config.value_size);
    };
    add(names.q, keys);
    add(names.k, keys);
    add(names.v, values);
    add_first(names.first_gate, names.gate, values);
    add(names.beta, config.heads);
    add_first(names.first_decay, names.decay, decays(config));
  } else {
    add("in_proj_qkv", 2 * keys + values);
    add("in_proj_z", values);
    add("in_proj_b", config.heads);
    add("in_proj_a", config.heads);
  }
  return result;
}

}  // namespace

GatedDelta::GatedDelta(const std::string& prefix, const GatedDeltaNames& names, const GatedDeltaConfig& config,
                       const Makers& makers)
    : LinearAttentionMixer(
          make_projections(prefix, names, config, makers),
          LinearAttention(prefix, names.attention, attention_config(config), makers.parameter),
          makers.make_linear(prefix + names.output, config.width, config.heads * config.value_size, false),
          make_second(prefix, names, config, makers)),
      config_(config) {}

// Of a fused projection the rows of each key head are its query, its key, its values and their gates, or the betas and
// decays of its values.
LinearAttention::Inputs GatedDelta::split(const std::vector<Tensor>& projected, const StepContext& step) const {
  if (config_.apart) {
    Tensor mixed = Tensor::empty(step.pool(), {projected[0].dim(0), 2 * sizes().keys() + sizes().values()},
                                 projected[0].dtype(), "projection");
    for (size_t i = 0; i < 3; ++i) ops::copy_columns_in(projected[i], static_cast<int64_t>(i) * sizes().keys(), mixed);
    return {mixed, projected[3], projected[5], projected[4]};
  }
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
  if (config_.apart) {
    std::vector<Tensor> parts;
    for (int64_t i = 0; i < 3; ++i) {
      const Shape shape = {gradients.mixed.dim(0), i == 2 ? sizes().values() : sizes().keys()};
      parts.push_back(Tensor::empty(step.pool(), shape, gradients.mixed.dtype(), "projection gradient"));
      ops::copy_columns_out(gradients.mixed, i * sizes().keys(), parts.back());
    }
    parts.insert(parts.end(), {gradients.gate, gradients.beta, gradients.step});
    return parts;
  }
  if (!config_.fused) return {gradients.mixed, gradients.gate, gradients.beta, gradients.step};
  const LinearAttentionConfig& config = sizes();
  const int64_t tokens = gradients.mixed.dim(0), rows = tokens * config_.key_heads, keys = config.keys();
  std::vector<Tensor> result;
  for (const Linear& linear : projections()) {
    result.push_back(Tensor::empty(step.pool(), {rows, linear.out_features() / config_.key_heads},
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
  put(mixed(0, keys), 0, result[0]);
  put(mixed(keys, keys), K, result[0]);
  put(mixed(2 * keys, config.values()), 2 * K, result[0]);
  put(gradients.gate, 2 * K + V, result[0]);
  put(gradients.beta, 0, result[1]);
  put(gradients.step, together, result[1]);
  for (Tensor& gradient : result) gradient = gradient.reshape({tokens, gradient.numel() / tokens});
  return result;
}

}  // namespace nibble
