#pragma once
// What this CPU can do, so that one binary serves any x86-64 and picks its kernels at start.

#include <string_view>

namespace nibble {

/// Instruction set levels the kernels are written for, each includes the ones before it; but avx_vnni, AVX2 with 8-bit
/// dot products, is for CPUs without AVX-512, and not all with AVX-512 have it.
enum class Isa { baseline, avx2, avx_vnni, avx512, avx512_bf16 };

/// The best level of this CPU and operating system, capped by the environment variable NIBBLE_ISA
/// (`baseline`, `avx2`, `avx_vnni`, `avx512`, `avx512_bf16`; anything else throws UsageError). Read once.
Isa isa();

/// The best level of this CPU and operating system up to `most`.
Isa best_isa(Isa most);

/// "avx512_bf16" and so on.
std::string_view isa_name(Isa level);

}  // namespace nibble
