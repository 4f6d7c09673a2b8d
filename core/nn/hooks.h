#pragma once
// The seam through which sharding gathers and releases the weights of a layer and prefetches the next one.

#include <cstdint>

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
};

}  // namespace nibble
