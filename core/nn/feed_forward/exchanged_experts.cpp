// Experts on several ranks: their rows travel, and what they give is added up where the tokens are. The rows of every
// rank are a pass of their own over the experts here, with one expert for each row, so that each result has the bits
// that one rank with all experts gives it.

#include "nibble/core/nn/feed_forward/experts_pass.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

// The expert of every row.
Tensor chosen_of(const std::vector<int64_t>& counts, MemoryPool& host) {
  std::vector<int32_t> chosen;
  for (size_t e = 0; e < counts.size(); ++e) {
    chosen.insert(chosen.end(), static_cast<size_t>(counts[e]), static_cast<int32_t>(e));
  }
  return Tensor::from<int32_t>(host, {std::ssize(chosen), 1}, chosen);
}

ExpertRows rows_of(const ExpertRows& all, Range rows) {
  const auto of = [&](const Tensor& tensor) { return tensor ? tensor.rows(rows.begin, rows.end) : Tensor(); };
  return {of(all.values), all.order, of(all.apart)};
}

}  // namespace

// What the rows of other ranks give gradients to.
std::vector<Parameter*> Experts::trained_by_rows() {
  std::vector<Parameter*> found;
  const ParameterVisitor note = [&](Parameter& parameter) {
    if (parameter.trainable) found.push_back(&parameter);
  };
  for (ExpertLinears* linears : {&gate_up_, &gate_, &up_, &down_}) {
    for (Linear& linear : linears->each) linear.visit(note);
  }
  for (const auto& bias : {up_bias_, down_bias_}) {
    if (bias) note(*bias);
  }
  return found;
}

void Experts::run_exchanged(const Tensor& x, const Routed& routed, const StepContext& step, Tensor* sum, Saved* saved) {
  const Pass own(x, routed.chosen, routed.weights, static_cast<size_t>(config_.experts), 0, step);
  std::vector<int64_t> counts(static_cast<size_t>(config_.experts));
  for (int64_t g = 0; g < own.groups.groups(); ++g) counts[static_cast<size_t>(own.expert(g))] = own.groups.count(g);
  const ExpertRoute route = exchange_->route(counts);
  Tensor inputs = own.empty(config_.expert_width(), x.dtype(), "input of experts");
  ops::gather_rows(x, own.groups.rows, inputs);
  inputs = exchange_->send("rows to experts", inputs, route);
  const Tensor weights = exchange_->send("weights to experts", own.weights, route);
  const auto make = [&] {
    return Tensor::zeros(step.pool(), {inputs.dim(0), config_.expert_width()}, DType::f32, "results of experts");
  };
  ExpertRows results{.values = {}, .order = ops::RowOrder::tokens};
  if (sum) results.values = make();
  if (sum && down_.adds_updates_apart(step.compute_dtype, ops::RowOrder::groups, false, step)) results.apart = make();

  StepContext of_rows = step;
  of_rows.row_keys = {};  // no adapter here has dropout
  const Range here = exchange_->here(config_.experts);
  const bool keeps_input = inner_trainable() || config_.weighted_input;
  if (saved) saved->parts.resize(route.counts.size());
  for (int64_t r = 0; r < route.ranks(); ++r) {
    const auto of_rank = static_cast<size_t>(r);
    const Range rows{route.received[of_rank], route.received[of_rank + 1]};
    if (rows.size() == 0) continue;
    const Tensor of_inputs = inputs.rows(rows.begin, rows.end), of_weights = weights.rows(rows.begin, rows.end);
    const Tensor chosen = chosen_of(route.counts[of_rank], step.pool().host());
    Part* part = saved ? &saved->parts[of_rank] : nullptr;
    const ExpertRows result = rows_of(results, rows);
    run_experts(Pass(of_inputs, chosen, of_weights, down_.each.size(), here.begin, of_rows), sum ? &result : nullptr,
                part);
    if (!part) continue;
    part->chosen = chosen;
    part->weights = of_weights;
    if (keeps_input) part->x = of_inputs;
  }
  if (saved) saved->route = route;
  inputs = {};
  for (Tensor* one : {&results.values, &results.apart}) {
    if (*one) add_back("results of experts", *one, route, own, *sum);
  }
}

// sum [T, D] += what the experts give for the rows, in rising order of experts; uses the rows up.
void Experts::add_back(const char* what, Tensor& rows, const ExpertRoute& route, const Pass& own, Tensor& sum) const {
  rows = exchange_->send_back(what, rows, route);
  for (int64_t g = 0; g < own.groups.groups(); ++g) {
    ops::scatter_add_rows(own.own(rows, g), own.own(own.groups.rows, g), sum);
  }
  rows = {};
}

void Experts::run_exchanged_backward(const Tensor& dy, const StepContext& step, Saved& saved, Tensor* dx,
                                     Tensor& dweights) {
  const Pass own(saved.x, saved.routed.chosen, saved.routed.weights, static_cast<size_t>(config_.experts), 0, step);
  const ExpertRoute& route = saved.route;
  Tensor dys = own.empty(config_.expert_width(), dy.dtype(), "gradient of experts");
  ops::gather_rows(dy, own.groups.rows, dys);
  dys = exchange_->send("gradients to experts", dys, route);
  const auto make = [&](int64_t columns) {
    return Tensor::zeros(step.pool(), {dys.dim(0), columns}, DType::f32, "gradient of experts");
  };
  Tensor dweight = make(1);
  // In the order in which one rank adds them: what comes of all gates, then of the rest, updates after products.
  ExpertRows of_gate{.values = {}, .order = ops::RowOrder::tokens}, of_rest = of_gate;
  const auto make_rows = [&](ExpertLinears& linears, ExpertRows& to) {
    to.values = make(config_.expert_width());
    if (linears.adds_updates_apart(step.compute_dtype, ops::RowOrder::groups, true, step))
      to.apart = make(config_.expert_width());
  };
  const bool gates_first = config_.gated && gate_up_.empty();
  if (dx && config_.weighted_input) {
    of_rest.values = make(config_.expert_width());
  } else if (dx) {
    if (gates_first) make_rows(gate_, of_gate);
    make_rows(gate_up_.empty() ? up_ : gate_up_, of_rest);
  }

  StepContext of_rows = step;
  of_rows.row_keys = {};
  const Range here = exchange_->here(config_.experts);
  exchange_->sum_gradients(trained_by_rows(), route.ranks(), [&](int64_t r) {
    const auto of_rank = static_cast<size_t>(r);
    const int64_t begin = route.received[of_rank], end = route.received[of_rank + 1];
    if (begin == end) return;
    const auto of = [&](const Tensor& all) { return all ? all.rows(begin, end) : Tensor(); };
    Part part = std::move(saved.parts[of_rank]);
    Tensor of_weights = of(dweight);
    const ExpertRows gate_rows = rows_of(of_gate, {begin, end}), rest_rows = rows_of(of_rest, {begin, end});
    run_experts_backward(Pass(part.x, part.chosen, part.weights, down_.each.size(), here.begin, of_rows), of(dys), part,
                         dx ? &rest_rows : nullptr, gate_rows.values ? &gate_rows : nullptr, of_weights);
  });
  dys = {};

  ops::scatter_add_rows(exchange_->send_back("gradients of weights", dweight, route), own.slots, dweights);
  for (Tensor* one : {&of_gate.values, &of_gate.apart, &of_rest.values, &of_rest.apart}) {
    if (*one) add_back("gradients of experts", *one, route, own, *dx);
  }
}

}  // namespace nibble
