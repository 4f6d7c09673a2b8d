#include "nibble/core/base/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <string>

#include "nibble/core/base/cpu_grants.h"
#include "nibble/core/base/error.h"
#include "nibble/core/base/isa_levels.h"

namespace nibble {

namespace {

#if defined(__aarch64__)
constexpr Isa kLevels[] = {Isa::baseline, Isa::neon, Isa::neon_dotprod, Isa::neon_i8mm, Isa::neon_bf16};
constexpr std::string_view kNames[] = {"baseline", "neon", "neon_dotprod", "neon_i8mm", "neon_bf16"};
constexpr Isa kFirstBf16 = Isa::neon_bf16;
#else
constexpr Isa kLevels[] = {Isa::baseline,    Isa::avx2,        Isa::avx_vnni, Isa::avx512,
                           Isa::avx512_vnni, Isa::avx512_bf16, Isa::amx};
constexpr std::string_view kNames[] = {"baseline", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx"};
constexpr Isa kFirstBf16 = Isa::avx512_bf16;

// The encoding for CPUs without AVX-512: leaf 7, subleaf 1, which GCC 12 knows by no name.
bool avx_vnni() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 4)) != 0;
#else
  return false;
#endif
}
#endif
constexpr Isa kHighest = kLevels[std::size(kLevels) - 1];

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;  // clang 14 knows it by no name
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
  const Avx512Grant avx512 = avx512_granted();
  if (avx2 && avx512.common) {
    return avx512.bf16 ? Isa::avx512_bf16 : avx512.vnni ? Isa::avx512_vnni : Isa::avx512;
  }
  if (avx2) return Isa::avx_vnni;
#elif defined(__aarch64__)
  const unsigned long more = getauxval(AT_HWCAP2);
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) == 0) return Isa::neon;
  if ((more & HWCAP2_I8MM) == 0) return Isa::neon_dotprod;
  return (more & HWCAP2_BF16) == 0 ? Isa::neon_i8mm : Isa::neon_bf16;
#endif
  return Isa::baseline;
}

Isa wanted() {
  const char* name = std::getenv("NIBBLE_ISA");
  if (name == nullptr || *name == '\0') return kHighest;
  for (size_t level = 0; level < std::size(kNames); ++level) {
    if (kNames[level] == name) return kLevels[level];
  }
  std::string known;
  for (const Isa level : kLevels) {
    if (level != Isa::baseline) known += level == kHighest ? " or " : ", ";
    known += isa_name(level);
  }
  throw UsageError("NIBBLE_ISA=" + std::string(name) + " is not known", "use " + known);
}

}  // namespace

std::span<const Isa> isa_levels() { return kLevels; }

Isa best_isa(Isa most) {
  const Isa found = std::min(detect(), most);
#if defined(__aarch64__)
  return found;
#else
#if defined(__x86_64__)
  if (found == Isa::avx512_bf16 && most == Isa::amx && tiles_granted()) return Isa::amx;
#endif
  return found == Isa::avx_vnni && !avx_vnni() ? Isa::avx2 : found;
#endif
}

Isa isa() {
  static const Isa level = best_isa(wanted());
  return level;
}

std::string_view isa_name(Isa level) { return kNames[static_cast<int>(level)]; }

bool has_bf16(Isa level) { return level >= kFirstBf16; }

}  // namespace nibble
