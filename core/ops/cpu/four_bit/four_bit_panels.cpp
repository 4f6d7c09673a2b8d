#include "nibble/core/ops/cpu/four_bit/four_bit_panels.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "nibble/core/ops/cpu/four_bit/four_bit_strip.h"
#include "nibble/core/ops/cpu/stored_weight.h"

namespace nibble::ops::cpu {

namespace {

// 2^(exponent - 127): the bits of a float without mantissa; of 0 a number below the normal ones.
float power_of_two(uint32_t exponent) {
  constexpr uint32_t kSmallest = uint32_t{1} << 22;
  return std::bit_cast<float>(exponent == 0 ? kSmallest : exponent << 23);
}

}  // namespace

FourBitDotsTable four_bit_dots_table(const std::array<float, 16>& table, float factor) {
  FourBitDotsTable result;
  result.inverse = 1 / factor;
  for (size_t code = 0; code < 32; ++code) result.values[code] = bf16(table[code % 16] * factor);
  return result;
}

FourBitScales::FourBitScales(const FourBitMatrix& w, Isa level) : w_(w) {
  if (!w.double_quantized()) return;
  by_planes_ = four_bit_fused(level) && four_bit_scales_fast();
  if (by_planes_) {
    four_bit_planes_avx512_bf16(w.nested_map.raw(), planes_.data());
  } else {
    std::memcpy(map_.data(), w.nested_map.raw(), sizeof map_);
  }
}

void FourBitScales::read(int64_t begin, int64_t end, float* out) const {
  if (w_.scaled_by_exponents()) {
    const std::byte* exponents = w_.exponents.raw();
    for (; begin < end; ++begin) *out++ = power_of_two(static_cast<uint32_t>(exponents[begin]));
    return;
  }
  if (!w_.double_quantized()) {
    std::memcpy(out, w_.absmax.raw() + begin * 4, static_cast<size_t>(end - begin) * 4);
    return;
  }
  const std::byte* codes = w_.absmax_codes.raw();
  const std::byte* nested = w_.nested_absmax.raw();
  while (begin < end) {
    const int64_t group = begin / w_.nested_block_size, stop = std::min(end, (group + 1) * w_.nested_block_size);
    float factor;
    std::memcpy(&factor, nested + group * 4, sizeof factor);
#if defined(__x86_64__)
    if (by_planes_) {
      four_bit_scales_avx512_vbmi(reinterpret_cast<const uint8_t*>(codes) + begin, stop - begin, planes_.data(), factor,
                                  w_.nested_offset, out);
      out += stop - begin;
      begin = stop;
      continue;
    }
#endif
    for (; begin < stop; ++begin) *out++ = map_[static_cast<size_t>(codes[begin])] * factor + w_.nested_offset;
  }
}

FourBitPanels::FourBitPanels(const WeightView& w, Isa level)
    : w_(w.four_bit), level_(level), expander_(four_bit_expander(level)), scales_(w_, level) {
  if (four_bit_fused(level)) dots_table_ = four_bit_dots_table(w_.table, w.table_factor);
}

// The scale of every `part` elements of [begin, begin + count), where blocks hold whole parts.
template <int64_t part>
void FourBitPanels::scales_of_parts(int64_t begin, int64_t count, float* out) const {
  const int64_t size = w_.block_size, first = begin / size, last = (begin + count - 1) / size;
  if (size == part) return scales_.read(first, last + 1, out);
  float blocks[kFourBitDotsDepth / part + 1];
  scales_.read(first, last + 1, blocks);
  for (int64_t i = 0; i < count; i += part) out[i / part] = blocks[(begin + i) / size - first];
}

template <typename Out>
void FourBitPanels::fill(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, Out* out,
                         int64_t stride) const {
  constexpr int64_t kScales = 128;
  float scales_of_run[kScales + 1];
  FourBitRun run = {reinterpret_cast<const uint8_t*>(w_.packed.raw()),
                    0,
                    0,
                    w_.table.data(),
                    scales_of_run,
                    w_.block_size,
                    w_.low_first};
  const int64_t width = w_.in_features(), rows = row_end - row_begin;
  row_begin += w_.first_row;
  const StoredWeight stored = {w_.packed.raw(), width, w_.first_row + w_.shape[0], 4};
  for (int64_t row = row_begin; row < row_begin + rows; ++row, out += stride) {
    fetch_next(stored, row, rows, col_begin, col_end);
    for (int64_t col = col_begin; col < col_end; col += run.count) {
      run.begin = row * width + col;
      run.count = std::min(col_end - col, kScales * run.block_size);
      const int64_t last = run.begin + run.count - 1;
      scales_.read(run.begin / run.block_size, last / run.block_size + 1, scales_of_run);
      if constexpr (std::is_same_v<Out, float>) {
        expander_.to_f32(run, out + (col - col_begin));
      } else {
        expander_.to_bf16(run, out + (col - col_begin));
      }
    }
  }
}

template void FourBitPanels::fill(int64_t, int64_t, int64_t, int64_t, float*, int64_t) const;
template void FourBitPanels::fill(int64_t, int64_t, int64_t, int64_t, bf16*, int64_t) const;

bool FourBitPanels::fill_strip(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end,
                               std::byte* strip) const {
  constexpr int64_t kPart = kFourBitStripPart, kMostParts = 128;
  const int64_t width = w_.in_features(), depth = col_end - col_begin, size = w_.block_size, parts = depth / kPart;
  const bool whole_parts = width % kPart == 0 && size % kPart == 0 && col_begin % kPart == 0 && depth % kPart == 0;
  if (!four_bit_fused(level_) || w_.low_first || !whole_parts || parts > kMostParts) return false;
  float scales[kFourBitStripRows * kMostParts];
  const int64_t rows = row_end - row_begin, row = row_begin + w_.first_row;
  if (size == kPart && depth == width) {  // one after another
    scales_.read(row * parts, (row + rows) * parts, scales);
  } else {
    for (int64_t r = 0; r < rows; ++r) {
      scales_of_parts<kPart>((row + r) * width + col_begin, depth, scales + r * parts);
    }
  }
  const auto* packed = reinterpret_cast<const uint8_t*>(w_.packed.raw());
  four_bit_strip_avx512_bf16(
      {rows, depth, packed + (row * width + col_begin) / 2, width / 2, w_.table.data(), scales, parts}, strip);
  return true;
}

bool FourBitPanels::dots(int64_t row_begin, int64_t row_end, const bf16* x, float* y) const {
  constexpr int64_t kPart = 64, kParts = kFourBitDotsDepth / kPart;  // what one scale covers at least
  const int64_t depth = w_.in_features(), size = w_.block_size;
  if (!four_bit_fused(level_) || depth % kPart != 0 || size % kPart != 0 || w_.low_first) return false;
  const auto* packed = reinterpret_cast<const uint8_t*>(w_.packed.raw());
  alignas(64) bf16 reordered[kFourBitDotsDepth];
  alignas(64) float parts[kFourBitDotsRows * kParts];
  float sums[kFourBitDotsRows];
  std::fill(y, y + (row_end - row_begin), 0.0f);
  row_begin += w_.first_row;
  row_end += w_.first_row;
  for (int64_t k = 0; k < depth; k += kFourBitDotsDepth) {
    const int64_t count = std::min(kFourBitDotsDepth, depth - k);
    four_bit_dots_reorder(x + k, count, reordered);
    for (int64_t row = row_begin; row < row_end; row += kFourBitDotsRows) {
      const int64_t rows = std::min(kFourBitDotsRows, row_end - row), begin = row * depth + k;
      int64_t stride = kParts;
      if (size == kPart && count == depth) {  // one after another
        stride = depth / kPart;
        scales_.read(row * stride, (row + rows) * stride, parts);
      } else {
        for (int64_t r = 0; r < rows; ++r) scales_of_parts<kPart>(begin + r * depth, count, parts + r * stride);
      }
      four_bit_dots_avx512_bf16({rows, count, packed + begin / 2, depth / 2, parts, stride}, dots_table_, reordered,
                                sums);
      for (int64_t r = 0; r < rows; ++r) y[row - row_begin + r] += sums[r];
    }
  }
  return true;
}

}  // namespace nibble::ops::cpu
