#pragma once
// f32 products of two plain matrices by OpenBLAS, behind the same seam as our own kernel. Ours is the default on CPUs
// with AVX2: it alone promises the same bits for any number of threads and rows (docs/design.md), and is about as fast
// (benchmarks/RESULTS.md). OpenBLAS is the default where only its kernels know the CPU.

#include "nibble/core/ops/cpu/gemm/gemm_packed.h"

namespace nibble::ops::cpu {

/// Whether dense f32 products are OpenBLAS's: as the environment variable NIBBLE_GEMM says (own, openblas), or by the
/// CPU. UsageError for another name. Read once.
bool prefers_openblas();

/// c by OpenBLAS if all three matrices are f32. False, and nothing done, otherwise. UsageError where the library cannot
/// be loaded.
bool gemm_openblas(const PackedProduct& product);

}  // namespace nibble::ops::cpu
