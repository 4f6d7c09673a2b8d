// Small products and copies of attention tiles, in local buffers of 32-bit words with rows padded to whole vectors, or
// in strips of columns (Right). A word is one f32 (Singles), or two neighbouring bf16 of the summed dimension where the
// CPU multiplies bf16 (Pairs), or multiplies 16 x 16 words at a time (PairTiles). Compiled once per instruction set;
// include after hwy/foreach_target.h.

#if defined(NIBBLE_CORE_OPS_CPU_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_CORE_OPS_CPU_ATTENTION_TILE_INL_H_
#undef NIBBLE_CORE_OPS_CPU_ATTENTION_TILE_INL_H_
#else
#define NIBBLE_CORE_OPS_CPU_ATTENTION_TILE_INL_H_
#endif

#include <algorithm>
#include <array>

#include <hwy/cache_control.h>
#include "nibble/core/ops/cpu/attention/attention_plan.h"
#include "nibble/core/ops/cpu/gemm/bf16_products.h"
#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"
#include "nibble/core/ops/cpu/simd-inl.h"
#if defined(__x86_64__)
#include "nibble/core/ops/cpu/x86/amx.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

/// What happens to the result that is already there.
enum class Start { replace, add, rescale_and_add };

/// Vectors of sums that a panel of rows holds in registers, and the columns in them.
constexpr int kPanelVectors = HWY_TARGET == HWY_AVX3 ? 4 : 2;
constexpr int64_t kStrip = kPanelVectors * kLanes;
static_assert(kKeys % kStrip == 0);

/// Words of f32: any element type, converted.
struct Singles {
  static constexpr int64_t kPerWord = 1;
  static constexpr bool kTiles = false;
  /// Rows whose weights are computed at a time, and rows whose scores are, as they come from one panel of multiply().
  static constexpr int64_t kRows = 24, kPanelRows = 6;
  static constexpr void (*release)() = nullptr;  ///< see cpu::KernelUse
  /// 2^x of x < 127 within 2e-7; 2^-inf = 0.
  template <size_t n>
  static HWY_INLINE void power(V (&x)[n]) {
    V to_whole[n], fraction[n], p[n];
    for (size_t i = 0; i < n; ++i) {
      x[i] = at_least(-127.0f, x[i]);
      to_whole[i] = hn::Add(x[i], splat(kToWhole));
      fraction[i] = hn::Sub(x[i], hn::Sub(to_whole[i], splat(kToWhole)));
    }
    polynomial({0.00132647273f, 0.00967151299f, 0.0555073358f, 0.240222424f, 0.693147004f, 1.0f}, fraction, p);
    for (size_t i = 0; i < n; ++i) x[i] = hn::Mul(p[i], power_of_two(to_whole[i]));
  }
  static HWY_INLINE V multiply_add(V left, V right, V sum) { return hn::MulAdd(left, right, sum); }
  /// Row of f32 values in place.
  static HWY_INLINE void store_row(V values, float* row, int64_t i) { hn::Store(values, kF, row + i); }
  /// A vector of two neighbouring rows, `stride` words apart, as left side of a product that sums over columns; and
  /// as right side of one that sums over rows in `strip`, if not null.
  static HWY_INLINE void store_two_rows(V even, V odd, float* row, int64_t stride, float* strip) {
    hn::Store(even, kF, row);
    hn::Store(odd, kF, row + stride);
    if (strip == nullptr) return;
    hn::Store(even, kF, strip);
    hn::Store(odd, kF, strip + kStrip);
  }
};

#if HWY_TARGET == HWY_AVX3
inline bool multiplies_pairs() { return isa() >= Isa::avx512_bf16 && bf16_products() == Bf16Products::bf16; }

