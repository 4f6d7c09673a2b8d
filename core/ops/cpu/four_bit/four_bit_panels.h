#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "nibble/core/ops/cpu/four_bit/four_bit_dots.h"
#include "nibble/core/ops/cpu/four_bit/four_bit_expand.h"
#include "nibble/core/ops/cpu/four_bit/four_bit_strip.h"
#include "nibble/core/ops/weight_view.h"

namespace nibble::ops::cpu {

/// Whether `level` multiplies a vector by codes (four_bit_dots.h), and whether with bf16 instructions.
#if defined(__x86_64__)
constexpr bool four_bit_dots(Isa level) { return level >= Isa::avx2; }
constexpr bool four_bit_dots_bf16(Isa level) { return level >= Isa::avx512_bf16; }
#else
constexpr bool four_bit_dots(Isa) { return false; }
constexpr bool four_bit_dots_bf16(Isa) { return false; }
#endif

/// The scales of a 4-bit matrix as they are stored, mapped or not: double quantization is undone each time a scale is
/// used, which costs a few operations per block.
class FourBitScales {
 public:
  /// w must outlive it. level: which kernel to use; not above isa().
  FourBitScales(const FourBitMatrix& w, Isa level);
  /// absmax of the blocks [begin, end).
  void read(int64_t begin, int64_t end, float* out) const;

 private:
  const FourBitMatrix& w_;
  // Where they lie, perhaps unaligned: scales, exponents or codes; of codes also the scales of groups and the map.
  const std::byte *stored_, *nested_ = nullptr, *map_ = nullptr;
  int group_shift_ = -1;  // log2 of the blocks of a group, if they are a power of two
  bool by_planes_ = false;
  std::array<uint8_t, 1024> planes_;  // the map by bytes, for four_bit_scales_avx512_vbmi
};

/// The pieces of a 4-bit matrix that a product asks for, see WeightPanels, expanded from the packed bytes and scales.
class FourBitPanels {
 public:
  /// w, with 4 bits, must outlive it.
  FourBitPanels(const WeightView& w, Isa level);

  template <typename Out>
  void fill(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, Out* out, int64_t stride) const;
  /// Rows as columns of a strip, see WeightPanels.
  bool fill_strip(const FourBitStrips& strips, bool rounded, int64_t row_begin, int64_t row_end, int64_t col_begin,
                  int64_t col_end, std::byte* strip) const;
  /// Rows as depths of strips that are strip_bytes apart, see WeightPanels.
  bool fill_depths(const FourBitStrips& strips, int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end,
                   std::byte* strip, int64_t strip_bytes) const;
  /// Where blocks do not cross row ends, at levels with four_bit_dots(). X: f32 or bf16.
  template <typename X>
  bool dots(int64_t row_begin, int64_t row_end, const X* x, float* y) const;

 private:
  static constexpr int64_t kStripScales = 2048;
  void scales_of_parts(int64_t part, int64_t begin, int64_t count, float* out) const;
  std::optional<FourBitStripRows> strip_rows(int64_t part, int64_t row_begin, int64_t row_end, int64_t col_begin,
                                             int64_t col_end, float* scales) const;
  template <typename Reorder, typename Product>
  void sum_rows(int64_t row_begin, int64_t row_end, float factor, float* y, const Reorder& reorder,
                const Product& product) const;

  const FourBitMatrix& w_;
  Isa level_;
  const FourBitExpander& expander_;
  FourBitScales scales_;
  FourBitPlanes planes_;
  float table_factor_;
};

}  // namespace nibble::ops::cpu
