#include "nibble/quant/nf4_weight.h"

#include <utility>

namespace nibble {

Nf4Weight::Nf4Weight(std::string name, const QuantizedMatrix& matrix, std::vector<NamedTensor> state)
    : name_(std::move(name)), panels_(matrix, name_), state_(std::move(state)) {}

void Nf4Weight::forward(const Tensor& x, Tensor& y, bool accumulate) const {
  ops::matmul_nt(x, panels_, y, accumulate);
}

void Nf4Weight::backward_input(const Tensor& dy, Tensor& dx, bool accumulate) const {
  ops::matmul_nn(dy, panels_, dx, accumulate);
}

Tensor Nf4Weight::dequantize(int64_t begin, int64_t end, MemoryPool& pool) const {
  NIBBLE_CHECK(0 <= begin && begin <= end && end <= out_features(), "rows of " + name_);
  Tensor rows = Tensor::empty(pool, {end - begin, in_features()}, DType::f32, name_);
  panels_.fill(begin, end, 0, in_features(), rows.data<float>(), in_features());
  return rows;
}

std::vector<NamedTensor> Nf4Weight::parts() const {
  const QuantizedMatrix& m = matrix();
  std::vector<NamedTensor> made = {{name_, m.packed},
                                   {name_ + ".absmax", m.double_quantized() ? m.absmax_codes : m.absmax}};
  if (m.double_quantized()) {
    made.push_back({name_ + ".nested_absmax", m.nested_absmax});
    made.push_back({name_ + ".nested_quant_map", m.nested_map});
  }
  made.insert(made.end(), state_.begin(), state_.end());
  return made;
}

std::vector<Tensor*> Nf4Weight::storage() {
  QuantizedMatrix& matrix = panels_.matrix();
  if (!matrix.double_quantized()) return {&matrix.packed, &matrix.absmax};
  return {&matrix.packed, &matrix.absmax_codes, &matrix.nested_absmax};
}

}  // namespace nibble
