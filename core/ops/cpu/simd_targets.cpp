#include "nibble/core/ops/cpu/simd_targets.h"

#include <hwy/nanobenchmark.h>

// Highway's shared library measures the resolution of its clock while it is loaded: 4 ms of every start, for benchmarks
// that nothing here runs. The loader takes this in place of its own; weak, so that a static library's own stays.
__attribute__((weak)) uint64_t hwy::platform::TimerResolution() { return 1; }

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
