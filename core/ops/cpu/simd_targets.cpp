#include "nibble/core/ops/cpu/simd_targets.h"

namespace nibble::ops {

void cap_simd_targets() {
#if defined(__x86_64__)
  static const bool capped = [] {
    if (isa() < Isa::avx2) hwy::DisableTargets(HWY_AVX2 | HWY_AVX3);
    if (isa() < Isa::avx512) hwy::DisableTargets(HWY_AVX3 | (isa() < Isa::avx2 ? HWY_AVX2 : 0));
    return true;
  }();
  (void)capped;
#endif
}

}  // namespace nibble::ops
