#pragma once
// Adapters that take their start from the weight they stand beside (PEFT: init_lora_weights "pissa", "olora", "loftq").

#include "nibble/adapters/options.h"
#include "nibble/adapters/tuners/decomposition.h"
#include "nibble/core/nn/linear.h"

namespace nibble {

/// What the adapter of `module` starts from under options.init_lora_weights (pissa or olora), for its weight w [out,
/// in] f32: s B A is what the base gives away. `seed` matters for pissa_iterations only. Throws UsageError for a rank
/// above the smaller side of w.
LowRankFactors initial_factors(const AdapterOptions& options, const std::string& module, const Tensor& w, int64_t r,
                               double scaling, uint64_t seed, MemoryPool& pool);

/// The same for LoftQ with one iteration: the largest singular values of what is lost between `original` [out, in] f32
/// and the 4-bit weight of `linear`. As in PEFT, s does not enter.
LowRankFactors loftq_factors(const Linear& linear, const Tensor& original, int64_t r, MemoryPool& pool);

/// W -= s B A: the linear gets a weight of its own, in the dtype and layout of the old one. Throws UsageError for a
/// packed weight and for a head that is tied to the embedding.
void take_from_base(Linear& linear, const LowRankFactors& factors, double scaling, MemoryPool& pool);

/// [N, M] = the transpose of m [M, N] f32, bf16 or f16.
Tensor transposed(const Tensor& m, MemoryPool& pool);

}  // namespace nibble
