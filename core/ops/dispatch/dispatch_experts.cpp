// The ops of mixtures of experts and of several residual streams as callers see them (see dispatch.cpp): experts.h,
// experts/grouped.h, residual.h, and gaussian_topk of activation.h.

#include <algorithm>

#include "nibble/core/ops/dispatch/dispatch.h"

namespace nibble::ops {

namespace {

void check_routing(const Tensor& logits, const Tensor& chosen, const Tensor& weights, const Routing& r) {
  const Shape shape = {logits.dim(0), r.k};
  NIBBLE_CHECK(logits.rank() == 2 && chosen.shape() == shape && weights.shape() == shape, "route: shapes");
  const int64_t experts = logits.dim(1), groups = std::max<int64_t>(r.groups, 1);
  NIBBLE_CHECK(experts % groups == 0 && 1 <= r.top_groups && r.top_groups <= groups, "route: groups");
  NIBBLE_CHECK(1 <= r.k && r.k <= experts / groups * r.top_groups, "route: number of chosen experts");
}

}  // namespace

void route(const Tensor& logits, const Tensor& correction, const Routing& routing, Tensor& chosen, Tensor& weights) {
  check_routing(logits, chosen, weights, routing);
  NIBBLE_CHECK(!correction || correction.numel() == logits.dim(1), "route: shape of the correction");
  on(logits).route(logits, correction, routing, chosen, weights);
}

void route_backward(const Tensor& dweights, const Tensor& logits, const Tensor& chosen, const Routing& routing,
                    Tensor& dlogits) {
  check_routing(logits, chosen, dweights, routing);
  NIBBLE_CHECK(dlogits.shape() == logits.shape(), "route_backward: shape of dlogits");
  check_indices(chosen, logits.dim(1), "route_backward");
  on(logits).route_backward(dweights, logits, chosen, routing, dlogits);
}

void router_balance(const Tensor& logits, Tensor& sums) {
  NIBBLE_CHECK(logits.rank() == 2 && sums.numel() == logits.dim(1), "router_balance: shapes");
  on(logits).router_balance(logits, sums);
}

void router_balance_backward(const Tensor& logits, const Tensor& dprobabilities, Tensor& dlogits) {
  NIBBLE_CHECK(dprobabilities.numel() == logits.dim(1) && dlogits.shape() == logits.shape(),
               "router_balance_backward: shapes");
  on(logits).router_balance_backward(logits, dprobabilities, dlogits);
}

// ---- experts/grouped.h ----

namespace {

void check_groups(const RowGroups& groups, const char* op) {
  const std::vector<int64_t>& begins = groups.begins;
  NIBBLE_CHECK(!begins.empty() && begins.front() == 0 && std::is_sorted(begins.begin(), begins.end()) &&
                   groups.rows.numel() == groups.size(),
               std::string(op) + ": groups");
}

// [rows of the order, columns]
void check_rows(const Tensor& x, RowOrder order, const RowGroups& groups, int64_t columns, const char* op) {
  NIBBLE_CHECK(x.rank() == 2 && x.dim(1) == columns && (order == RowOrder::tokens || x.dim(0) == groups.size()),
               std::string(op) + ": shape " + to_string(x.shape()));
  if (order == RowOrder::tokens) check_indices(groups.rows, x.dim(0), op);
}

}  // namespace

void grouped_matmul(const Tensor& x, RowOrder x_order, const RowGroups& groups, const GroupedWeights& weights,
                    Tensor& y, RowOrder y_order, bool accumulate, float alpha) {
  constexpr const char* kName = "grouped_matmul";
  check_groups(groups, kName);
  const auto count = static_cast<size_t>(groups.groups());
  NIBBLE_CHECK(weights.w.size() == count && (!weights.left || weights.right.size() == count) &&
                   (weights.biases.empty() || weights.biases.size() == count),
               "grouped_matmul: a weight for every group");
  NIBBLE_CHECK(x.dtype() == DType::f32 || x.dtype() == DType::bf16, "products are of f32 or bf16");
  NIBBLE_CHECK(
      y_order == RowOrder::groups ? weights.biases.empty() && y.dtype() != DType::f16 : y.dtype() == DType::f32,
      "grouped_matmul: what is scattered is f32, and has biases alone");
  NIBBLE_CHECK(alpha == 1 || !weights.left, "grouped_matmul: no alpha beside an update");
  const int64_t in = x.dim(1), out = y.dim(1);
  check_rows(x, x_order, groups, in, kName);
  check_rows(y, y_order, groups, out, kName);
  if (weights.left) {
    NIBBLE_CHECK(weights.left.dtype() == x.dtype(), "an update is of its product's dtype");
    check_rows(weights.left, RowOrder::groups, groups, weights.left.dim(1), kName);
  }
  for (size_t g = 0; g < count; ++g) {
    if (groups.count(static_cast<int64_t>(g)) == 0) continue;
    const WeightView& w = weights.w[g];
    NIBBLE_CHECK((weights.transposed ? w.rows() : w.cols()) == out && (weights.transposed ? w.cols() : w.rows()) == in,
                 "grouped_matmul: shape of a weight");
    NIBBLE_CHECK(!weights.left || weights.right[g].numel() == weights.left.dim(1) * out,
                 "grouped_matmul: shape of an update");
    NIBBLE_CHECK(weights.biases.empty() || (weights.biases[g].numel() == out && weights.biases[g].aligned() &&
                                            weights.bias_weights.numel() == groups.size()),
                 "grouped_matmul: shape of a bias");
  }
  on(y).grouped_matmul(x, x_order, groups, weights, y, y_order, accumulate, alpha);
}

void grouped_matmul_tn(const Tensor& a, RowOrder a_order, const Tensor& b, RowOrder b_order, const RowGroups& groups,
                       const std::vector<Tensor>& c) {
  constexpr const char* kName = "grouped_matmul_tn";
  check_groups(groups, kName);
  check_rows(a, a_order, groups, a.dim(1), kName);
  check_rows(b, b_order, groups, b.dim(1), kName);
  NIBBLE_CHECK(a.dtype() == b.dtype() && std::ssize(c) == groups.groups(), "grouped_matmul_tn: operands");
  for (int64_t g = 0; g < groups.groups(); ++g) {
    const Tensor& sum = c[static_cast<size_t>(g)];
    NIBBLE_CHECK(groups.count(g) == 0 || (sum.dtype() == DType::f32 && sum.shape() == Shape{a.dim(1), b.dim(1)}),
                 "grouped_matmul_tn: shape of a sum");
  }
  on(a).grouped_matmul_tn(a, a_order, b, b_order, groups, c);
}

void gaussian_topk_forward(const Tensor& x, float deviations, Tensor& y) {
  NIBBLE_CHECK(x.rank() == 2 && y.shape() == x.shape() && y.dtype() == x.dtype(), "gaussian_topk: shapes or dtypes");
  on(x).gaussian_topk_forward(x, deviations, y);
}

void gaussian_topk_backward(const Tensor& dy, const Tensor& x, float deviations, Tensor& dx) {
  NIBBLE_CHECK(x.rank() == 2 && same_count(x, dy, dx) && dy.dtype() == x.dtype() && dx.dtype() == x.dtype(),
               "gaussian_topk_backward: shapes or dtypes");
  on(x).gaussian_topk_backward(dy, x, deviations, dx);
}

namespace {

// x [A T, D], y [B T, D], coefficients [T, B A]
void check_streams(const Tensor& x, const Tensor& y, const Tensor& coefficients) {
  NIBBLE_CHECK(x.rank() == 2 && y.rank() == 2 && coefficients.rank() == 2 && x.dim(1) == y.dim(1), "streams: shapes");
  const int64_t tokens = coefficients.dim(0);
  NIBBLE_CHECK(tokens > 0 && x.dim(0) % tokens == 0 && y.dim(0) % tokens == 0 &&
                   coefficients.dim(1) * tokens * tokens == x.dim(0) * y.dim(0),
               "streams: how many");
}

}  // namespace

void mix_streams_forward(const Tensor& x, const Tensor& coefficients, Tensor& y) {
  check_streams(x, y, coefficients);
  on(x).mix_streams_forward(x, coefficients, y);
}

void mix_streams_backward(const Tensor& dy, const Tensor& x, const Tensor& coefficients, Tensor& dx,
                          Tensor& dcoefficients) {
  check_streams(x, dy, coefficients);
  NIBBLE_CHECK(dx.shape() == x.shape() && dcoefficients.shape() == coefficients.shape(), "streams: gradients");
  on(x).mix_streams_backward(dy, x, coefficients, dx, dcoefficients);
}

void match_rms_forward(const Tensor& x, const Tensor& like, Tensor& y) {
  NIBBLE_CHECK(x.rank() == 2 && like.shape() == x.shape() && y.shape() == x.shape(), "match_rms: shapes");
  on(x).match_rms_forward(x, like, y);
}

void match_rms_backward(const Tensor& dy, const Tensor& x, const Tensor& like, Tensor& dx, Tensor& dlike) {
  NIBBLE_CHECK(x.rank() == 2 && like.shape() == x.shape() && same_count(x, dy, dx, dlike), "match_rms: shapes");
  on(x).match_rms_backward(dy, x, like, dx, dlike);
}

}  // namespace nibble::ops
