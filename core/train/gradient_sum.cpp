#include "nibble/core/train/gradient_sum.h"

#include "nibble/core/ops/elementwise.h"

namespace nibble {

std::string_view gradient_sum_name(GradientSum kind) { return kind == GradientSum::tree ? "tree" : "running"; }

namespace {

struct Tree {
  const std::vector<Parameter*>& parameters;
  const std::function<double(int64_t)>& run;
  MemoryPool& pool;

  // Leaves the sum over [begin, end) in the gradients.
  double sum(int64_t begin, int64_t end) {
    if (end - begin == 1) {
      for (Parameter* parameter : parameters) parameter->gradient.zero();
      return run(begin);
    }
    const int64_t middle = begin + (end - begin) / 2;
    const double left_loss = sum(begin, middle);
    std::vector<Tensor> left;
    left.reserve(parameters.size());
    for (Parameter* parameter : parameters) left.push_back(parameter->gradient.clone(pool));
    const double right_loss = sum(middle, end);
    for (size_t i = 0; i < parameters.size(); ++i) ops::add(left[i], parameters[i]->gradient);
    return left_loss + right_loss;
  }
};

}  // namespace

double sum_gradients(GradientSum kind, const std::vector<Parameter*>& parameters, int64_t count,
                     const std::function<double(int64_t)>& run, MemoryPool& pool) {
  if (count == 0) return 0;
  if (kind == GradientSum::tree) return Tree{parameters, run, pool}.sum(0, count);
  for (Parameter* parameter : parameters) parameter->gradient.zero();
  double loss = 0;
  for (int64_t i = 0; i < count; ++i) loss += run(i);
  return loss;
}

}  // namespace nibble
