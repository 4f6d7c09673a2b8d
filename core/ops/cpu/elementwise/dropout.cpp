#include "nibble/core/ops/dropout.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/base/parallel.h"
#include "nibble/core/base/philox.h"
#include "nibble/core/ops/cpu/element_type.h"
#include "nibble/core/ops/cpu/simd_targets.h"
#include "nibble/core/ops/ref/dropout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/elementwise/dropout.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

constexpr int64_t kColumns = 1024;  // random words at hand at a time: 4 KB

/// words[4 i + j] = word j of Philox(counter (quad + i, site, row key), key), for at least `quads` values of i. One
/// call to a 64-bit lane, its words in the lower halves: what stays in the upper halves is never read.
void random_words(uint32_t quad, uint32_t site, uint64_t row_key, std::array<uint32_t, 2> key, int64_t quads,
                  uint32_t* words) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t i = 0; i < quads; ++i) {
    const auto four = philox4x32(
        {quad + static_cast<uint32_t>(i), site, static_cast<uint32_t>(row_key), static_cast<uint32_t>(row_key >> 32)},
        key);
    std::copy(four.begin(), four.end(), words + 4 * i);
  }
#else
  const hn::ScalableTag<uint64_t> wide;
  const hn::Repartition<uint32_t, decltype(wide)> narrow;
  const auto times = [=](auto a, uint64_t factor) HWY_ATTR {
    return hn::MulEven(hn::BitCast(narrow, a), hn::BitCast(narrow, hn::Set(wide, factor)));
  };
  for (int64_t i = 0; i < quads; i += static_cast<int64_t>(hn::MaxLanes(wide))) {
    auto c0 = hn::Add(hn::Iota(wide, 0), hn::Set(wide, uint64_t{quad} + static_cast<uint64_t>(i)));
    auto c1 = hn::Set(wide, uint64_t{site});
    auto c2 = hn::Set(wide, row_key), c3 = hn::ShiftRight<32>(c2);
    uint32_t key0 = key[0], key1 = key[1];
    for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9u, key1 += 0xBB67AE85u) {
      const auto p0 = times(c0, 0xD2511F53u), p1 = times(c2, 0xCD9E8D57u);
      c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1), hn::Set(wide, uint64_t{key0}));
      c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3), hn::Set(wide, uint64_t{key1}));
      c1 = p1;
      c3 = p0;
    }
    const auto low = hn::Set(wide, uint64_t{0xffffffffu});
    const auto first = hn::Or(hn::And(c0, low), hn::ShiftLeft<32>(c1));
    const auto second = hn::Or(hn::And(c2, low), hn::ShiftLeft<32>(c3));
    alignas(64) uint64_t pairs[2 * hn::MaxLanes(wide)];
    hn::StoreInterleaved2(first, second, wide, pairs);
    std::memcpy(words + 4 * i, pairs, sizeof(pairs));
  }
#endif
}

template <typename Element>
void drop_rows(const Element* x, const int64_t* row_keys, int64_t rows, int64_t width, float p, uint32_t site,
               int64_t first, std::array<uint32_t, 2> key, Element* y) {
  const uint32_t threshold = static_cast<uint32_t>(std::ceil(static_cast<double>(p) * 4294967296.0));
  const V rest = splat(1 - p);
  // Unsigned order through signed comparison: both sides with their top bit flipped.
  const auto flip = hn::Set(kWords, 0x80000000u);
  const auto limit = hn::BitCast(kIntegers, hn::Xor(flip, hn::Set(kWords, threshold)));
  alignas(64) uint32_t words[kColumns + 64];
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t column = 0; column < width; column += kColumns) {
      const int64_t count = std::min(kColumns, width - column), at = t * width + column;
      const int64_t skipped = (first + column) % 4;
      random_words(static_cast<uint32_t>((first + column) / 4), site, static_cast<uint64_t>(row_keys[t]), key,
                   (skipped + count + 3) / 4, words);
      for_lanes(count, [&](int64_t i, auto lanes) HWY_ATTR {
        const auto word = hn::BitCast(kIntegers, hn::Xor(flip, hn::LoadU(kWords, words + skipped + i)));
        const auto dropped = hn::RebindMask(kF, hn::Lt(word, limit));
        store(hn::IfThenZeroElse(dropped, hn::Div(load(x + at + i, lanes), rest)), y + at + i, lanes);
      });
    }
  }
}

void dropout(const Tensor& x, const Tensor& row_keys, float p, uint32_t site, int64_t first,
             std::array<uint32_t, 2> key, Tensor& y) {
  const int64_t width = x.dim(1);
  const int64_t* rows = row_keys.data<const int64_t>();
  parallel_for(x.dim(0), 16, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * width;
    cpu::with_element(x, [&]<typename Element>(Element) {
      drop_rows(x.data<const Element>() + at, rows + begin, end - begin, width, p, site, first, key,
                y.data<Element>() + at);
    });
  });
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

HWY_EXPORT(dropout);

void dropout(const Tensor& x, const Tensor& row_keys, float p, const DropoutKey& key, Tensor& y) {
  NIBBLE_SIMD(dropout)(x, row_keys, p, key.site, key.first_column, ref::dropout_key(key), y);
}

}  // namespace nibble::ops::cpu
#endif
