#pragma once
// Named parameters and the one visitor over them.

#include <functional>
#include <string>

#include "nibble/core/nn/shard_spec.h"

namespace nibble {

/// A weight with its Hugging Face (or PEFT) name. Trainable parameters are f32 and have a gradient of the same shape.
struct Parameter {
  std::string name;  ///< as in the checkpoint: "model.layers.0.self_attn.q_proj.weight"
  Tensor value;
  Tensor gradient;  ///< f32, defined only when trainable; backward passes add to it
  bool trainable = false;
  bool buffer = false;  ///< no parameter but saved with them, and never trained (a router's correction)
  ShardSpec shard;      ///< which shard of the parameter the value is; nothing: all of it
  /// The value is whole, but what backward passes add is one term of its gradient: others compute the rest.
  bool partial_gradient = false;

  /// value + gradient storage for training: value becomes f32 that may be written (a copy unless it is), gradient
  /// zeros.
  void make_trainable(MemoryPool& pool);
};

/// Called once for every parameter, in a fixed order; yields state dict, optimizer list, shard list, counts.
using ParameterVisitor = std::function<void(Parameter&)>;

}  // namespace nibble
