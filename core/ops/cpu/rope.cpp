#include "nibble/core/ops/rope.h"

#include "nibble/core/ops/cpu/floats.h"
#include "nibble/core/ops/ref/rope.h"

namespace nibble::ops {

void rope(Tensor& x, int64_t heads, const Tensor& positions, const Tensor& cos, const Tensor& sin, bool inverse) {
  const int64_t tokens = x.dim(0), head_size = x.dim(1) / heads, rot = 2 * cos.dim(1);
  NIBBLE_CHECK(head_size * heads == x.dim(1) && rot <= head_size, "rope: head size");
  std::vector<float> values = to_floats(x);
  ref::rope(values.data(), tokens, heads, head_size, rot, positions.data<const int32_t>(), cos.data<const float>(),
            sin.data<const float>(), inverse);
  from_floats(values, x);
}

}  // namespace nibble::ops
