#include "nibble/core/base/cpu_grants.h"

#include <cpuid.h>

namespace nibble {

bool tiles_granted() {
  unsigned a = 0, b = 0, c = 0, features = 0;
  constexpr unsigned kReadsStates = 1u << 27;  // OSXSAVE
  if (__get_cpuid(1, &a, &b, &c, &features) == 0 || (c & kReadsStates) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &features) == 0) return false;
  uint32_t low = 0, high = 0;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return grants_tiles({.features = features, .saved = uint64_t{high} << 32 | low, .permission = request_tiles});
}

Avx512Grant avx512_granted() {
  __builtin_cpu_init();
  return {.common = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"),
          .bf16 = __builtin_cpu_supports("avx512bf16") != 0,
          .vbmi = __builtin_cpu_supports("avx512vbmi") != 0,
          .vnni = __builtin_cpu_supports("avx512vnni") != 0};
}

}  // namespace nibble
