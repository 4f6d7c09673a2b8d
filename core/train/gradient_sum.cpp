#include "nibble/core/train/gradient_sum.h"

#include <bit>

#include "nibble/core/ops/elementwise.h"
#include "nibble/core/train/each_parameter.h"

namespace nibble {

int64_t partial_sums(GradientSum kind, int64_t count) {
  return kind == GradientSum::tree && count > 1 ? std::bit_width(static_cast<uint64_t>(count - 1)) : 0;
}

void zero_gradients(const std::vector<Parameter*>& parameters) {
  for_each_parameter(parameters, [&](size_t i) { parameters[i]->gradient.zero(); });
}

namespace {

std::vector<Tensor> clones(const std::vector<Parameter*>& parameters, MemoryPool& pool) {
  const MemoryPool::Use use(pool, MemoryUse::gradients);
  std::vector<Tensor> result;
  result.reserve(parameters.size());
  for (const Parameter* parameter : parameters) result.push_back(parameter->gradient.clone(pool));
  return result;
}

struct Tree {
  const std::vector<Parameter*>& parameters;
  const std::function<double(int64_t)>& run;
  MemoryPool& pool;

  // Leaves the sum over [begin, end) in the gradients.
  double sum(int64_t begin, int64_t end) {
    if (end - begin == 1) {
      zero_gradients(parameters);
      return run(begin);
    }
    const int64_t middle = begin + (end - begin) / 2;
    const double left_loss = sum(begin, middle);
    const std::vector<Tensor> left = clones(parameters, pool);
    const double right_loss = sum(middle, end);
    for (size_t i = 0; i < parameters.size(); ++i) ops::add(left[i], parameters[i]->gradient);
    return left_loss + right_loss;
  }
};

}  // namespace

double sum_gradients(GradientSum kind, const std::vector<Parameter*>& parameters, int64_t count,
                     const std::function<double(int64_t)>& run, MemoryPool& pool) {
  if (kind == GradientSum::tree && count > 0) return Tree{parameters, run, pool}.sum(0, count);
  zero_gradients(parameters);
  double loss = 0;
  for (int64_t i = 0; i < count; ++i) loss += run(i);
  return loss;
}

}  // namespace nibble
