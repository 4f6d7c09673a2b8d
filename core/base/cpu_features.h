#pragma once
// What this CPU can do, so that one binary serves any x86-64 (any arm64) and picks its kernels at start.

#include <string_view>

namespace nibble {
#if defined(__aarch64__)  // Instruction set levels the kernels are written for, each includes the ones before it.
enum class Isa { baseline, neon, neon_dotprod, neon_i8mm, neon_bf16 };
#else  // The same; but avx_vnni, AVX2 with 8-bit dot products, is for CPUs without AVX-512: not all with it have those.
enum class Isa { baseline, avx2, avx_vnni, avx512, avx512_vnni, avx512_bf16, amx };
#endif
/// The best level of this CPU and operating system, capped by the environment variable NIBBLE_ISA
/// (a name of isa_name(); anything else throws UsageError). Read once.
Isa isa();

/// The best level of this CPU and operating system up to `most`.
Isa best_isa(Isa most);

/// "avx512_bf16" and so on.
std::string_view isa_name(Isa level);

}  // namespace nibble
