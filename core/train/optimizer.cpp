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

ops::EightBitState eight_bit_zeros(MemoryPool& pool, const Shape& shape, const std::string& what) {
  const int64_t blocks = ops::eight_bit_blocks(element_count(shape));
  return {Tensor::zeros(pool, shape, DType::u8, what), Tensor::zeros(pool, {blocks}, DType::f32, what)};
}

}  // namespace

bool name_matches(std::string_view pattern, std::string_view name) {
  return matches_fully("*" + std::string(pattern) + "*", name);
}

Optimizer::Optimizer(std::vector<Parameter*> parameters, OptimizerOptions options, MemoryPool& pool, bool may_be_empty,
                     const std::function<int64_t(const Parameter&)>& global_size)
    : parameters_(std::move(parameters)), options_(std::move(options)) {
  if (parameters_.empty() && !may_be_empty) throw UsageError("nothing is trainable", "check adapter.target_modules");
  const MemoryPool::Use use(pool, MemoryUse::optimizer);
  std::set<std::string_view> names;
  for (const Parameter* parameter : parameters_) {
    NIBBLE_CHECK(parameter->trainable && parameter->gradient && parameter->value.dtype() == DType::f32,
                 parameter->name + " is not a trainable f32 parameter");
    if (!names.insert(parameter->name).second) throw UsageError("two trainable tensors are named " + parameter->name);
    State state;
    const bool decays =
        std::none_of(options_.no_decay.begin(), options_.no_decay.end(),
                     [&](const std::string& pattern) { return name_matches(pattern, parameter->name); });
    if (decays) state.weight_decay = static_cast<float>(options_.weight_decay);
    const Shape& shape = parameter->value.shape();
    const std::string what = "optimizer state of " + parameter->name;
    const int64_t size = global_size ? global_size(*parameter) : parameter->value.numel();
    if (options_.kind == OptimizerKind::adamw8bit && size >= ops::kEightBitMinimum) {
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
    if (options_.kind == OptimizerKind::sgd) {
      return ops::sgd(parameter.value, parameter.gradient, static_cast<float>(lr), state.weight_decay, scale);
    }
    ops::AdamWParams params;
    params.lr = static_cast<float>(lr);
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
