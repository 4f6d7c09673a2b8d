#pragma once
// Products of two plain matrices by the libraries that nibble builds on, behind the same seam as our own kernel. Ours
// is the default on CPUs with AVX2: it is level with oneDNN, ahead of OpenBLAS, and alone promises the same bits for
// any number of threads and rows (docs/design.md). OpenBLAS is the default where only its kernels know the CPU. 4-bit
// weights are always multiplied by ours.

#include <string_view>
#include <vector>

#include "nibble/core/ops/cpu/gemm_packed.h"

namespace nibble::ops::cpu {

enum class GemmEngine { own, openblas, onednn };

/// "own", "openblas", "onednn".
std::string_view gemm_engine_name(GemmEngine engine);

/// The libraries that this build has: OpenBLAS, and oneDNN unless it was switched off.
std::vector<GemmEngine> gemm_libraries();

/// The engine that the environment variable NIBBLE_GEMM names, or the default. UsageError for a name that is unknown or
/// that this build lacks. Read once.
GemmEngine gemm_engine();

/// c by the library's product, if it has one for these dtypes: oneDNN for f32 and, on CPUs with bf16 instructions,
/// bf16; OpenBLAS for f32. False, and nothing done, otherwise.
bool gemm_by_library(const PackedProduct& product, GemmEngine engine);

/// The two behind it, each in a file of its own; gemm_onednn only exists in a build with oneDNN.
bool gemm_openblas(const PackedProduct& product);
bool gemm_onednn(const PackedProduct& product);

}  // namespace nibble::ops::cpu
