#include "nibble/core/ops/dropout.h"

#include "nibble/core/ops/cpu/floats.h"
#include "nibble/core/ops/ref/dropout.h"

namespace nibble::ops {

void dropout(const Tensor& x, const Tensor& row_keys, float p, const DropoutKey& key, Tensor& y) {
  NIBBLE_CHECK(p >= 0 && p < 1, "dropout: rate");
  std::vector<float> values = to_floats(x);
  ref::dropout(values.data(), row_keys.data<const int64_t>(), x.dim(0), x.dim(1), p, key, values.data());
  from_floats(values, y);
}

}  // namespace nibble::ops
