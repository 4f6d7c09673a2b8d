#pragma once
// What weights and adapters of experts may give, so that the products of all experts are made by one op.

#include <optional>

#include "nibble/core/nn/step_context.h"
#include "nibble/core/ops/weight_view.h"

namespace nibble {

/// What the products of a weight read: x w^T if `transposed`, else x w.
struct WeightOperand {
  ops::WeightView w;
  bool transposed;
};

/// A LinearWeight that can be read by an op of several. (DenseWeight can without.)
class ReadableWeight {
 public:
  virtual ~ReadableWeight() = default;
  virtual WeightOperand operand() const = 0;
};

/// A low-rank update as the matrices it is made of: y += scaling * (x first) second.
struct UpdateFactors {
  Tensor first;   ///< [in, R], or [R, in] if first_transposed; f32
  Tensor second;  ///< [R, out], or [out, R] if second_transposed; f32
  bool first_transposed = true, second_transposed = true;
  double scaling = 1;
};

/// An Adapter that is such an update and nothing else.
class FactoredAdapter {
 public:
  virtual ~FactoredAdapter() = default;
  /// Views or copies.
  virtual UpdateFactors factors(MemoryPool& pool) const = 0;
  /// The gradients of the factors so far, to be added to; put_gradients() with them ends that.
  virtual UpdateFactors gradients(MemoryPool& pool) = 0;
  virtual void put_gradients(const UpdateFactors& gradients) = 0;
};

}  // namespace nibble
