#pragma once
// Where the weights of a layer come from: a checkpoint, random numbers, a quantizer. Layers ask; makers answer.

#include <functional>
#include <memory>
#include <string>

#include "nibble/core/nn/linear.h"

namespace nibble {

/// Makes the weight of one Linear from wherever it comes: dense from a checkpoint, 4-bit, random. `module` is the
/// module path ("model.layers.0.self_attn.q_proj"), shape [out, in].
using LinearWeightMaker = std::function<std::unique_ptr<LinearWeight>(const std::string& module, const Shape& shape)>;

/// Reads or makes one small parameter (norm, bias, embedding): full name and shape.
using ParameterMaker = std::function<std::shared_ptr<Parameter>(const std::string& name, const Shape& shape)>;

/// The two together, as layers take them.
struct Makers {
  LinearWeightMaker linear;
  ParameterMaker parameter;

  /// The Linear of module `name`, with name + ".bias" if it has one.
  Linear make_linear(const std::string& name, int64_t out, int64_t in, bool bias) const {
    return Linear(name, linear(name, {out, in}), bias ? parameter(name + ".bias", {out}) : nullptr);
  }
};

}  // namespace nibble
