// The ops of mixtures of experts as callers see them (see dispatch.cpp): experts.h.

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

}  // namespace nibble::ops
