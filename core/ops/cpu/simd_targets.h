#pragma once
// Which versions of a Highway kernel are compiled (include before hwy/foreach_target.h), and which one runs.

#include <iterator>

#include "nibble/core/base/cpu_features.h"
#if defined(__aarch64__)  // Versions: NEON alone; vectors of SVE have no size before the program runs.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#else  // Scalar, SSE4, AVX2, AVX-512 (F, BW, DQ, VL). SSSE3 alone and Ice Lake would double compile time for nothing.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#endif
#include <hwy/targets.h>

namespace nibble::ops {

/// Keeps Highway from choosing a version above isa(): the cap NIBBLE_ISA holds for every kernel. Cheap after the first.
void cap_simd_targets();

namespace cpu {

/// Calls the best of a kernel's versions with what the op was called with.
template <const auto& versions, typename Result, typename... Parameters>
Result best_version(Parameters... parameters) {
  cap_simd_targets();
  return versions[std::size(versions) == 1 ? 0 : hwy::GetChosenTarget().GetIndex()](parameters...);
}
template <const auto& versions, typename Result, typename... Parameters>
constexpr auto best_version_for(Result (*)(Parameters...)) {
  return &best_version<versions, Result, Parameters...>;
}

}  // namespace cpu

}  // namespace nibble::ops

/// The best version of an exported kernel.
#define NIBBLE_SIMD(function) (::nibble::ops::cap_simd_targets(), HWY_DYNAMIC_DISPATCH(function))

/// Makes the kernel of an op's name and parameters its body, of an op that backend.h lists as SIMD.
#define NIBBLE_SIMD_KERNEL(op)                                                             \
  HWY_EXPORT(op);                                                                          \
  namespace simd {                                                                         \
  extern decltype(&ops::op) const op = best_version_for<HWY_DISPATCH_TABLE(op)>(&ops::op); \
  }                                                                                        \
  static_assert(true)
