#include "nibble/core/ops/cpu/int8/int8_panels.h"

#include <algorithm>
#include <array>

#include "nibble/core/ops/cpu/int8/int8_codes.h"
#include "nibble/core/ops/cpu/stored_weight.h"

namespace nibble::ops::cpu {

namespace {

// Columns of W that are rounded at once where its rows become columns of strips: 16 rows of f32 are 32 KB.
constexpr int64_t kFillDepth = 512;
// Blocks have at least 32 elements.
constexpr int64_t kSmallestBlock = 32;
// Most columns of a panel.
constexpr int64_t kMostColumns = 128;
constexpr int64_t kMostBlocks = std::max(kFillDepth, kMostColumns) / kSmallestBlock + 1;

}  // namespace

struct Int8Panels::Output {
  std::byte* panel;
  float* scales;
  int64_t stride;
  std::byte* scratch;
};

Int8Panels::Int8Panels(const WeightView& w, bool transposed, const Int8Kernel& kernel, Isa level)
    : w_(w), transposed_(transposed), kernel_(kernel), panels_(w, level) {
  NIBBLE_CHECK(kernel.panel_columns <= kMostColumns, "panel of the kernel");
  if (w.encoding != WeightEncoding::four_bit || w.cols() % w.four_bit.block_size != 0 || w.four_bit.low_first) return;
  scales_.emplace(w.four_bit, level);
  largest_of_table_ = int8_largest(w.four_bit.table.data(), std::ssize(w.four_bit.table));
}

void Int8Panels::fill(Range k, Range n, std::byte* panel, float* scales, int64_t stride, std::byte* scratch) const {
  const Output out{panel, scales, stride, scratch};
  transposed_ ? fill_transposed(k, n, out) : fill_rows(k, n, out);
}

void Int8Panels::row_codes(int64_t row, Range col, const Output& out, float* scales, uint8_t* codes) const {
  const FourBitMatrix& m = w_.four_bit;
  const int64_t first = (m.first_row + row) * w_.cols(), size = m.block_size, block = (first + col.begin) / size;
  std::array<float, kMostBlocks> blocks;
  scales_->read(block, (first + col.end - 1) / size + 1, blocks.data());
  for (int64_t begin = col.begin; begin < col.end; begin += kInt8Group, scales += out.stride) {
    const int64_t end = std::min(col.end, begin + kInt8Group);
    const auto scale_at = [&](int64_t at) { return blocks[static_cast<size_t>((first + at) / size - block)]; };
    float largest = 0;
    for (int64_t at = begin; at < end; at = (at / size + 1) * size) {
      largest = int8_larger(largest, largest_of_table_ * scale_at(at));
    }
    const Int8Scale by(largest, kernel_.levels);
    *scales = by.scale;
    for (int64_t at = begin; at < end;) {
      const int64_t stop = std::min(end, (at / size + 1) * size);
      kernel_.expand({.packed = reinterpret_cast<const uint8_t*>(m.packed.raw()),
                      .begin = first + at,
                      .count = stop - at,
                      .table = m.table.data(),
                      .scale = scale_at(at),
                      .inverse = by.inverse},
                     codes + (at - col.begin));
      at = stop;
    }
  }
}

// W [N, K]: rows of W become columns of strips, a register's worth at a time.
void Int8Panels::fill_transposed(Range k, Range n, const Output& out) const {
  auto* codes = reinterpret_cast<uint8_t*>(out.scratch);
  auto* floats = reinterpret_cast<float*>(out.scratch + kernel_.lanes * kFillDepth);
  for (int64_t n0 = n.begin; n0 < n.end; n0 += kernel_.lanes) {
    const int64_t column = n0 - n.begin, count = std::min(kernel_.lanes, n.end - n0);
    std::byte* lanes =
        out.panel + column / kernel_.width * strip_bytes(k.size()) + column % kernel_.width * kernel_.step;
    for (int64_t k0 = k.begin; k0 < k.end; k0 += kFillDepth) {
      const Range depth{k0, std::min(k.end, k0 + kFillDepth)};
      float* scales = out.scales + (k0 - k.begin) / kInt8Group * out.stride + column;
      if (!scales_) panels_.fill(n0, n0 + count, depth.begin, depth.end, floats, depth.size());
      for (int64_t i = 0; i < count; ++i) {
        if (scales_) {
          row_codes(n0 + i, depth, out, scales + i, codes + i * kFillDepth);
          continue;
        }
        for (int64_t at = 0, g = 0; at < depth.size(); at += kInt8Group, ++g) {
          const int64_t size = std::min(kInt8Group, depth.size() - at);
          const float* values = floats + i * depth.size() + at;
          const Int8Scale by(int8_largest(values, size), kernel_.levels);
          scales[g * out.stride + i] = by.scale;
          std::array<float, kInt8Group> inverses;
          inverses.fill(by.inverse);
          int8_codes(values, inverses.data(), size, static_cast<int32_t>(kernel_.bias), codes + i * kFillDepth + at);
        }
      }
      kernel_.pack_transposed(out.scratch, kFillDepth, count, depth.size(), lanes + (k0 - k.begin) * kernel_.width);
    }
  }
}

// W [K, N]: rows of W are depths, and a group of them has one scale for a column.
void Int8Panels::fill_rows(Range k, Range n, const Output& out) const {
  const FourBitMatrix& m = w_.four_bit;
  const int64_t columns = n.size(), size = m.block_size;
  auto* codes = reinterpret_cast<uint8_t*>(out.scratch);
  auto* floats = reinterpret_cast<float*>(out.scratch + kInt8Group * kMostColumns);
  const int64_t blocks = scales_ ? (n.end - 1) / size - n.begin / size + 1 : 0;
  const StoredWeight next = stored(w_);
  for (int64_t k0 = k.begin; k0 < k.end; k0 += kInt8Group) {
    const int64_t depth = std::min(kInt8Group, k.end - k0), count = scales_ ? blocks : columns;
    float* scales = out.scales + (k0 - k.begin) / kInt8Group * out.stride;
    // Of blocks the scales [depth, blocks], of other weights the values [depth, columns].
    if (scales_) {
      for (int64_t i = 0; i < depth; ++i) {
        fetch_next(next, k0 + i, kInt8Group, n.begin, n.end);
        const int64_t first = ((m.first_row + k0 + i) * w_.cols() + n.begin) / size;
        scales_->read(first, first + blocks, floats + i * blocks);
      }
    } else {
      panels_.fill(k0, k0 + depth, n.begin, n.end, floats, columns);
    }
    std::array<float, kMostColumns> largest{}, inverses;
    for (int64_t i = 0; i < depth; ++i) {
      if (!scales_) {
        int8_keep_larger(floats + i * count, count, largest.data());
        continue;
      }
      for (int64_t j = 0; j < count; ++j) {  // a few blocks
        float& most = largest[static_cast<size_t>(j)];
        most = int8_larger(most, floats[i * count + j]);
      }
    }
    for (size_t j = 0; j < static_cast<size_t>(count); ++j) {
      const Int8Scale by(scales_ ? largest_of_table_ * largest[j] : largest[j], kernel_.levels);
      largest[j] = by.scale;
      inverses[j] = by.inverse;
    }
    for (int64_t i = 0; i < depth; ++i) {
      if (!scales_) {
        int8_codes(floats + i * count, inverses.data(), count, static_cast<int32_t>(kernel_.bias), codes + i * columns);
        continue;
      }
      const int64_t first = (m.first_row + k0 + i) * w_.cols();
      for (int64_t at = n.begin, j = 0; at < n.end; ++j) {
        const int64_t stop = std::min(n.end, (at / size + 1) * size);
        kernel_.expand({.packed = reinterpret_cast<const uint8_t*>(m.packed.raw()),
                        .begin = first + at,
                        .count = stop - at,
                        .table = m.table.data(),
                        .scale = floats[i * blocks + j],
                        .inverse = inverses[static_cast<size_t>(j)]},
                       codes + i * columns + (at - n.begin));
        at = stop;
      }
    }
    for (int64_t c = 0; c < columns; ++c) {
      scales[c] = largest[static_cast<size_t>(scales_ ? (n.begin + c) / size - n.begin / size : c)];
    }
    for (int64_t n0 = 0; n0 < columns; n0 += kernel_.width) {
      kernel_.pack_rows(out.scratch + n0, columns, std::min(kernel_.width, columns - n0), depth,
                        out.panel + n0 / kernel_.width * strip_bytes(k.size()) + (k0 - k.begin) * kernel_.width);
    }
  }
}

}  // namespace nibble::ops::cpu
