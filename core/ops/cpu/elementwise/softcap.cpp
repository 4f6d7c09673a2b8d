#include "nibble/core/ops/softcap.h"

#include <cmath>

#include "nibble/core/base/parallel.h"

namespace nibble::ops::cpu {

void softcap(Tensor& x, float cap) {
  float* values = x.data<float>();
  parallel_for(x.numel(), int64_t{1} << 14, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) values[i] = cap * std::tanh(values[i] / cap);
  });
}

}  // namespace nibble::ops::cpu
