#include "nibble/core/ops/cpu/four_bit/four_bit_panels.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "nibble/core/ops/cpu/four_bit/four_bit_strip.h"
#include "nibble/core/ops/cpu/stored_weight.h"

namespace nibble::ops::cpu {

namespace {

// What one scale covers at least in a product with a vector, and in a strip.
constexpr int64_t kDotsPart = 64, kLeastPart = 32;

int log2(int64_t power_of_two) { return std::countr_zero(static_cast<uint64_t>(power_of_two)); }

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
  if (!w.double_quantized()) {
    stored_ = (w.scaled_by_exponents() ? w.exponents : w.absmax).raw();
    return;
  }
  stored_ = w.absmax_codes.raw();
  nested_ = w.nested_absmax.raw();
  map_ = w.nested_map.raw();
  if (std::has_single_bit(static_cast<uint64_t>(w.nested_block_size))) group_shift_ = log2(w.nested_block_size);
  by_planes_ = four_bit_dots_bf16(level) && four_bit_scales_fast();
  if (by_planes_) four_bit_planes_avx512_bf16(map_, planes_.data());
}

void FourBitScales::read(int64_t begin, int64_t end, float* out) const {
  if (w_.scaled_by_exponents()) {
    for (; begin < end; ++begin) *out++ = power_of_two(static_cast<uint32_t>(stored_[begin]));
    return;
  }
  if (!w_.double_quantized()) {
    std::memcpy(out, stored_ + begin * 4, static_cast<size_t>(end - begin) * 4);
    return;
  }
  while (begin < end) {
    const int64_t size = w_.nested_block_size, group = group_shift_ >= 0 ? begin >> group_shift_ : begin / size;
    const int64_t stop = std::min(end, (group + 1) * size);
    float factor;
    std::memcpy(&factor, nested_ + group * 4, sizeof factor);
#if defined(__x86_64__)
    constexpr int64_t kFewScales = 16;  // one after another is as fast
    if (by_planes_ && stop - begin > kFewScales) {
      four_bit_scales_avx512_vbmi(reinterpret_cast<const uint8_t*>(stored_) + begin, stop - begin, planes_.data(),
                                  factor, w_.nested_offset, out);
      out += stop - begin;
      begin = stop;
      continue;
    }
#endif
    for (; begin < stop; ++begin) {
      float value;
      std::memcpy(&value, map_ + static_cast<size_t>(stored_[begin]) * sizeof value, sizeof value);
      *out++ = value * factor + w_.nested_offset;
    }
  }
}

FourBitPanels::FourBitPanels(const WeightView& w, Isa level)
    : w_(w.four_bit),
      level_(level),
      expander_(four_bit_expander(level)),
      scales_(w_, level),
      planes_(w_.table),
      table_factor_(w.table_factor) {}

// The scale of every `part` elements of [begin, begin + count), where blocks hold whole parts.
void FourBitPanels::scales_of_parts(int64_t part, int64_t begin, int64_t count, float* out) const {
  const int shift = log2(w_.block_size);  // divisions would take longer than what they are for
  const int64_t first = begin >> shift, last = (begin + count - 1) >> shift;
  if (w_.block_size == part) return scales_.read(first, last + 1, out);
  float blocks[kFourBitDotsDepth / kLeastPart + 1];
  scales_.read(first, last + 1, blocks);
  for (int64_t i = 0; i < count; i += part) *out++ = blocks[((begin + i) >> shift) - first];
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
                    &planes_,
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

// W[row_begin:row_end, col_begin:col_end] with its scales, where blocks hold whole parts and there are no more than
// kStripScales.
std::optional<FourBitStripRows> FourBitPanels::strip_rows(int64_t part, int64_t row_begin, int64_t row_end,
                                                          int64_t col_begin, int64_t col_end, float* scales) const {
  const int64_t width = w_.in_features(), depth = col_end - col_begin, size = w_.block_size;
  if (w_.low_first || ((width | size | col_begin | depth) & (part - 1)) != 0) return std::nullopt;
  const int64_t rows = row_end - row_begin, row = row_begin + w_.first_row, parts = depth >> log2(part);
  if (rows * parts > kStripScales) return std::nullopt;
  if (size == part && depth == width) {  // one after another
    scales_.read(row * parts, (row + rows) * parts, scales);
  } else {
    for (int64_t r = 0; r < rows; ++r) {
      scales_of_parts(part, (row + r) * width + col_begin, depth, scales + r * parts);
    }
  }
  const auto* packed = reinterpret_cast<const uint8_t*>(w_.packed.raw());
  return FourBitStripRows{.rows = rows,
                          .depth = depth,
                          .packed = packed + (row * width + col_begin) / 2,
                          .row_bytes = width / 2,
                          .table = w_.table.data(),
                          .planes = &planes_,
                          .scales = scales,
                          .scale_stride = parts};
}

bool FourBitPanels::fill_strip(const FourBitStrips& strips, bool rounded, int64_t row_begin, int64_t row_end,
                               int64_t col_begin, int64_t col_end, std::byte* strip) const {
  if (strips.fill == nullptr) return false;
  float scales[kStripScales];
  const auto rows = strip_rows(strips.part, row_begin, row_end, col_begin, col_end, scales);
  if (rows) strips.fill(*rows, rounded, strip);
  return rows.has_value();
}

bool FourBitPanels::fill_depths(const FourBitStrips& strips, int64_t row_begin, int64_t row_end, int64_t col_begin,
                                int64_t col_end, std::byte* strip, int64_t strip_bytes) const {
  if (strips.fill_depths == nullptr) return false;
  float scales[kStripScales];
  const auto rows = strip_rows(strips.part, row_begin, row_end, col_begin, col_end, scales);
  if (rows) strips.fill_depths(*rows, strip, strip_bytes);
  return rows.has_value();
}

// reorder(k, count): x from element k on, for product(rows, sums), whose sums are multiplied by `factor`.
template <typename Reorder, typename Product>
void FourBitPanels::sum_rows(int64_t row_begin, int64_t row_end, float factor, float* y, const Reorder& reorder,
                             const Product& product) const {
  constexpr int64_t kParts = kFourBitDotsDepth / kDotsPart;
  const int64_t depth = w_.in_features(), size = w_.block_size;
  const auto* packed = reinterpret_cast<const uint8_t*>(w_.packed.raw());
  alignas(64) float parts[kFourBitDotsRows * kParts];
  float sums[kFourBitDotsRows];
  std::fill(y, y + (row_end - row_begin), 0.0f);
  row_begin += w_.first_row;
  row_end += w_.first_row;
  for (int64_t k = 0; k < depth; k += kFourBitDotsDepth) {
    const int64_t count = std::min(kFourBitDotsDepth, depth - k);
    reorder(k, count);
    for (int64_t row = row_begin; row < row_end; row += kFourBitDotsRows) {
      const int64_t rows = std::min(kFourBitDotsRows, row_end - row), begin = row * depth + k;
      int64_t stride = kParts;
      if (size == kDotsPart && count == depth) {  // one after another
        stride = depth / kDotsPart;
        scales_.read(row * stride, (row + rows) * stride, parts);
      } else {
        for (int64_t r = 0; r < rows; ++r) scales_of_parts(kDotsPart, begin + r * depth, count, parts + r * stride);
      }
      product(FourBitDotsRows{rows, count, packed + begin / 2, depth / 2, parts, stride}, sums);
      for (int64_t r = 0; r < rows; ++r) y[row - row_begin + r] += sums[r] * factor;
    }
  }
}

template <typename X>
bool FourBitPanels::dots(int64_t row_begin, int64_t row_end, const X* x, float* y) const {
  const bool whole_parts = w_.in_features() % kDotsPart == 0 && w_.block_size % kDotsPart == 0;
  if (!four_bit_dots(level_) || !whole_parts || w_.low_first) return false;
  const auto in_f32 = [&](const FourBitPlanes& planes, float factor) {
    alignas(64) float reordered[kFourBitDotsDepth];
    sum_rows(
        row_begin, row_end, factor, y,
        [&](int64_t k, int64_t count) { four_bit_dots_reorder_avx2(x + k, count, reordered); },
        [&](const FourBitDotsRows& rows, float* sums) { four_bit_dots_avx2(rows, planes, reordered, sums); });
  };
  if constexpr (std::is_same_v<X, float>) {
    in_f32(planes_, 1);
  } else {
    const FourBitDotsTable table = four_bit_dots_table(w_.table, table_factor_);
    if (!four_bit_dots_bf16(level_)) {
      std::array<float, 16> values;
      for (size_t code = 0; code < values.size(); ++code) values[code] = static_cast<float>(table.values[code]);
      in_f32(FourBitPlanes(values), table.inverse);
      return true;
    }
    alignas(64) bf16 reordered[kFourBitDotsDepth];
    sum_rows(
        row_begin, row_end, table.inverse, y,
        [&](int64_t k, int64_t count) { four_bit_dots_reorder(x + k, count, reordered); },
        [&](const FourBitDotsRows& rows, float* sums) { four_bit_dots_avx512_bf16(rows, table, reordered, sums); });
  }
  return true;
}

template bool FourBitPanels::dots(int64_t, int64_t, const float*, float*) const;
template bool FourBitPanels::dots(int64_t, int64_t, const bf16*, float*) const;

}  // namespace nibble::ops::cpu
