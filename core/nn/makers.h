#pragma once
// Where the weights of a layer come from: a checkpoint, random numbers, a quantizer. Layers ask; makers answer.

#include <functional>
#include <memory>
#include <string>

#include "nibble/core/nn/linear.h"

namespace nibble {

class ExpertExchange;

/// Makes the weight of one Linear from wherever it comes: dense from a checkpoint, 4-bit, random. `module` is the
/// module path ("model.layers.0.self_attn.q_proj"), shape [out, in]; or it is the name of a tensor of several matrices
/// ("model.layers.0.mlp.experts.down_proj"), shape [n, out, in], the first of which is made: see LinearWeight::matrix.
using LinearWeightMaker = std::function<std::unique_ptr<LinearWeight>(const std::string& module, const Shape& shape)>;

/// The tensor that such a maker is asked for.
inline std::string weight_name(const std::string& module, const Shape& shape) {
  return shape.size() == 3 ? module : module + ".weight";
}

/// Reads or makes one small parameter (norm, bias, embedding): full name and shape.
using ParameterMaker = std::function<std::shared_ptr<Parameter>(const std::string& name, const Shape& shape)>;

/// The two together, as layers take them.
struct Makers {
  LinearWeightMaker linear;
  ParameterMaker parameter;
  /// Which experts of every layer are here; null: all.
  const ExpertExchange* experts = nullptr;

  /// The Linear of module `name`, with name + ".bias" if it has one.
  Linear make_linear(const std::string& name, int64_t out, int64_t in, bool bias) const {
    return Linear(name, linear(name, {out, in}), bias ? parameter(name + ".bias", {out}) : nullptr);
  }
  /// The Linears name.0, name.1, ... of the matrices of tensor `name` [n, out, in], without biases and without copies.
  std::vector<Linear> make_linears(const std::string& name, int64_t n, int64_t out, int64_t in) const {
    return linears_of(name, linear(name, {n, out, in}), {0, n});
  }
  /// Those of matrices `which` alone; pool: of what is not mapped.
  std::vector<Linear> make_linears(const std::string& name, int64_t n, int64_t out, int64_t in, Range which,
                                   MemoryPool& pool) const {
    return linears_of(name, linear(name, {n, out, in})->matrices(which, pool), which);
  }

 private:
  static std::vector<Linear> linears_of(const std::string& name, std::unique_ptr<LinearWeight> first, Range which) {
    std::vector<Linear> result;
    result.emplace_back(name + "." + std::to_string(which.begin), std::move(first));
    for (int64_t i = 1; i < which.size(); ++i) {
      result.emplace_back(name + "." + std::to_string(which.begin + i), result[0].weight().matrix(i));
    }
    return result;
  }
};

}  // namespace nibble
