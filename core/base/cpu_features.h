#pragma once
// What this CPU can do, so that one binary serves any x86-64 and picks its kernels at start.

#include <string_view>

namespace nibble {

/// Instruction set levels the kernels are written for, each includes the ones before it.
enum class Isa { baseline, avx2, avx512, avx512_bf16 };

/// The best level of this CPU and operating system, capped by the environment variable NIBBLE_ISA
/// (`baseline`, `avx2`, `avx512`, `avx512_bf16`; anything else throws UsageError). Read once.
Isa isa();

/// "avx512_bf16" and so on.
std::string_view isa_name(Isa level);

}  // namespace nibble
