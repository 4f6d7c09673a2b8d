#include "nibble/core/ops/cpu/gemm/panel_packer.h"

#include <algorithm>

namespace nibble::ops::cpu {

namespace {

// Rows and columns of W that are filled and packed at once. A register's 16 rows x 512 are at most 32 KB, what the
// first cache level holds; 32 rows of a panel's columns, at most 512, are 64 KB and stay in the second.
constexpr int64_t kFillDepth = 512, kFillRows = 32;

}  // namespace

void PanelPacker::pack_transposed(Range k, Range n) const {
  for (int64_t n0 = n.begin; n0 < n.end; n0 += kernel_.lanes) {
    const int64_t column = n0 - n.begin;
    std::byte* lanes =
        panel_ + column / kernel_.width * strip_bytes(k.size()) + column % kernel_.width * kernel_.depth_step * size_;
    const int64_t count = std::min(kernel_.lanes, n.end - n0);
    if (w_.fill_strip(kernel_.four_bit, input_ == DType::bf16, n0, n0 + count, k.begin, k.end, lanes)) continue;
    for (int64_t k0 = k.begin; k0 < k.end; k0 += kFillDepth) {
      const Range depth{k0, std::min(k.end, k0 + kFillDepth)};
      const auto [from, stride] = fetch({n0, n0 + count}, depth);
      pack_transposed_(from, stride, count, depth.size(), lanes + (k0 - k.begin) * kernel_.width * size_);
    }
  }
}

void PanelPacker::pack_rows(Range k, Range n) const {
  for (int64_t k0 = k.begin; k0 < k.end; k0 += kFillRows) {
    const Range depth{k0, std::min(k.end, k0 + kFillRows)};
    std::byte* strip = panel_ + (k0 - k.begin) * kernel_.width * size_;
    const int64_t next = strip_bytes(k.size());
    if (w_.fill_depths(kernel_.four_bit, depth.begin, depth.end, n.begin, n.end, strip, next)) continue;
    const auto [from, stride] = fetch(depth, n);
    for (int64_t n0 = n.begin; n0 < n.end; n0 += kernel_.width, strip += next) {
      pack_rows_(from + (n0 - n.begin) * in_place_size_, stride, std::min(kernel_.width, n.end - n0), depth.size(),
                 strip);
    }
  }
}

PanelPacker::Piece PanelPacker::fetch(Range rows, Range cols) const {
  if (in_place_ != nullptr) return {in_place_ + (rows.begin * w_.cols() + cols.begin) * in_place_size_, w_.cols()};
  const int64_t stride = cols.size();
  auto* floats = reinterpret_cast<float*>(scratch_);
  if (input_ == DType::f32 || (kernel_.compute == DType::f32 && w_.in_place(DType::bf16) != nullptr)) {
    w_.fill(rows.begin, rows.end, cols.begin, cols.end, floats, stride);
  } else if (kernel_.compute == DType::bf16) {
    w_.fill(rows.begin, rows.end, cols.begin, cols.end, reinterpret_cast<bf16*>(scratch_), stride);
  } else {
    // Rounded to bf16 behind what it is widened into.
    const int64_t count = rows.size() * stride;
    auto* narrow = reinterpret_cast<bf16*>(floats + count);
    w_.fill(rows.begin, rows.end, cols.begin, cols.end, narrow, stride);
    widen(narrow, count, floats, w_.level());
  }
  return {scratch_, stride};
}

}  // namespace nibble::ops::cpu
