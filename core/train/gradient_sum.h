#pragma once
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "nibble/core/nn/parameter.h"

namespace nibble {

/// How the gradients of a step's M microbatches are added (f32).
enum class GradientSum : uint8_t {
  /// Binary tree over the microbatch index: [0, M) is the sum of [0, M/2) and [M/2, M), and so on. Ranks that own equal
  /// parts of [0, M) own whole subtrees, so 1, 2, 4 and 8 ranks get the same bits. Keeps up to log2(M) partial sums.
  tree,
  /// One after another into the gradient itself. No extra memory.
  running,
};

/// How many sums of some of `count` microbatches are kept at most beside the gradients themselves.
int64_t partial_sums(GradientSum kind, int64_t count);

/// Every parameter has a gradient.
void zero_gradients(const std::vector<Parameter*>& parameters);

/// Calls run(i) for microbatches 0..count-1 in order; run adds microbatch i's gradient to the parameters' gradients and
/// returns its loss. Afterwards the gradients hold the sum over all of them, in the order `kind` says; what they held
/// before is lost. Returns the sum of the losses, in the same order. Partial sums are taken from `pool`.
double sum_gradients(GradientSum kind, const std::vector<Parameter*>& parameters, int64_t count,
                     const std::function<double(int64_t)>& run, MemoryPool& pool);

}  // namespace nibble
