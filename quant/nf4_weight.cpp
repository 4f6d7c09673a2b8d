#include "nibble/quant/nf4_weight.h"

#include <numeric>
#include <utility>

namespace nibble {

Nf4Weight::Nf4Weight(std::string name, const ops::FourBitMatrix& matrix, std::vector<NamedTensor> state)
    : name_(std::move(name)), view_(matrix, name_), state_(std::move(state)) {}

void Nf4Weight::forward(const Tensor& x, Tensor& y, bool accumulate, const ops::LowRankEpilogue* epilogue) const {
  ops::matmul_nt(x, view_, y, accumulate, 1.0f, epilogue);
}

void Nf4Weight::backward_input(const Tensor& dy, Tensor& dx, bool accumulate,
                               const ops::LowRankEpilogue* epilogue) const {
  ops::matmul_nn(dy, view_, dx, accumulate, 1.0f, epilogue);
}

Tensor Nf4Weight::dequantize(int64_t begin, int64_t end, MemoryPool& pool) const {
  Tensor rows = Tensor::empty(pool, {end - begin, in_features()}, DType::f32, name_);
  ops::dequantize(view_.slice_rows(begin, end), rows);
  return rows;
}

std::vector<NamedTensor> Nf4Weight::parts() const {
  const ops::FourBitMatrix& m = view_.four_bit;
  std::vector<NamedTensor> made = {{name_, m.packed},
                                   {name_ + ".absmax", m.double_quantized() ? m.absmax_codes : m.absmax}};
  if (m.double_quantized()) {
    made.push_back({name_ + ".nested_absmax", m.nested_absmax});
    made.push_back({name_ + ".nested_quant_map", m.nested_map});
  }
  made.insert(made.end(), state_.begin(), state_.end());
  return made;
}

namespace {

// Elements that have one scale in the whole and in the part: blocks, unless a cut goes through them.
int64_t part_block(const ops::FourBitMatrix& whole, const Cut& cut) {
  int64_t block = std::gcd(whole.block_size, whole.in_features());
  for (const Range& range : cut.columns) block = std::gcd(std::gcd(block, range.begin), range.end);
  return block;
}

}  // namespace

std::unique_ptr<LinearWeight> Nf4Weight::part(const Cut& cut, MemoryPool& pool) const {
  const ops::FourBitMatrix& whole = view_.four_bit;
  const int64_t out = out_features(), in = in_features(), block = part_block(whole, cut);
  constexpr int64_t kSmallest = 32;  // see ops::FourBitMatrix
  if (block < kSmallest) {
    throw UsageError(name_ + " [" + std::to_string(out) + ", " + std::to_string(in) + "] is cut inside its blocks of " +
                         std::to_string(whole.block_size) + " elements",
                     "leave the module in 16 bits (model.skip_modules), or use parallel.shard or parallel.pipeline",
                     "parallel.tensor");
  }
  ops::FourBitMatrix own = whole;
  own.shape = cut.part();
  own.block_size = block;
  const Tensor packed = whole.packed.reshape({out, in / 2});
  Cut halves{{out, in / 2}, cut.rows, cut.columns};
  for (Range& range : halves.columns) range = {range.begin / 2, range.end / 2};
  own.packed = cut_out(packed, halves, pool);

  const int64_t begin = cut.rows.front().begin * in / block, end = cut.rows.front().end * in / block;
  const int64_t group = whole.nested_block_size;
  const bool whole_groups = begin % group == 0 && (end % group == 0 || end == whole.blocks());
  if (whole.double_quantized() && !cut.cuts_columns() && cut.rows.size() == 1 && block == whole.block_size &&
      whole_groups) {
    own.absmax_codes = whole.absmax_codes.reshape({whole.blocks()}).rows(begin, end);
    own.nested_absmax =
        whole.nested_absmax.reshape({whole.nested_absmax.numel()}).rows(begin / group, (end + group - 1) / group);
  } else {
    // The scale of every block of the part, as the whole has it.
    Tensor scales = Tensor::empty(pool, {whole.blocks()}, DType::f32, "scales");
    ops::block_scales(whole, scales);
    Tensor spread = Tensor::empty(pool, {out, in / block}, DType::f32, "scales");
    for (int64_t i = 0; spread.device().has_bytes() && i < spread.numel(); ++i) {
      spread.data<float>()[i] = scales.data<const float>()[i * block / whole.block_size];
    }
    Cut blocks{{out, in / block}, cut.rows, cut.columns};
    for (Range& range : blocks.columns) range = {range.begin / block, range.end / block};
    const Tensor cut_scales = cut_out(spread, blocks, pool);
    own.absmax = cut_scales.storage() == spread.storage() ? cut_scales.clone(pool) : cut_scales;
    own.absmax = own.absmax.reshape({own.absmax.numel()});
    own.absmax_codes = own.nested_absmax = {};
  }
  if (own.packed.writable() && own.packed.storage() == whole.packed.storage()) {
    own.packed = own.packed.clone(pool);
    if (own.absmax_codes) own.absmax_codes = own.absmax_codes.clone(pool);
    if (own.nested_absmax) own.nested_absmax = own.nested_absmax.clone(pool);
  }
  return std::make_unique<Nf4Weight>(name_, own, state_);
}

std::vector<Tensor*> Nf4Weight::storage() {
  ops::FourBitMatrix& matrix = view_.four_bit;
  if (!matrix.double_quantized()) return {&matrix.packed, &matrix.absmax};
  return {&matrix.packed, &matrix.absmax_codes, &matrix.nested_absmax};
}

}  // namespace nibble
