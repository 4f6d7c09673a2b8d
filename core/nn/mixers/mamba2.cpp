#include "nibble/core/nn/mixers/mamba2.h"

#include <algorithm>

#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/weight_norm.h"

namespace nibble {

namespace {

LinearAttentionConfig attention_config(const Mamba2Config& config) {
  LinearAttentionConfig result;
  result.params = {
      .heads = config.heads, .key_heads = config.groups, .key_size = config.state_size, .value_size = config.head_size};
  result.taps = config.taps;
  result.conv_bias = config.conv_bias;
  result.activation = config.activation;
  result.value_first = true;
  result.skip = true;
  result.limits = config.limits;
  if (config.norm) {
    result.norm = ops::GatedNormParams{
        .group = result.values() / config.groups, .eps = config.eps, .gate_first = config.gate_first};
  }
  return result;
}

std::vector<Linear> make_projection(const std::string& prefix, const Mamba2Config& config, const Makers& makers) {
  const int64_t values = config.heads * config.head_size, keys = config.groups * config.state_size;
  std::vector<Linear> result;
  result.push_back(
      makers.make_linear(prefix + "in_proj", 2 * (values + keys) + config.heads, config.width, config.input_bias));
  return result;
}

}  // namespace

Mamba2::Mamba2(const std::string& prefix, const Mamba2Config& config, const Makers& makers)
    : LinearAttentionMixer(
          make_projection(prefix, config, makers),
          LinearAttention(prefix, {}, attention_config(config), makers.parameter),
          makers.make_linear(prefix + "out_proj", config.width, config.heads * config.head_size, config.output_bias)) {
  if (std::ranges::all_of(config.multipliers, [](float factor) { return factor == 1; })) return;
  const int64_t values = sizes().values(), keys = sizes().keys();
  const std::array<int64_t, 5> rows = {values, values, keys, keys, config.heads};
  for (size_t i = 0; i < rows.size(); ++i) {
    multipliers_.insert(multipliers_.end(), static_cast<size_t>(rows[i]), config.multipliers[i]);
  }
}

void Mamba2::multiply(Tensor& projected, const StepContext& step) const {
  if (multipliers_.empty()) return;
  ops::scale_columns(projected, Tensor::from<float>(step.pool(), {projected.dim(1)}, multipliers_), 0, projected);
}

// Columns: gate, what is convolved (x, B, C), time step.
LinearAttention::Inputs Mamba2::split(const std::vector<Tensor>& projected, const StepContext& step) const {
  Tensor all = projected[0];
  multiply(all, step);
  const auto take = [&](int64_t begin, int64_t columns) { return columns_of(all, begin, columns, step); };
  const int64_t values = sizes().values(), mixed = values + 2 * sizes().keys();
  return {take(values, mixed), take(0, values), take(values + mixed, sizes().params.heads), {}};
}

std::vector<Tensor> Mamba2::join(const LinearAttention::Inputs& gradients, const StepContext& step) const {
  const int64_t values = sizes().values(), mixed = gradients.mixed.dim(1);
  Tensor all = Tensor::empty(step.pool(), {gradients.mixed.dim(0), projections()[0].out_features()},
                             gradients.mixed.dtype(), "projection gradient");
  ops::copy_columns_in(gradients.gate, 0, all);
  ops::copy_columns_in(gradients.mixed, values, all);
  ops::copy_columns_in(gradients.step, values + mixed, all);
  multiply(all, step);
  return {all};
}

}  // namespace nibble
