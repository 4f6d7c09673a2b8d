#include "nibble/core/ops/cross_entropy.h"

#include "nibble/core/ops/cpu/floats.h"
#include "nibble/core/ops/ref/cross_entropy.h"

namespace nibble::ops {

void cross_entropy(const Tensor& logits, const Tensor& targets, float softcap, float scale, Tensor& losses,
                   Tensor& dlogits) {
  std::vector<float> slopes(dlogits ? static_cast<size_t>(logits.numel()) : 0);
  ref::cross_entropy(logits.data<const float>(), targets.data<const int32_t>(), logits.dim(0), logits.dim(1), softcap,
                     scale, losses.data<float>(), dlogits ? slopes.data() : nullptr);
  if (dlogits) from_floats(slopes, dlogits);
}

}  // namespace nibble::ops
