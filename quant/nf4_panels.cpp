#include "nibble/quant/nf4_panels.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "nibble/core/ops/cpu/four_bit_dots.h"

namespace nibble {

namespace {

void check(const QuantizedMatrix& m, const std::string& name) {
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

// Asks for the codes of the piece that a product fills next: it goes along long rows to their end, and down short ones.
// The pieces' rows are too far apart and too short for the hardware to see where they lead.
void fetch_next(const QuantizedMatrix& m, int64_t row, int64_t rows, int64_t col_begin, int64_t col_end) {
  constexpr int64_t kLong = 8, kLine = 64;
  const int64_t count = col_end - col_begin;
  const bool along = count >= kLong * rows;
  if (along && col_end < m.shape[1]) {
    col_begin = col_end;
  } else {
    row += rows;
    if (along) col_begin = 0;
  }
  if (row >= m.shape[0]) return;
  const std::byte* codes = m.packed.raw() + (row * m.shape[1] + col_begin) / 2;
  const int64_t bytes = std::min(count, m.shape[1] - col_begin) / 2;
  for (int64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(codes + i);
}

}  // namespace

Nf4Panels::Nf4Panels(const QuantizedMatrix& matrix, const std::string& name, Isa level)
    : matrix_(matrix), level_(level), expander_(nf4_expander(level)) {
  check(matrix_, name);
  dots_table_ = nf4_dots_table(matrix_.table);
  if (!matrix_.double_quantized()) return;
  std::memcpy(nested_map_.data(), matrix_.nested_map.raw(), sizeof nested_map_);
  if (level_ < Isa::avx512_bf16 || !nf4_scales_fast()) return;
  nested_planes_.emplace();
  for (size_t i = 0; i < nested_planes_->size(); ++i) {
    (*nested_planes_)[i] = static_cast<uint8_t>(std::bit_cast<uint32_t>(nested_map_[i % 256]) >> (8 * (i / 256)));
  }
}

void Nf4Panels::scales(int64_t begin, int64_t end, float* out) const {
  if (!matrix_.double_quantized()) {
    std::memcpy(out, matrix_.absmax.raw() + begin * 4, static_cast<size_t>(end - begin) * 4);
    return;
  }
  const std::byte* codes = matrix_.absmax_codes.raw();
  const std::byte* nested = matrix_.nested_absmax.raw();
  const int64_t nested_size = matrix_.nested_block_size;
  while (begin < end) {
    const int64_t group = begin / nested_size, stop = std::min(end, (group + 1) * nested_size);
    float factor;
    std::memcpy(&factor, nested + group * 4, sizeof factor);
    if (nested_planes_) {
      nf4_scales_avx512_vbmi(reinterpret_cast<const uint8_t*>(codes) + begin, stop - begin, nested_planes_->data(),
                             factor, matrix_.nested_offset, out);
      out += stop - begin;
      begin = stop;
      continue;
    }
    for (; begin < stop; ++begin) {
      *out++ = nested_map_[static_cast<size_t>(codes[begin])] * factor + matrix_.nested_offset;
    }
  }
}

// The scale of every `part` elements of [begin, begin + count), where blocks hold whole parts.
template <int64_t part>
void Nf4Panels::scales_of_parts(int64_t begin, int64_t count, float* out) const {
  const int64_t size = matrix_.block_size, first = begin / size, last = (begin + count - 1) / size;
  if (size == part) return scales(first, last + 1, out);
  float blocks[kNf4DotsDepth / part + 1];
  scales(first, last + 1, blocks);
  for (int64_t i = 0; i < count; i += part) out[i / part] = blocks[(begin + i) / size - first];
}

template <typename Out>
void Nf4Panels::fill_rows(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, Out* out,
                          int64_t stride) const {
  constexpr int64_t kScales = 128;
  float scales_of_run[kScales + 1];
  Nf4Run run = {reinterpret_cast<const uint8_t*>(matrix_.packed.raw()),
                0,
                0,
                matrix_.table.data(),
                scales_of_run,
                matrix_.block_size};
  const int64_t width = cols();
  for (int64_t row = row_begin; row < row_end; ++row, out += stride) {
    fetch_next(matrix_, row, row_end - row_begin, col_begin, col_end);
    for (int64_t col = col_begin; col < col_end; col += run.count) {
      run.begin = row * width + col;
      run.count = std::min(col_end - col, kScales * run.block_size);
      const int64_t last = run.begin + run.count - 1;
      scales(run.begin / run.block_size, last / run.block_size + 1, scales_of_run);
      if constexpr (std::is_same_v<Out, float>) {
        expander_.to_f32(run, out + (col - col_begin));
      } else {
        expander_.to_bf16(run, out + (col - col_begin));
      }
    }
  }
}

void Nf4Panels::fill(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, float* out,
                     int64_t stride) const {
  fill_rows(row_begin, row_end, col_begin, col_end, out, stride);
}

void Nf4Panels::fill(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, bf16* out,
                     int64_t stride) const {
  fill_rows(row_begin, row_end, col_begin, col_end, out, stride);
}

bool Nf4Panels::dots(int64_t row_begin, int64_t row_end, const bf16* x, float* y) const {
  constexpr int64_t kPart = 64, kParts = kNf4DotsDepth / kPart;  // what one scale covers at least
  const int64_t depth = cols(), size = matrix_.block_size;
  if (level_ < Isa::avx512_bf16 || depth % kPart != 0 || size % kPart != 0) return false;
  const auto* packed = reinterpret_cast<const uint8_t*>(matrix_.packed.raw());
  alignas(64) bf16 reordered[kNf4DotsDepth];
  alignas(64) float parts[kNf4DotsRows * kParts];
  float sums[kNf4DotsRows];
  std::fill(y, y + (row_end - row_begin), 0.0f);
  for (int64_t k = 0; k < depth; k += kNf4DotsDepth) {
    const int64_t count = std::min(kNf4DotsDepth, depth - k);
    nf4_dots_reorder(x + k, count, reordered);
    for (int64_t row = row_begin; row < row_end; row += kNf4DotsRows) {
      const int64_t rows = std::min(kNf4DotsRows, row_end - row), begin = row * depth + k;
      int64_t stride = kParts;
      if (size == kPart && count == depth) {  // one after another
        stride = depth / kPart;
        scales(row * stride, (row + rows) * stride, parts);
      } else {
        for (int64_t r = 0; r < rows; ++r) scales_of_parts<kPart>(begin + r * depth, count, parts + r * stride);
      }
      nf4_dots_avx512_bf16({rows, count, packed + begin / 2, depth / 2, parts, stride}, dots_table_, reordered, sums);
      for (int64_t r = 0; r < rows; ++r) y[row - row_begin + r] += sums[r];
    }
  }
  return true;
}

}  // namespace nibble