/// Words of two bf16, for the instructions of AVX512_BF16 (if multiplies_pairs()). As assembly, because GCC
/// would want the target attribute on every function that the intrinsic is inlined into.
struct Pairs {
  static constexpr int64_t kPerWord = 2;
  static constexpr bool kTiles = false;
  static constexpr int64_t kRows = Singles::kRows, kPanelRows = Singles::kPanelRows;
  static constexpr void (*release)() = nullptr;
  /// As that of Singles, of any x; the instructions round down and scale.
  template <size_t n>
  static HWY_INLINE void power(V (&x)[n]) {
    V fraction[n], p[n];
    for (size_t i = 0; i < n; ++i) {
      fraction[i] = V{_mm512_reduce_ps(x[i].raw, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
    }
    polynomial({0.00187757658f, 0.00898934063f, 0.0558263175f, 0.240153611f, 0.693153083f, 0.99999994f}, fraction, p);
    for (size_t i = 0; i < n; ++i) x[i] = V{_mm512_scalef_ps(p[i].raw, x[i].raw)};
  }
  static HWY_INLINE V multiply_add(V left, V right, V sum) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(left.raw), "v"(right.raw));
    return sum;
  }
  /// Row of bf16 values over the f32 values it comes from: value i of the row is written after value i has been read.
  static HWY_INLINE void store_row(V values, float* row, int64_t i) {
    __m256i halves;
    asm("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(values.raw));
    std::memcpy(reinterpret_cast<std::byte*>(row) + 2 * i, &halves, sizeof(halves));
  }
  static HWY_INLINE void store_two_rows(V even, V odd, float* row, int64_t stride, float* strip) {
    alignas(64) static constexpr auto kOrder = [] {
      std::array<uint16_t, 32> result{};
      for (uint16_t k = 0; k < 32; ++k) result[k] = static_cast<uint16_t>(k / 2 + k % 2 * 16);
      return result;
    }();
    __m512i both;  // 16 of `even`, then 16 of `odd`
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(even.raw), "v"(odd.raw));
    _mm256_store_si256(reinterpret_cast<__m256i*>(row), _mm512_castsi512_si256(both));
    _mm256_store_si256(reinterpret_cast<__m256i*>(row + stride), _mm512_extracti64x4_epi64(both, 1));
    if (strip != nullptr) _mm512_store_si512(strip, _mm512_permutexvar_epi16(_mm512_load_si512(kOrder.data()), both));
  }
};

inline bool multiplies_tiles() { return isa() == Isa::amx && multiplies_pairs(); }

/// The same words for the tiles of AMX (if multiplies_tiles()): a left side's rows are rows of a tile, those of a right
/// side too. What is behind a side's end is zero, up to whole tiles.
struct PairTiles : Pairs {
  static constexpr bool kTiles = true;
  static constexpr int64_t kRows = 2 * amx::kTileRows, kPanelRows = kRows;
  static constexpr void (*release)() = amx::release;
};
#endif

/// Words and rows that multiply() takes are a multiple of this.
template <typename Words>
constexpr int64_t kTogether = Words::kTiles ? 16 : 1;

/// Numbers in a row are padded to a multiple of this.
template <typename Words>
constexpr int64_t kPadding = std::max(kLanes, kTogether<Words>* Words::kPerWord);

constexpr int64_t rounded_up(int64_t count, int64_t of) { return (count + of - 1) / of * of; }

/// Words that `count` numbers take.
template <typename Words>
constexpr int64_t words(int64_t count) {
  return rounded_up(count, kTogether<Words> * Words::kPerWord) / Words::kPerWord;
}

/// Rows of a product, of which `real` count: whole tiles, or at least 4 and an even number.
template <typename Words>
constexpr int64_t multiplied_rows(int64_t real) {
  if (Words::kTiles) return rounded_up(real, kTogether<Words>);
  return real == 0 ? 0 : std::max<int64_t>(4, rounded_up(real, 2));
}

/// Word (i, k) is data[i * row + k * step].
struct Left {
  const float* data;
  int64_t row, step;
};

/// [rows, columns] from row `first` on, in strips of kStrip columns whose rows follow each other: what panels read
/// again and again are neighbouring lines, spread evenly over the sets of a cache. The last strip may be narrower.
struct Right {
  const float* data;
  int64_t rows, columns, first = 0;

  int64_t width(int64_t column) const { return std::min(kStrip, columns - column); }
  const float* strip(int64_t column) const { return data + column * rows + first * width(column); }
};

