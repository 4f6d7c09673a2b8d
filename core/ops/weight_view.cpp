#include "nibble/core/ops/weight_view.h"

#include <bit>

#include "nibble/core/tensor/bfloat16.h"

namespace nibble::ops {

namespace {

void check(const FourBitMatrix& m, const std::string& name) {
  const auto require = [&](bool holds, const char* reason) {
    if (!holds) throw InputError(name, reason);
  };
  const auto has = [](const Tensor& tensor, DType dtype, int64_t count) {
    return tensor.defined() && tensor.has_bytes() && tensor.dtype() == dtype && tensor.numel() == count;
  };
  require(m.shape.size() == 2 && m.shape[0] >= 0 && m.shape[1] >= 0, "a 4-bit weight must have two dimensions");
  require(m.block_size >= 32 && m.block_size <= 4096 && std::has_single_bit(static_cast<uint64_t>(m.block_size)),
          "block size of a 4-bit weight is none of 32, 64, ..., 4096");
  const int64_t elements = element_count(m.shape);
  require(has(m.packed, DType::u8, elements / 2 + elements % 2), "packed bytes do not fit the shape");
  if (m.scaled_by_exponents()) {
    require(has(m.exponents, DType::u8, m.blocks()), "exponents of scales do not fit the shape");
    return;
  }
  if (!m.double_quantized()) {
    require(has(m.absmax, DType::f32, m.blocks()), "absmax does not fit the shape");
    return;
  }
  require(m.nested_block_size > 0, "nested block size is not positive");
  require(has(m.absmax_codes, DType::u8, m.blocks()), "absmax does not fit the shape");
  require(has(m.nested_map, DType::f32, 256), "nested_quant_map has not 256 values");
  require(has(m.nested_absmax, DType::f32, (m.blocks() + m.nested_block_size - 1) / m.nested_block_size),
          "nested_absmax does not fit the shape");
}

float best_table_factor(const std::array<float, 16>& table) {
  constexpr int kFactors = 128;
  float best = 1;
  double least = 0;
  for (int i = 0; i < kFactors; ++i) {
    const float factor = 1 + static_cast<float>(i) / kFactors;
    double loss = 0;
    for (float value : table) {
      const double lost = static_cast<double>(static_cast<float>(bf16(value * factor))) / factor - value;
      loss += lost * lost;
    }
    if (i > 0 && !(loss < least)) continue;
    least = loss;
    best = factor;
  }
  return best;
}

}  // namespace

WeightView::WeightView(Tensor matrix) : encoding(WeightEncoding::dense), dense(std::move(matrix)) {
  NIBBLE_CHECK(dense.rank() == 2, "a matrix, not " + to_string(dense.shape()));
  const DType dtype = dense.dtype();
  NIBBLE_CHECK(is_float(dtype), "products of " + std::string(dtype_name(dtype)));
}

WeightView::WeightView(FourBitMatrix matrix, const std::string& name)
    : encoding(WeightEncoding::four_bit), four_bit(std::move(matrix)) {
  check(four_bit, name);
  table_factor = best_table_factor(four_bit.table);
}

WeightView WeightView::slice_rows(int64_t begin, int64_t end) const {
  NIBBLE_CHECK(0 <= begin && begin <= end && end <= rows(), "rows of a weight");
  if (encoding == WeightEncoding::dense) return dense.rows(begin, end);
  WeightView slice = *this;
  slice.four_bit.first_row += begin;
  slice.four_bit.shape[0] = end - begin;
  return slice;
}

}  // namespace nibble::ops
