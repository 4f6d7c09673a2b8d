#include "nibble/core/nn/feed_forward/expert_linears.h"

#include <algorithm>
#include <utility>

#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/embedding.h"
#include "nibble/core/ops/experts/update_fusion.h"

namespace nibble {

using ops::RowGroups;
using ops::RowOrder;

namespace {

Tensor token_rows(const RowGroups& groups, int64_t g) { return groups.rows.rows(groups.begin(g), groups.end(g)); }

// Dropout knows rows by their keys.
StepContext step_of_group(const StepContext& step, const RowGroups& groups, int64_t g) {
  StepContext own = step;
  if (!step.row_keys) return own;
  const std::span<const int64_t> keys = step.row_keys.span<const int64_t>();
  std::vector<int64_t> own_keys;
  const Tensor tokens = token_rows(groups, g);
  for (const int32_t t : tokens.span<const int32_t>()) own_keys.push_back(keys[static_cast<size_t>(t)]);
  own.row_keys = Tensor::from<int64_t>(step.pool().host(), {std::ssize(own_keys)}, own_keys);
  return own;
}

std::optional<WeightOperand> operand_of(LinearWeight& weight) {
  if (weight.in_int8()) return std::nullopt;
  if (const auto* readable = dynamic_cast<const ReadableWeight*>(&weight)) return readable->operand();
  const auto* dense = dynamic_cast<const DenseWeight*>(&weight);
  if (!dense) return std::nullopt;
  Tensor value = weight.parameter()->value;
  if (value.rank() == 3) {
    value = value.rows(weight.matrix(), weight.matrix() + 1).reshape({value.dim(1), value.dim(2)});
  }
  return WeightOperand{value, !dense->transposed()};
}

}  // namespace

Tensor rows_of_group(const ExpertRows& x, const RowGroups& groups, int64_t g, MemoryPool& pool) {
  if (x.order == RowOrder::groups) return x.values.rows(groups.begin(g), groups.end(g));
  Tensor rows = Tensor::empty(pool, {groups.count(g), x.values.dim(1)}, x.values.dtype(), "rows of an expert");
  ops::gather_rows(x.values, token_rows(groups, g), rows);
  return rows;
}

void ExpertLinearsSaved::visit(const TensorVisitor& visitor) {
  if (inner) visitor(inner);
  for (LinearSaved& linear : each) linear.visit(visitor);
}

bool ExpertLinears::has_trainable() const {
  return std::any_of(each.begin(), each.end(), [](const Linear& linear) { return linear.has_trainable(); });
}

bool ExpertLinears::has_adapter() {
  return std::any_of(each.begin(), each.end(), [](Linear& linear) { return linear.adapter() != nullptr; });
}

bool ExpertLinears::adds_updates_apart(DType dtype, RowOrder order, bool backward, const StepContext& step) {
  if (empty() || !step.adapters_enabled) return false;
  const auto* adapter = dynamic_cast<const FactoredAdapter*>(each.front().adapter());
  if (!adapter) return false;
  const UpdateFactors factors = adapter->factors(step.pool());
  const int64_t r = factors.first.dim(factors.first_transposed ? 0 : 1);
  const int64_t in = each.front().in_features(), out = each.front().out_features();
  return !ops::fuses_update(dtype, order, backward ? out : in, backward ? in : out, r);
}

/// What one product of all groups needs.
struct ExpertLinears::Grouped {
  std::vector<ops::WeightView> weights;
  bool transposed = true;
  std::vector<UpdateFactors> factors;  // empty: no adapters