/// then(sums) with sums [rows, vectors] = a b over `depth` words. They stay in registers: 6 x 4 of AVX-512's 32, 6 x 2
/// of AVX2's 16, which hides the latency of the multiply-add (4 cycles, 2 a cycle) and reads b once for 6 rows.
template <typename Words, int rows, int vectors, typename Then>
HWY_INLINE void multiply_panel(Left a, const float* HWY_RESTRICT b, int64_t b_stride, int64_t depth, const Then& then) {
  V sums[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[r][v] = hn::Zero(kF);
  }
  for (int64_t k = 0; k < depth; ++k) {
    V right[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) right[v] = hn::Load(kF, b + k * b_stride + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const V left = splat(a.data[r * a.row + k * a.step]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[r][v] = Words::multiply_add(left, right[v], sums[r][v]);
    }
  }
  then(sums);
}

/// The same with sums that a product has left in memory, rows `stride` apart.
template <int rows, int vectors, typename Then>
HWY_INLINE void load_panel(const float* from, int64_t stride, const Then& then) {
  V sums[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[r][v] = hn::Load(kF, from + r * stride + v * kLanes);
  }
  then(sums);
}

/// c [rows, vectors] (+)= a b over `depth` words.
template <typename Words, Start start, int rows, int vectors>
HWY_INLINE void multiply_panel(Left a, const float* b, int64_t b_stride, int64_t depth, float* HWY_RESTRICT c,
                               int64_t c_stride, const float* keep) {
  multiply_panel<Words, rows, vectors>(a, b, b_stride, depth, [=](V(&sums)[rows][vectors]) HWY_ATTR {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) {
        float* at = c + r * c_stride + v * kLanes;
        if constexpr (start == Start::add) sums[r][v] = hn::Add(sums[r][v], hn::Load(kF, at));
        if constexpr (start == Start::rescale_and_add)
          sums[r][v] = hn::MulAdd(splat(keep[r]), hn::Load(kF, at), sums[r][v]);
        hn::Store(sums[r][v], kF, at);
      }
    }
  });
}

template <typename Words, Start start, int vectors>
void multiply_columns(Left a, const float* b, int64_t b_stride, int64_t rows, int64_t depth, float* c, int64_t c_stride,
                      const float* keep) {
  int64_t r = 0;
  const auto at = [&](int64_t row) { return Left{a.data + row * a.row, a.row, a.step}; };
  const auto keep_at = [&](int64_t row) { return keep == nullptr ? nullptr : keep + row; };
  for (; rows - r >= 6 && rows - r != 8; r += 6) {
    multiply_panel<Words, start, 6, vectors>(at(r), b, b_stride, depth, c + r * c_stride, c_stride, keep_at(r));
  }
  for (; r < rows; r += 4) {
    multiply_panel<Words, start, 4, vectors>(at(r), b, b_stride, depth, c + r * c_stride, c_stride, keep_at(r));
  }
}

#if HWY_TARGET == HWY_AVX3
template <Start start>
void multiply_tiles(Left a, const float* b, int64_t b_stride, int64_t rows, int64_t columns, int64_t depth, float* c,
                    int64_t c_stride, const float* keep) {
  constexpr int64_t kSize = sizeof(float);
  for (int64_t r = 0; start == Start::rescale_and_add && r < rows; ++r) {
    float* at = c + r * c_stride;
    for (int64_t i = 0; i < columns; i += kLanes) store(hn::Mul(splat(keep[r]), load(at + i)), at + i);
  }
  for (int64_t r = 0; r < rows; r += amx::kRows) {
    for (int64_t i = 0; i < columns;) {
      const amx::Block block(std::min(amx::kRows, rows - r), columns - i);
      float* to = c + r * c_stride + i;
      block.each([=]<int kSum>(int64_t row, int64_t column) {
        if constexpr (start == Start::replace) {
          amx::zero<kSum>();
        } else {
          amx::load<kSum>(to + row * c_stride + column, c_stride * kSize);
        }
      });
      block.template multiply<amx::Bf16>(a.data + r * a.row, a.row * kSize, b + i, b_stride * kSize,
                                         depth / amx::kTileRows);
      block.each([=]<int kSum>(int64_t row, int64_t column) {
        amx::store<kSum>(to + row * c_stride + column, c_stride * kSize);
      });
      i += block.width();
    }
  }
}
#endif

