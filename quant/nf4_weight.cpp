#include "nibble/quant/nf4_weight.h"

#include <numeric>
#include <utility>

#include "nibble/core/ops/columns.h"
#include "nibble/quant/mxfp4_layout.h"

namespace nibble {

Nf4Weight::Nf4Weight(std::string name, const ops::FourBitMatrix& matrix, std::vector<NamedTensor> state,
                     int64_t matrices, bool transposed)
    : name_(std::move(name)),
      stored_(std::make_shared<ops::WeightView>(matrix, name_)),
      state_(std::move(state)),
      matrices_(matrices),
      transposed_(transposed) {
  NIBBLE_CHECK(!transposed || matrices > 0, "a single matrix is stored [out, in]");
}

std::unique_ptr<LinearWeight> Nf4Weight::matrix(int64_t i) const {
  NIBBLE_CHECK(0 <= i && i < matrices_, "a matrix of " + name_);
  auto other = std::make_unique<Nf4Weight>(*this);
  other->matrix_ = i;
  return other;
}

std::unique_ptr<LinearWeight> Nf4Weight::matrices(Range which, MemoryPool& pool) const {
  NIBBLE_CHECK(matrix_ == 0 && 0 <= which.begin && which.end <= matrices_, "matrices of " + name_);
  const int64_t columns = stored_->cols(), begin = which.begin * stored_rows(), end = which.end * stored_rows();
  auto own = std::make_unique<Nf4Weight>(*this);
  own->matrices_ = which.size();
  own->stored_ = std::make_shared<ops::WeightView>(stored_->slice_rows(begin, end));
  // From where a group of scales begins to where one ends.
  ops::FourBitMatrix& m = own->stored_->four_bit;
  const int64_t group = m.block_size * (m.double_quantized() ? m.nested_block_size : 1);
  const int64_t step = group / std::gcd(group, columns);
  const int64_t first = begin / step * step, last = std::min(stored_->rows(), (end + step - 1) / step * step);
  m.first_row = begin - first;
  const auto slice = [&](Tensor& tensor, int64_t elements) {
    if (!tensor) return;
    tensor =
        tensor.reshape({tensor.numel()}).rows(first * columns / elements, (last * columns + elements - 1) / elements);
    if (tensor.writable()) tensor = tensor.clone(pool);
  };
  slice(m.packed, 2);
  for (Tensor* scales : {&m.absmax, &m.absmax_codes, &m.exponents}) slice(*scales, m.block_size);
  slice(m.nested_absmax, group);
  return own;
}

ops::WeightView Nf4Weight::rows(int64_t begin, int64_t end) const {
  const int64_t before = matrix_ * stored_rows();
  return stored_->slice_rows(before + begin, before + end);
}

WeightOperand Nf4Weight::operand() const { return {matrices_ == 0 ? *stored_ : rows(0, stored_rows()), !transposed_}; }

void Nf4Weight::forward(const Tensor& x, Tensor& y, bool accumulate, const ops::LowRankEpilogue* epilogue) const {
  if (matrices_ == 0) return multiply(x, *stored_, true, y, accumulate, epilogue);
  multiply(x, rows(0, stored_rows()), !transposed_, y, accumulate, epilogue);
}

void Nf4Weight::backward_input(const Tensor& dy, Tensor& dx, bool accumulate,
                               const ops::LowRankEpilogue* epilogue) const {
  if (matrices_ == 0) return multiply(dy, *stored_, false, dx, accumulate, epilogue);
  multiply(dy, rows(0, stored_rows()), transposed_, dx, accumulate, epilogue);
}

Tensor Nf4Weight::dequantize(int64_t begin, int64_t end, MemoryPool& pool) const {
  Tensor result = Tensor::empty(pool, {end - begin, in_features()}, DType::f32, name_);
  if (!transposed_) {
    ops::dequantize(rows(begin, end), result);
    return result;
  }
  Tensor stored = Tensor::empty(pool, {in_features(), out_features()}, DType::f32, name_);
  Tensor columns = Tensor::empty(pool, {in_features(), end - begin}, DType::f32, name_);
  ops::dequantize(rows(0, in_features()), stored);
  ops::copy_columns_out(stored, begin, columns);
  ops::transpose(columns, result);
  return result;
}

std::vector<NamedTensor> Nf4Weight::parts() const {
  if (!is_first()) return {};
  const ops::FourBitMatrix& m = stored_->four_bit;
  if (m.scaled_by_exponents()) {
    return {{mxfp4_blocks_name(name_), m.packed}, {mxfp4_scales_name(name_), m.exponents}};
  }
  std::vector<NamedTensor> result = {{name_, m.packed},
                                     {name_ + ".absmax", m.double_quantized() ? m.absmax_codes : m.absmax}};
  if (m.double_quantized()) {
    result.push_back({name_ + ".nested_absmax", m.nested_absmax});
    result.push_back({name_ + ".nested_quant_map", m.nested_map});
  }
  result.insert(result.end(), state_.begin(), state_.end());
  return result;
}

namespace {

// Elements that have one scale in the global matrix and in the shard: blocks, unless its edge goes through them.
int64_t shard_block(const ops::FourBitMatrix& global, const ShardSpec& spec) {
  int64_t block = std::gcd(global.block_size, global.in_features());
  for (const Range& range : spec.columns) block = std::gcd(std::gcd(block, range.begin), range.end);
  return block;
}

}  // namespace

std::unique_ptr<LinearWeight> Nf4Weight::shard(const ShardSpec& spec, MemoryPool& pool) const {
  NIBBLE_CHECK(matrices_ == 0, "a shard of a single matrix");
  const ops::FourBitMatrix& global = stored_->four_bit;
  const int64_t out = out_features(), in = in_features(), block = shard_block(global, spec);
  constexpr int64_t kSmallest = 32;  // see ops::FourBitMatrix
  if (block < kSmallest) {
    throw UsageError(name_ + " [" + std::to_string(out) + ", " + std::to_string(in) +
                         "] is split inside its blocks of " + std::to_string(global.block_size) + " elements",
                     "leave the module in 16 bits (model.skip_modules), or use parallel.shard or parallel.pipeline",
                     "parallel.tensor");
  }
  ops::FourBitMatrix own = global;
  own.shape = spec.shape();
  own.block_size = block;
  const Tensor packed = global.packed.reshape({out, in / 2});
  ShardSpec halves{{out, in / 2}, spec.rows, spec.columns};
  for (Range& range : halves.columns) range = {range.begin / 2, range.end / 2};
  own.packed = slice_shard(packed, halves, pool);

  const int64_t begin = spec.rows.front().begin * in / block, end = spec.rows.front().end * in / block;
  const int64_t group = global.nested_block_size;
  const bool whole_groups = begin % group == 0 && (end % group == 0 || end == global.blocks());
  if (global.double_quantized() && !spec.slices_columns() && spec.rows.size() == 1 && block == global.block_size &&
      whole_groups) {
    own.absmax_codes = global.absmax_codes.reshape({global.blocks()}).rows(begin, end);
    own.nested_absmax =
        global.nested_absmax.reshape({global.nested_absmax.numel()}).rows(begin / group, (end + group - 1) / group);
  } else {
    // The scale of every block of the shard, as the global matrix has it.
    Tensor scales = Tensor::empty(pool, {global.blocks()}, DType::f32, "scales");
    ops::block_scales(global, scales);
    Tensor spread = Tensor::empty(pool, {out, in / block}, DType::f32, "scales");
    for (int64_t i = 0; spread.device().has_bytes() && i < spread.numel(); ++i) {
      spread.data<float>()[i] = scales.data<const float>()[i * block / global.block_size];
    }
    ShardSpec blocks{{out, in / block}, spec.rows, spec.columns};
    for (Range& range : blocks.columns) range = {range.begin / block, range.end / block};
    const Tensor cut_scales = slice_shard(spread, blocks, pool);
    own.absmax = cut_scales.storage() == spread.storage() ? cut_scales.clone(pool) : cut_scales;
    own.absmax = own.absmax.reshape({own.absmax.numel()});
    own.absmax_codes = own.nested_absmax = {};
  }
  if (own.packed.writable() && own.packed.storage() == global.packed.storage()) {
    own.packed = own.packed.clone(pool);
    if (own.absmax_codes) own.absmax_codes = own.absmax_codes.clone(pool);
    if (own.nested_absmax) own.nested_absmax = own.nested_absmax.clone(pool);
  }
  return std::make_unique<Nf4Weight>(name_, own, state_);
}

std::vector<Tensor*> Nf4Weight::storage() {
  ops::FourBitMatrix& matrix = stored_->four_bit;
  if (matrix.scaled_by_exponents()) return {&matrix.packed, &matrix.exponents};
  if (!matrix.double_quantized()) return {&matrix.packed, &matrix.absmax};
  return {&matrix.packed, &matrix.absmax_codes, &matrix.nested_absmax};
}

}  // namespace nibble
