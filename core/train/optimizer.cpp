#include "nibble/core/train/optimizer.h"

#include <algorithm>
#include <set>

#include "nibble/core/base/error.h"
#include "nibble/core/ops/optimizer.h"
#include "nibble/core/train/each_parameter.h"

namespace nibble {

namespace {

// Wildcard match of the whole text: back up to the last `*` on a mismatch.
bool matches_fully(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == text[t] || pattern[p] == '?') && pattern[p] != '*') {
      ++p, ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

struct LoraPlusGroup {
  double lr_ratio = 1;
  bool decays = true;
};

// By names and dimensions, as PEFT sorts them. Of vectors, only norms' weights are neither biases nor an adapter's.
LoraPlusGroup lora_plus_group(std::string_view name, const Shape& shape, const OptimizerOptions& options) {
  const auto has = [&](std::string_view part) { return name.find(part) != name.npos; };
  if (options.loraplus_lr_ratio == 0) return {};
  if (has("lora_embedding_")) return {options.embedding_lr_ratio, true};
  if (!has("lora_B") && shape.size() != 1) return {};
  return {options.loraplus_lr_ratio, !has("bias") && (has("lora_") || !options.layer_norms)};
}

ops::EightBitState eight_bit_zeros(MemoryPool& pool, const Shape& shape, const std::string& what) {
  const int64_t blocks = ops::eight_bit_blocks(element_count(shape));
  return {Tensor::zeros(pool, shape, DType::u8, what), Tensor::zeros(pool, {blocks}, DType::f32, what)};
}

}  // namespace

bool name_matches(std::string_view pattern, std::string_view name) {
  return matches_fully("*" + std::string(pattern) + "*", name);
}

Optimizer::Optimizer(std::vector<Parameter*> parameters, OptimizerOptions options, MemoryPool& pool, bool may_be_empty,
                     const std::function<Shape(const Parameter&)>& global_shape)
    : parameters_(std::move(parameters)), options_(std::move(options)) {
  if (parameters_.empty() && !may_be_empty) throw UsageError("nothing is trainable", "check adapter.target_modules");
  const MemoryPool::Use use(pool, MemoryUse::optimizer);
  std::set<std::string_view> names;
  for (const Parameter* parameter : parameters_) {
    NIBBLE_CHECK(parameter->trainable && parameter->gradient && parameter->value.dtype() == DType::f32,
                 parameter->name + " is not a trainable f32 parameter");
    if (!names.insert(parameter->name).second) throw UsageError("two trainable tensors are named " + parameter->name);
    State state;
    const Shape global = global_shape ? global_shape(*parameter) : parameter->value.shape();
    const LoraPlusGroup group = lora_plus_group(parameter->name, global, options_);
    state.lr_ratio = group.lr_ratio;
    const bool decays = group.decays && std::none_of(options_.no_decay.begin(), options_.no_decay.end(),
                                                     [&](const std::string& pattern) {
                                                       return name_matches(pattern, parameter->name);
                                                     });
    if (decays) state.weight_decay = static_cast<float>(options_.weight_decay);
    const Shape& shape = parameter->value.shape();
    const std::string what = "optimizer state of " + parameter->name;
    if (options_.kind == OptimizerKind::adamw8bit && element_count(global) >= ops::kEightBitMinimum) {
      state.exp_avg_8 = eight_bit_zeros(pool, shape, what);
      state.exp_avg_sq_8 = eight_bit_zeros(pool, shape, what);
    } else if (options_.kind != OptimizerKind::sgd) {
      state.exp_avg = Tensor::zeros(pool, shape, DType::f32, what);
      state.exp_avg_sq = Tensor::zeros(pool, shape, DType::f32, what);
    }
    states_.push_back(std::move(state));
  }
}

void Optimizer::step(double lr, double gradient_scale) {
  ++updates_;
  const float scale = static_cast<float>(gradient_scale);
  for_each_parameter(parameters_, [&](size_t i) {
    Parameter& parameter = *parameters_[i];
    State& state = states_[i];
    const float own_lr = static_cast<float>(lr * state.lr_ratio);
    if (options_.kind == OptimizerKind::sgd) {
      return ops::sgd(parameter.value, parameter.gradient, own_lr, state.weight_decay, scale);
    }
    ops::AdamWParams params;
    params.lr = own_lr;
    params.beta1 = static_cast<float>(options_.beta1);
    params.beta2 = static_cast<float>(options_.beta2);
    params.eps = static_cast<float>(options_.eps);
    params.weight_decay = state.weight_decay;
    params.step = updates_;
    params.gradient_scale = scale;
    if (state.exp_avg_8.codes) {
      ops::adamw8bit(parameter.value, parameter.gradient, state.exp_avg_8, state.exp_avg_sq_8, params);
    } else {
      ops::adamw(parameter.value, parameter.gradient, state.exp_avg, state.exp_avg_sq, params);
    }
  });
}

int64_t Optimizer::size() const {
  int64_t values = 0;
  for (const Parameter* parameter : parameters_) values += parameter->value.numel();
  return values;
}

std::vector<NamedTensor> Optimizer::state() const {
  std::vector<NamedTensor> named;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string &name = parameters_[i]->name, first = name + ".exp_avg", second = name + ".exp_avg_sq";
    const State& state = states_[i];
    if (state.exp_avg) named.insert(named.end(), {{first, state.exp_avg}, {second, state.exp_avg_sq}});
    if (!state.exp_avg_8.codes) continue;
    named.insert(named.end(), {{first, state.exp_avg_8.codes},
                               {first + ".absmax", state.exp_avg_8.absmax},
                               {second, state.exp_avg_sq_8.codes},
                               {second + ".absmax", state.exp_avg_sq_8.absmax}});
  }
  return named;
}

}  // namespace nibble