/// c [rows, columns] f32 (+)= a [rows, depth] b [depth, columns], depth in words. rows even and at least 4, columns
/// whole vectors, of which b may have more; of PairTiles whole tiles, and a's step is 1. keep [rows] multiplies what is
/// in c (Start::rescale_and_add).
template <typename Words, Start start>
void multiply(Left a, const Right& b, int64_t rows, int64_t columns, int64_t depth, float* c, int64_t c_stride,
              const float* keep = nullptr) {
  for (int64_t column = 0; column < columns; column += kStrip, c += kStrip) {
    const int64_t count = std::min(kStrip, columns - column);
#if HWY_TARGET == HWY_AVX3
    if constexpr (Words::kTiles) {
      multiply_tiles<start>(a, b.strip(column), b.width(column), rows, count, depth, c, c_stride, keep);
      continue;
    }
#endif
    const auto multiply_rows = [&](auto by) HWY_ATTR {
      by(a, b.strip(column), b.width(column), rows, depth, c, c_stride, keep);
    };
    if (count == kStrip) multiply_rows(multiply_columns<Words, start, kPanelVectors>);
    if (count == kLanes) multiply_rows(multiply_columns<Words, start, 1>);
    if constexpr (kPanelVectors == 4) {
      if (count == 2 * kLanes) multiply_rows(multiply_columns<Words, start, 2>);
      if (count == 3 * kLanes) multiply_rows(multiply_columns<Words, start, 3>);
    }
  }
}

/// Words between rows that copy_rows makes.
template <typename Words>
int64_t row_words(const AttentionPlan& plan) {
  return words<Words>(plan.padded);
}

/// Asks for rows of `width` elements, in the order in which they lie in memory: what comes between them is too much for
/// the hardware to fetch them ahead.
template <typename Element>
void fetch_rows(const Element* from, int64_t stride, int64_t rows, int64_t width) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(Element));
  for (int64_t r = 0; r < rows; ++r, from += stride) {
    for (int64_t i = 0; i < width; i += kLine) hwy::Prefetch(from + i);
  }
}

/// to [rows, row_words] = rows of from, `stride` elements apart; zeros behind `width`.
template <typename Words, typename Element>
void copy_rows(const Element* from, int64_t stride, int64_t rows, const AttentionPlan& plan, float* to) {
  for (int64_t r = 0; r < rows; ++r, from += stride, to += row_words<Words>(plan)) {
    if constexpr (Words::kPerWord == 2) {
      auto* row = reinterpret_cast<Element*>(to);
      int64_t i = 0;
      for (; i + 2 * kLanes <= plan.width; i += 2 * kLanes) {
        hn::StoreU(hn::LoadU(kF, reinterpret_cast<const float*>(from + i)), kF, to + i / 2);
      }
      for (; i < plan.width; ++i) row[i] = from[i];
      for (; i < plan.padded; ++i) row[i] = Element(0.0f);
    } else {
      for_lanes(plan.width, [&](int64_t i, auto lanes) HWY_ATTR { hn::Store(load(from + i, lanes), kF, to + i); });
    }
  }
}

/// Rows of Singles as rows [first, first + count) of a right side [rows, plan.padded] of a product that sums over them.
template <typename Element>
void copy_to_strips(const Element* from, int64_t stride, int64_t count, const AttentionPlan& plan, float* to,
                    int64_t rows, int64_t first) {
  for (int64_t column = 0; column < plan.padded; column += kStrip) {
    const int64_t width = std::min(kStrip, plan.padded - column), real = std::min(width, plan.width - column);
    float* row = to + column * rows + first * width;
    for (int64_t r = 0; r < count; ++r, row += width) {
      for_lanes(real, [&](int64_t i, auto lanes)
                          HWY_ATTR { hn::Store(load(from + r * stride + column + i, lanes), kF, row + i); });
    }
  }
}

/// to [words<Words>(count), width] = two rows of copy_rows to a word, `width` columns from `column` on; zeros up to
/// whole tiles.
template <typename Words>
void interleave_rows(const float* rows, int64_t count, const AttentionPlan& plan, int64_t column, int64_t width,
                     float* to) {
  std::fill(to + (count + 1) / 2 * width, to + words<Words>(count) * width, 0.0f);
  for (int64_t r = 0; r < count; r += 2, to += width) {
    const uint16_t* even = reinterpret_cast<const uint16_t*>(rows + r * row_words<Words>(plan)) + column;
    const uint16_t* odd = even + plan.padded;
    for (int64_t i = 0; i < width; i += kLanes) {
      const auto low = hn::PromoteTo(kWords, hn::LoadU(kHalves, even + i));
      const auto high = r + 1 < count ? hn::PromoteTo(kWords, hn::LoadU(kHalves, odd + i)) : hn::Zero(kWords);
      hn::Store(hn::BitCast(kF, hn::Or(low, hn::ShiftLeft<16>(high))), kF, to + i);
    }
  }
}

