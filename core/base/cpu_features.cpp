#include "nibble/core/base/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <string>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

constexpr std::string_view kNames[] = {"baseline", "avx2", "avx512", "avx512_bf16"};

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;  // clang 14 knows it by no name
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) return Isa::avx512_bf16;
  if (avx512) return Isa::avx512;
  if (avx2) return Isa::avx2;
#endif
  return Isa::baseline;
}

Isa capped() {
  const Isa best = detect();
  const char* wanted = std::getenv("NIBBLE_ISA");
  if (wanted == nullptr || *wanted == '\0') return best;
  for (int level = 0; level < 4; ++level) {
    if (kNames[level] == wanted) return std::min(best, static_cast<Isa>(level));
  }
  throw UsageError("NIBBLE_ISA=" + std::string(wanted) + " is not known", "use baseline, avx2, avx512 or avx512_bf16");
}

}  // namespace

Isa isa() {
  static const Isa level = capped();
  return level;
}

std::string_view isa_name(Isa level) { return kNames[static_cast<int>(level)]; }

}  // namespace nibble
