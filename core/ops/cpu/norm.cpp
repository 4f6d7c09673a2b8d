#include "nibble/core/ops/norm.h"

#include "nibble/core/ops/cpu/floats.h"
#include "nibble/core/ops/ref/norm.h"

namespace nibble::ops {

void rms_norm_forward(const Tensor& x, const Tensor& w, float eps, float weight_offset, Tensor& y, Tensor& inv_rms) {
  std::vector<float> result(static_cast<size_t>(x.numel()));
  ref::rms_norm_forward(x.data<const float>(), w.data<const float>(), x.dim(0), x.dim(1), eps, weight_offset,
                        result.data(), inv_rms.data<float>());
  from_floats(result, y);
}

void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w, float weight_offset, const Tensor& inv_rms,
                       Tensor& dx, Tensor& dw) {
  ref::rms_norm_backward(to_floats(dy).data(), x.data<const float>(), w.data<const float>(), x.dim(0), x.dim(1),
                         weight_offset, inv_rms.data<const float>(), dx.data<float>(), dw ? dw.data<float>() : nullptr);
}

void layer_norm_forward(const Tensor& x, const Tensor& w, const Tensor& b, float eps, Tensor& y, Tensor& mean,
                        Tensor& inv_std) {
  std::vector<float> result(static_cast<size_t>(x.numel()));
  ref::layer_norm_forward(x.data<const float>(), w.data<const float>(), b ? b.data<const float>() : nullptr, x.dim(0),
                          x.dim(1), eps, result.data(), mean.data<float>(), inv_std.data<float>());
  from_floats(result, y);
}

void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& inv_std,
                         Tensor& dx, Tensor& dw, Tensor& db) {
  ref::layer_norm_backward(to_floats(dy).data(), x.data<const float>(), w.data<const float>(), x.dim(0), x.dim(1),
                           mean.data<const float>(), inv_std.data<const float>(), dx.data<float>(),
                           dw ? dw.data<float>() : nullptr, db ? db.data<float>() : nullptr);
}

}  // namespace nibble::ops