  /// Takes `weights` along.
  ops::GroupedWeights take_base(bool backward) {
    ops::GroupedWeights result;
    result.w = std::move(weights);
    result.transposed = transposed != backward;
    return result;
  }
  std::vector<Tensor> factor(bool first) const {
    std::vector<Tensor> result;
    for (const UpdateFactors& of : factors) result.push_back(first ? of.first : of.second);
    return result;
  }
  bool factor_transposed(bool first) const {
    return first ? factors.front().first_transposed : factors.front().second_transposed;
  }
  /// [N, R] = scaling * x first, or scaling * dy second^T.
  Tensor multiply_inner(const ExpertRows& x, bool first, const RowGroups& groups, const StepContext& step) const {
    ops::GroupedWeights weights_of;
    for (const Tensor& factor : this->factor(first)) weights_of.w.emplace_back(factor);
    weights_of.transposed = factor_transposed(first) == first;
    const Tensor& one = factors.front().first;
    const int64_t r = one.dim(factors.front().first_transposed ? 0 : 1);
    Tensor inner = Tensor::empty(step.pool(), {groups.size(), r}, x.values.dtype(), "x A^T of adapters");
    ops::grouped_matmul(x.values, x.order, groups, weights_of, inner, RowOrder::groups, false,
                        static_cast<float>(factors.front().scaling));
    return inner;
  }
};

// Nothing where one has a form of its own: 8 bits, a bias, dropout, another rank than the others.
std::optional<ExpertLinears::Grouped> ExpertLinears::grouped(const ExpertGroups& groups, const StepContext& step) {
  Grouped all;
  all.weights.reserve(groups.experts.size());
  for (const size_t e : groups.experts) {
    Linear& linear = each[e];
    std::optional<WeightOperand> operand = operand_of(linear.weight());
    if (!operand || linear.bias() != nullptr) return std::nullopt;
    if (!all.weights.empty() && operand->transposed != all.transposed) return std::nullopt;
    const Adapter* adapter = step.adapters_enabled ? linear.adapter() : nullptr;
    if ((adapter == nullptr || !all.weights.empty()) && (adapter == nullptr) != all.factors.empty()) {
      return std::nullopt;
    }
    all.transposed = operand->transposed;
    all.weights.push_back(std::move(operand->w));
    if (adapter == nullptr) continue;
    const auto* factored = dynamic_cast<const FactoredAdapter*>(adapter);
    if (!factored) return std::nullopt;
    all.factors.push_back(factored->factors(step.pool()));
    const UpdateFactors &one = all.factors.front(), &other = all.factors.back();
    if (one.first.shape() != other.first.shape() || one.scaling != other.scaling ||
        one.first_transposed != other.first_transposed || one.second_transposed != other.second_transposed) {
      return std::nullopt;
    }
  }
  if (all.weights.empty()) return std::nullopt;
  return all;
}

void ExpertLinears::multiply(const ExpertRows& x, const ExpertGroups& groups, ops::GroupedWeights& weights,
                             const ExpertRows& y, bool accumulate) {
  Tensor to = y.values, apart = y.apart;
  if (!apart || !weights.left) {
    return ops::grouped_matmul(x.values, x.order, groups, weights, to, y.order, accumulate);
  }
  const Tensor left = std::exchange(weights.left, {});
  ops::grouped_matmul(x.values, x.order, groups, weights, to, y.order, accumulate);
  ops::GroupedWeights update;
  update.transposed = weights.right_transposed;
  for (const Tensor& right : weights.right) update.w.emplace_back(right);
  ops::grouped_matmul(left, RowOrder::groups, groups, update, apart, y.order, true);
}

void ExpertLinears::forward(const ExpertRows& x, const ExpertGroups& groups, ExpertRows y, const StepContext& step,
                            ExpertLinearsSaved* saved, const Biases* biases) {
  if (std::optional<Grouped> all = grouped(groups, step)) {
    ops::GroupedWeights weights = all->take_base(false);
    if (!all->factors.empty()) {
      weights.left = all->multiply_inner(x, true, groups, step);
      weights.right = all->factor(false);
      weights.right_transposed = all->factor_transposed(false);
      if (saved && has_trainable()) saved->inner = weights.left;
    }
    if (biases) {
      weights.biases = biases->values;
      weights.bias_weights = biases->weights;
    }
    return multiply(x, groups, weights, y, false);
  }
  if (saved) saved->each.resize(each.size());
  for (int64_t g = 0; g < groups.groups(); ++g) {
    const size_t e = groups.experts[static_cast<size_t>(g)];
    Linear& linear = each[e];
    const bool scatters = y.order == RowOrder::tokens;
    Tensor out = scatters ? Tensor::empty(step.pool(), {groups.count(g), y.values.dim(1)}, DType::f32, "an expert's")
                          : rows_of_group(y, groups, g, step.pool());
    linear.forward(rows_of_group(x, groups, g, step.pool()), out, step_of_group(step, groups, g),
                   saved ? &saved->each[e] : nullptr);
    if (saved) saved->each[e].x = {};
    if (!scatters) continue;
    if (biases) {
      const Tensor own = biases->weights.rows(groups.begin(g), groups.end(g)).reshape({groups.count(g), 1});
      ops::matmul_nn(own, biases->values[static_cast<size_t>(g)].reshape({1, out.dim(1)}), out, true);
    }
    ops::scatter_add_rows(out, token_rows(groups, g), y.values);
  }
}

void ExpertLinears::forward_save_only(const ExpertRows& x, const ExpertGroups& groups, const StepContext& step,
                                      ExpertLinearsSaved& saved) {
  if (!has_adapter() || !step.adapters_enabled) return;
  if (const std::optional<Grouped> all = grouped(groups, step)) {
    saved.inner = all->multiply_inner(x, true, groups, step);
    return;
  }
  saved.each.resize(each.size());
  for (int64_t g = 0; g < groups.groups(); ++g) {
    const size_t e = groups.experts[static_cast<size_t>(g)];
    each[e].forward_save_only(rows_of_group(x, groups, g, step.pool()), DType::f32, step_of_group(step, groups, g),
                              saved.each[e]);
    saved.each[e].x = {};
  }
}

void ExpertLinears::backward(const ExpertRows& dy, const ExpertRows& x, const ExpertGroups& groups,
                             const StepContext& step, ExpertLinearsSaved&& saved, const ExpertRows* dx,
                             bool accumulate) {
  std::optional<Grouped> all = grouped(groups, step);
  if (!all) return backward_one_by_one(dy, x, groups, step, saved, dx, accumulate);
  ops::GroupedWeights weights = all->take_base(true);
  Tensor dinner;
  if (!all->factors.empty()) dinner = all->multiply_inner(dy, false, groups, step);
  if (has_trainable()) accumulate_gradients(dy, x, saved.inner, dinner, *all, groups, step);
  saved.inner = {};
  if (!dx) return;
  if (dinner) {
    weights.left = dinner;
    weights.right = all->factor(true);
    weights.right_transposed = !all->factor_transposed(true);
  }
  multiply(dy, groups, weights, *dx, accumulate);
}

void ExpertLinears::accumulate_gradients(const ExpertRows& dy, const ExpertRows& x, const Tensor& inner,
                                         const Tensor& dinner, const Grouped& all, const ExpertGroups& groups,
                                         const StepContext& step) {
  std::vector<Tensor> first, second;
  std::vector<UpdateFactors> gradients;
  for (int64_t g = 0; g < groups.groups(); ++g) {
    const size_t e = groups.experts[static_cast<size_t>(g)];
    Linear& linear = each[e];
    if (linear.weight().trainable()) {
      linear.weight().backward_weight(rows_of_group(dy, groups, g, step.pool()),
                                      rows_of_group(x, groups, g, step.pool()));
    }
    if (!dinner || !linear.adapter()->trainable()) continue;
    gradients.push_back(dynamic_cast<FactoredAdapter&>(*linear.adapter()).gradients(step.pool()));
    first.push_back(gradients.back().first);
    second.push_back(gradients.back().second);
  }
  if (gradients.empty()) return;
  const auto multiply = [&](const Tensor& a, RowOrder a_order, const Tensor& b, RowOrder b_order, bool turned,
                            const std::vector<Tensor>& to) {
    turned ? ops::grouped_matmul_tn(b, b_order, a, a_order, groups, to)
           : ops::grouped_matmul_tn(a, a_order, b, b_order, groups, to);
  };
  multiply(inner, RowOrder::groups, dy.values, dy.order, all.factor_transposed(false), second);
  multiply(x.values, x.order, dinner, RowOrder::groups, all.factor_transposed(true), first);
  for (size_t g = 0; g < gradients.size(); ++g) {
    dynamic_cast<FactoredAdapter&>(*each[groups.experts[g]].adapter()).put_gradients(gradients[g]);
  }
}

void ExpertLinears::backward_one_by_one(const ExpertRows& dy, const ExpertRows& x, const ExpertGroups& groups,
                                        const StepContext& step, ExpertLinearsSaved& saved, const ExpertRows* dx,
                                        bool accumulate) {
  saved.each.resize(each.size());
  for (int64_t g = 0; g < groups.groups(); ++g) {
    const size_t e = groups.experts[static_cast<size_t>(g)];
    Linear& linear = each[e];
    if (linear.has_trainable()) saved.each[e].x = rows_of_group(x, groups, g, step.pool());
    const bool scatters = dx && dx->order == RowOrder::tokens;
    Tensor own;
    if (scatters) {
      own = Tensor::empty(step.pool(), {groups.count(g), dx->values.dim(1)}, DType::f32, "gradient of an expert");
    } else if (dx) {
      own = rows_of_group(*dx, groups, g, step.pool());
    }
    linear.backward(rows_of_group(dy, groups, g, step.pool()), step_of_group(step, groups, g), std::move(saved.each[e]),
                    dx ? &own : nullptr, accumulate && !scatters);
    if (!scatters) continue;
    Tensor to = dx->values;
    ops::scatter_add_rows(own, token_rows(groups, g), to);
  }
}

}  // namespace nibble
