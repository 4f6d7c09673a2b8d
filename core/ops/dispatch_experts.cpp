// The ops of mixtures of experts and of several residual streams as callers see them (see dispatch.cpp): experts.h,
// residual.h, and gaussian_topk of activation.h.

#include "nibble/core/ops/dispatch.h"

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
