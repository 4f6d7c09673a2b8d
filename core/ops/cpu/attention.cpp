#include "nibble/core/ops/attention.h"

#include "nibble/core/ops/cpu/floats.h"
#include "nibble/core/ops/ref/attention.h"

namespace nibble::ops {

void attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, std::span<const AttentionSpan> spans,
                       const AttentionParams& params, Tensor& out, Tensor& log_sum_exp) {
  std::vector<float> result(static_cast<size_t>(out.numel()));
  log_sum_exp.zero();
  ref::attention_forward(to_floats(q).data(), to_floats(k).data(), to_floats(v).data(), q.dim(0), spans, params,
                         result.data(), log_sum_exp.data<float>());
  from_floats(result, out);
}

void attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                        const Tensor& log_sum_exp, std::span<const AttentionSpan> spans, const AttentionParams& params,
                        Tensor& dq, Tensor& dk, Tensor& dv) {
  std::vector<float> dqs(static_cast<size_t>(dq.numel())), dks(static_cast<size_t>(dk.numel())), dvs(dks.size());
  ref::attention_backward(to_floats(dout).data(), to_floats(q).data(), to_floats(k).data(), to_floats(v).data(),
                          to_floats(out).data(), log_sum_exp.data<const float>(), q.dim(0), spans, params, dqs.data(),
                          dks.data(), dvs.data());
  from_floats(dqs, dq);
  from_floats(dks, dk);
  from_floats(dvs, dv);
}

}  // namespace nibble::ops
