#pragma once
// The seam through which sharding gathers and releases the weights of a layer and prefetches the next one.

#include <cstdint>
#include <string_view>

#include "nibble/core/tensor/tensor.h"

namespace nibble {

/// Called around every pass over layer l (its number in the whole model). A recomputed forward runs between
/// before_backward and after_backward and calls nothing by itself.
class BlockHooks {
 public:
  virtual ~BlockHooks() = default;
  virtual void before_forward(int64_t) {}
  virtual void after_forward(int64_t) {}
  virtual void before_backward(int64_t) {}
  virtual void after_backward(int64_t) {}

  /// How many ranks compute every layer together, each with a part of its weights (see DecoderPart), and which one this
  /// is. What they write into the residual stream and its gradient are parts of a sum.
  virtual int parts() const { return 1; }
  virtual int part() const { return 0; }
  /// values, f32, become their sum over those ranks, the same bits on all. `what` names it.
  virtual void sum_parts(std::string_view, Tensor&) {}
};

}  // namespace nibble
