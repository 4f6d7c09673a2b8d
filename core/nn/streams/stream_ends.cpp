#include "nibble/core/nn/streams/stream_ends.h"

#include <algorithm>

#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/residual.h"

namespace nibble {

namespace {

// Stream n of several of so many tokens.
Tensor stream(const Tensor& streams, int64_t tokens, size_t n) {
  const int64_t begin = static_cast<int64_t>(n) * tokens;
  return streams.rows(begin, begin + tokens);
}

}  // namespace

bool StreamEnds::has_trainable() const {
  return std::any_of(linears.begin(), linears.end(), [](const Linear& linear) { return linear.has_trainable(); });
}

void StreamEnds::make(size_t i, const Tensor& x, const Tensor& like, Tensor& y, const StepContext& step, Saved* saved) {
  Tensor projected = Tensor::empty(step.pool(), x.shape(), DType::f32, "streams");
  if (saved) saved->linears.emplace_back();
  linears[i].forward(in_compute_dtype(x, step), projected, step, saved ? &saved->linears.back() : nullptr);
  ops::match_rms_forward(projected, like, y);
  if (saved) saved->projected.push_back(projected);
}

void StreamEnds::make_backward(size_t i, const Tensor& dy, const Tensor& like, const StepContext& step, Saved& saved,
                               Tensor& dx, Tensor& dlike) {
  Tensor dprojected = Tensor::empty(step.pool(), dy.shape(), DType::f32, "stream gradient");
  Tensor own = Tensor::empty(step.pool(), dy.shape(), DType::f32, "stream gradient");
  ops::match_rms_backward(dy, saved.projected.at(i), like, dprojected, dlike);
  linears[i].backward(in_compute_dtype(dprojected, step), step, std::move(saved.linears.at(i)), &own, false);
  ops::add(own, dx);
}

Tensor StreamEnds::split(const Tensor& x, const StepContext& step, Saved* saved) {
  const int64_t tokens = x.dim(0);
  Tensor result = Tensor::empty(step.pool(), {streams() * tokens, x.dim(1)}, DType::f32, "residual streams");
  Tensor first = stream(result, tokens, 0);
  ops::cast(x, first);
  for (size_t i = 0; i < linears.size(); ++i) {
    Tensor y = stream(result, tokens, i + 1);
    make(i, x, x, y, step, saved);
  }
  if (saved) saved->x = x;
  return result;
}

Tensor StreamEnds::split_backward(const Tensor& gradient, const StepContext& step, Saved&& saved) {
  const int64_t tokens = saved.x.dim(0);
  Tensor dx = stream(gradient, tokens, 0).clone(step.pool());
  for (size_t i = 0; i < linears.size(); ++i) {
    make_backward(i, stream(gradient, tokens, i + 1), saved.x, step, saved, dx, dx);
  }
  return dx;
}

Tensor StreamEnds::join(const Tensor& x, const StepContext& step, Saved* saved) {
  const int64_t tokens = x.dim(0) / streams();
  const Tensor first = stream(x, tokens, 0);
  Tensor sum = first.clone(step.pool()), y = Tensor::empty(step.pool(), sum.shape(), DType::f32, "residual stream");
  for (size_t i = 0; i < linears.size(); ++i) {
    make(i, stream(x, tokens, i + 1), first, y, step, saved);
    ops::add(y, sum);
  }
  ops::scale(sum, 1 / static_cast<float>(streams()));
  if (saved) saved->x = x;
  return sum;
}

Tensor StreamEnds::join_backward(const Tensor& gradient, const StepContext& step, Saved&& saved) {
  const int64_t tokens = gradient.dim(0);
  Tensor dx = Tensor::zeros(step.pool(), saved.x.shape(), DType::f32, "stream gradient");
  Tensor share = gradient.clone(step.pool()), dfirst = stream(dx, tokens, 0);
  ops::scale(share, 1 / static_cast<float>(streams()));
  ops::add(share, dfirst);
  for (size_t i = 0; i < linears.size(); ++i) {
    Tensor own = stream(dx, tokens, i + 1);
    make_backward(i, share, stream(saved.x, tokens, 0), step, saved, own, dfirst);
  }
  return dx;
}

void StreamEnds::visit(const ParameterVisitor& visitor) {
  for (Linear& linear : linears) linear.visit(visitor);
}

void StreamEnds::visit_linears(const std::function<void(Linear&)>& visitor) {
  for (Linear& linear : linears) visitor(linear);
}

}  // namespace nibble
