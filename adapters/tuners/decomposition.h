#pragma once
// Low-rank parts of a matrix: where adapters start that take their start from the weight, and what combining several
// adapters into one of a given rank needs.

#include <vector>

#include "nibble/core/tensor/tensor.h"

namespace nibble {

/// W ~ B A: a [R, in], b [out, R], f32.
struct LowRankFactors {
  Tensor a, b;
};

/// The R largest singular values of a matrix [M, N]: U diag(s) V^T. Signs of the pairs are arbitrary.
struct TruncatedSvd {
  Tensor u;               ///< [M, R] f32
  std::vector<double> s;  ///< falling
  Tensor vt;              ///< [R, N] f32; a row of zeros where s is zero
};

/// Exact, in f64 by way of the smaller Gram matrix. w f32; r at most the smaller side, else UsageError.
TruncatedSvd truncated_svd(const Tensor& w, int64_t r, MemoryPool& pool);

/// `iterations` rounds of subspace iteration from a random start that (seed, purpose) fix, as torch.svd_lowrank does it
/// with q = r (Halko et al. 2009, algorithms 4.4 and 5.1).
TruncatedSvd randomized_svd(const Tensor& w, int64_t r, int64_t iterations, uint64_t seed, uint64_t purpose,
                            MemoryPool& pool);

/// A = sqrt(S / s) V^T and B = U sqrt(S / s): s B A is the low-rank part itself (PiSSA).
LowRankFactors split_evenly(const TruncatedSvd& svd, double s, MemoryPool& pool);

/// w = Q R: A the first r rows of R, B the first r columns of Q (OLoRA).
LowRankFactors first_of_qr(const Tensor& w, int64_t r, MemoryPool& pool);

}  // namespace nibble
