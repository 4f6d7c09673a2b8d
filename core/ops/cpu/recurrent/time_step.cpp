#include "nibble/core/ops/recurrent/time_step.h"

#include <algorithm>
#include <vector>

#include "nibble/core/ops/cpu/partial_sums.h"
#include "nibble/core/ops/ref/time_step.h"
#include "nibble/core/tensor/bfloat16.h"

// One number for each token and head: the reference is fast enough.
namespace nibble::ops::cpu {

namespace {

template <typename Element>
std::vector<float> widened(const Tensor& x, int64_t begin, int64_t end) {
  const Element* from = x.data<const Element>();
  std::vector<float> result(static_cast<size_t>(end - begin));
  std::transform(from + begin, from + end, result.begin(), [](Element e) { return static_cast<float>(e); });
  return result;
}

template <typename Element>
void forward(const Tensor& x, const Tensor& bias, const Tensor& a_log, const TimeStepLimits& limits, Tensor& step,
             Tensor& log_decay) {
  const int64_t heads = x.dim(1);
  parallel_for(x.dim(0), kGradientRows, [&](int64_t begin, int64_t end) {
    const std::vector<float> raw = widened<Element>(x, begin * heads, end * heads);
    ref::time_step_forward(raw.data(), bias.data<const float>(), a_log.data<const float>(), end - begin, heads,
                           heads / a_log.numel(), limits.low, limits.high, limits.least_decay,
                           step.data<float>() + begin * heads, log_decay.data<float>() + begin * heads);
  });
}

template <typename Element>
void backward(const Tensor& dstep, const Tensor& dlog_decay, const Tensor& x, const Tensor& bias, const Tensor& a_log,
              const TimeStepLimits& limits, Tensor& dx, Tensor& dbias, Tensor& da_log) {
  const int64_t heads = x.dim(1);
  PartialSums bias_sums(x.dim(0), heads, dbias), a_sums(x.dim(0), a_log.numel(), da_log);
  parallel_for(x.dim(0), kGradientRows, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * heads;
    const std::vector<float> raw = widened<Element>(x, at, end * heads);
    std::vector<float> gradient(raw.size());
    ref::time_step_backward(dstep ? dstep.data<const float>() + at : nullptr, dlog_decay.data<const float>() + at,
                            raw.data(), bias.data<const float>(), a_log.data<const float>(), end - begin, heads,
                            heads / a_log.numel(), limits.low, limits.high, limits.least_decay, gradient.data(),
                            bias_sums.block(begin), a_sums.block(begin));
    std::transform(gradient.begin(), gradient.end(), dx.data<Element>() + at, [](float g) { return Element(g); });
  });
  bias_sums.add_to(dbias);
  a_sums.add_to(da_log);
}

}  // namespace

void time_step_forward(const Tensor& x, const Tensor& bias, const Tensor& a_log, const TimeStepLimits& limits,
                       Tensor& step, Tensor& log_decay) {
  (x.dtype() == DType::bf16 ? forward<bf16> : forward<float>)(x, bias, a_log, limits, step, log_decay);
}

void time_step_backward(const Tensor& dstep, const Tensor& dlog_decay, const Tensor& x, const Tensor& bias,
                        const Tensor& a_log, const TimeStepLimits& limits, Tensor& dx, Tensor& dbias, Tensor& da_log) {
  (x.dtype() == DType::bf16 ? backward<bf16> : backward<float>)(dstep, dlog_decay, x, bias, a_log, limits, dx, dbias,
                                                                da_log);
}

}  // namespace nibble::ops::cpu