/// `count` rows of copy_rows as rows of words from `first` on of a right side [all, plan.padded] of a product that sums
/// over them.
template <typename Words>
void sum_over_rows(const float* rows, int64_t count, const AttentionPlan& plan, float* to, int64_t all, int64_t first) {
  if constexpr (Words::kPerWord == 1) {
    copy_to_strips(rows, plan.padded, count, plan, to, all, first);
  } else {
    for (int64_t column = 0; column < plan.padded; column += kStrip) {
      const int64_t width = std::min(kStrip, plan.padded - column);
      interleave_rows<Words>(rows, count, plan, column, width, to + column * all + first * width);
    }
  }
}

/// to [columns, rows], rows `to_stride` words apart, = transpose of the words [rows, columns] of rows that are `stride`
/// words apart. Works on four columns at a time, so up to three more rows of `to` are written.
HWY_INLINE void transpose(const float* from, int64_t rows, int64_t stride, int64_t columns, float* to,
                          int64_t to_stride) {
#if HWY_TARGET == HWY_SCALAR
  const int64_t fours = 0;
#else
  const int64_t fours = rows / 4 * 4;
  const hn::CappedTag<float, 4> four;
  const hn::CappedTag<double, 2> two;
  const auto wide = [=](auto v) HWY_ATTR { return hn::BitCast(two, v); };
  for (int64_t r = 0; r < fours; r += 4) {
    for (int64_t i = 0; i < columns; i += 4) {
      const float* at = from + r * stride + i;
      const auto a = hn::Load(four, at), b = hn::Load(four, at + stride);
      const auto c = hn::Load(four, at + 2 * stride), d = hn::Load(four, at + 3 * stride);
      const auto ab = wide(hn::InterleaveLower(four, a, b)), cd = wide(hn::InterleaveLower(four, c, d));
      const auto ab_high = wide(hn::InterleaveUpper(four, a, b)), cd_high = wide(hn::InterleaveUpper(four, c, d));
      float* out = to + i * to_stride + r;
      hn::Store(hn::BitCast(four, hn::InterleaveLower(two, ab, cd)), four, out);
      hn::Store(hn::BitCast(four, hn::InterleaveUpper(two, ab, cd)), four, out + to_stride);
      hn::Store(hn::BitCast(four, hn::InterleaveLower(two, ab_high, cd_high)), four, out + 2 * to_stride);
      hn::Store(hn::BitCast(four, hn::InterleaveUpper(two, ab_high, cd_high)), four, out + 3 * to_stride);
    }
  }
#endif
  for (int64_t r = fours; r < rows; ++r) {
    for (int64_t i = 0; i < columns; ++i) to[i * to_stride + r] = from[r * stride + i];
  }
}

/// score after the soft cap, before ALiBi
HWY_INLINE V soft_cap(V score, float softcap) {
  return hn::Mul(splat(softcap), tanh(hn::Mul(score, splat(1 / softcap))));
}

/// The number i in every lane, and i, i + 1, ...
HWY_INLINE V number(int64_t i) { return splat(static_cast<float>(i)); }
HWY_INLINE V numbers_from(int64_t i) { return hn::Iota(kF, static_cast<float>(i)); }

/// Rounded to bf16, ties to even; x >= 0.
HWY_INLINE V rounded_to_bf16(V x) {
  const hn::RebindToUnsigned<decltype(kF)> bits;
  const auto b = hn::BitCast(bits, x);
  const auto odd = hn::And(hn::ShiftRight<16>(b), hn::Set(bits, 1));
  return hn::BitCast(kF, hn::And(hn::Add(b, hn::Add(odd, hn::Set(bits, 0x7fff))), hn::Set(bits, 0xffff0000u)));
}

/// Adds ALiBi's bias to the scores of keys seen by queries, both counted from their document's first key.
HWY_INLINE V add_alibi(V score, const AttentionParams& params, float slope, V key, V query) {
  if (params.alibi_rounded_scale == 0) return hn::MulAdd(splat(slope), hn::Sub(key, query), score);
  const V own = rounded_to_bf16(hn::Mul(splat(slope), hn::Max(query, hn::Zero(kF))));
  const V others = rounded_to_bf16(hn::Mul(splat(slope), hn::Max(key, hn::Zero(kF))));
  return hn::MulAdd(hn::Sub(others, own), splat(params.alibi_rounded_scale), score);
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
