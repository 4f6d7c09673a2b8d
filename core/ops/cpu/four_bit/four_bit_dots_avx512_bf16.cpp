#include <algorithm>
#include <cstring>

#include "nibble/core/base/cpu_features.h"
#include "nibble/core/base/cpu_grants.h"
#include "nibble/core/ops/cpu/four_bit/four_bit_dots.h"
#include "nibble/core/ops/cpu/x86/avx512.h"

namespace nibble::ops::cpu {

namespace {

// One register of codes: 32 words of 4, two halves of 64.
constexpr int64_t kChunk = 128, kWords = 32, kBlock = 64;

// Of 64 elements: 1, 5, ..., 61, 0, 4, ..., 60; and 3, 7, ..., 63, 2, 6, ..., 62.
alignas(64) constexpr auto kOrders = [] {
  std::array<std::array<uint16_t, 32>, 2> orders{};
  for (size_t i = 0; i < 64; ++i) {
    orders[i / 32][i % 32] = static_cast<uint16_t>(i % 16 * 4 + i / 32 * 2 + 1 - i / 16 % 2);
  }
  return orders;
}();

// For each of 8 chunks, which of 16 scales belongs to a lane of its sums.
alignas(64) constexpr auto kBlocksOfLanes = [] {
  std::array<std::array<int32_t, 16>, 8> blocks{};
  for (size_t i = 0; i < 128; ++i) blocks[i / 16][i % 16] = static_cast<int32_t>(i / 8);
  return blocks;
}();

}  // namespace

// A word of codes holds, from its lowest bits on, those of elements 1, 0, 3 and 2 of four.
NIBBLE_AVX512_BF16 void four_bit_dots_reorder(const bf16* x, int64_t depth, bf16* reordered) {
  for (int64_t chunk = 0; chunk < depth; chunk += kChunk) {
    __m512i from[4];
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t begin = chunk + i * kWords;
      from[i] = _mm512_maskz_loadu_epi16(avx512::low_bits(depth - begin), x + begin);
    }
    for (const auto& order : kOrders) {
      const __m512i index = _mm512_load_si512(order.data());
      const __m512i first = _mm512_permutex2var_epi16(from[0], index, from[1]);
      const __m512i second = _mm512_permutex2var_epi16(from[2], index, from[3]);
      _mm512_storeu_si512(reordered, _mm512_shuffle_i64x2(first, second, 0x44));
      _mm512_storeu_si512(reordered + kWords, _mm512_shuffle_i64x2(first, second, 0xee));
      reordered += 2 * kWords;
    }
  }
}

bool four_bit_scales_fast() { return isa() >= Isa::avx512_bf16 && avx512_granted().vbmi; }

NIBBLE_AVX512_BF16 void four_bit_planes_avx512_bf16(const std::byte* map, uint8_t* planes) {
  for (int64_t i = 0; i < 256; i += 16) {
    const __m512i values = _mm512_loadu_si512(map + i * 4);
    for (int plane = 0; plane < 4; ++plane) {
      const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_srli_epi32(values, static_cast<unsigned>(8 * plane)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(planes + plane * 256 + i), bytes);
    }
  }
}

NIBBLE_AVX512_VBMI void four_bit_scales_avx512_vbmi(const uint8_t* codes, int64_t count, const uint8_t* planes,
                                                    float factor, float offset, float* out) {
  constexpr int64_t kCodes = 64, kLanes = 16;
  // Codes 16 j + 4 l + i go to byte 16 l + 4 j + i: what the unpacking below leaves in order.
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512 factors = _mm512_set1_ps(factor), offsets = _mm512_set1_ps(offset);
  for (int64_t begin = 0; begin < count; begin += kCodes) {
    const __mmask64 mask = count - begin >= kCodes ? ~__mmask64{0} : (__mmask64{1} << (count - begin)) - 1;
    const __m512i index = _mm512_permutexvar_epi32(order, _mm512_maskz_loadu_epi8(mask, codes + begin));
    const __mmask64 upper = _mm512_movepi8_mask(index);  // codes from 128 on
    __m512i bytes[4];
    for (int plane = 0; plane < 4; ++plane) {
      const uint8_t* table = planes + plane * 256;
      const __m512i low = _mm512_permutex2var_epi8(_mm512_loadu_si512(table), index, _mm512_loadu_si512(table + 64));
      const __m512i high =
          _mm512_permutex2var_epi8(_mm512_loadu_si512(table + 128), index, _mm512_loadu_si512(table + 192));
      bytes[plane] = _mm512_mask_blend_epi8(upper, low, high);
    }
    const __m512i low_words[2] = {_mm512_unpacklo_epi8(bytes[0], bytes[1]), _mm512_unpackhi_epi8(bytes[0], bytes[1])};
    const __m512i high_words[2] = {_mm512_unpacklo_epi8(bytes[2], bytes[3]), _mm512_unpackhi_epi8(bytes[2], bytes[3])};
    for (int quarter = 0; quarter < 4; ++quarter) {
      const __m512i low = low_words[quarter / 2], high = high_words[quarter / 2];
      const __m512 values =
          _mm512_castsi512_ps(quarter % 2 == 0 ? _mm512_unpacklo_epi16(low, high) : _mm512_unpackhi_epi16(low, high));
      _mm512_mask_storeu_ps(out + begin + quarter * kLanes, static_cast<__mmask16>(mask >> (quarter * kLanes)),
                            _mm512_add_ps(_mm512_mul_ps(values, factors), offsets));
    }
  }
}

namespace {

// 64 bytes of codes of each row. Permutations look at five bits of an index: the fifth is the next code's lowest, and
// the table stands there twice. Shifts of all rows, then permutations and products in turn: the CPU shares instructions
// out to its units in the order they stand in, and this one keeps Zen 4's busier than row after row does.
NIBBLE_AVX512_BF16 inline void add_chunk(const uint8_t* const (&rows)[kFourBitDotsRows], int64_t at, const bf16* x,
                                         __m512i values, __m512i which, const __m512 (&scales)[kFourBitDotsRows],
                                         __m512 (&totals)[kFourBitDotsRows]) {
  __m512i codes[kFourBitDotsRows];
  __m512 sums[kFourBitDotsRows];
  for (int64_t r = 0; r < kFourBitDotsRows; ++r) {
    codes[r] = _mm512_loadu_si512(rows[r] + at);
    sums[r] = _mm512_setzero_ps();
  }
  for (int64_t part = 0; part < 4; ++part) {
    const auto x_part = reinterpret_cast<__m512bh>(_mm512_loadu_si512(x + part * kWords));
    for (int64_t r = 0; part > 0 && r < kFourBitDotsRows; ++r) codes[r] = _mm512_srli_epi16(codes[r], 4);
    for (int64_t r = 0; r < kFourBitDotsRows; ++r) {
      const __m512i weights = _mm512_permutexvar_epi16(codes[r], values);
      sums[r] = _mm512_dpbf16_ps(sums[r], reinterpret_cast<__m512bh>(weights), x_part);
    }
  }
  for (int64_t r = 0; r < kFourBitDotsRows; ++r) {
    totals[r] = _mm512_fmadd_ps(sums[r], _mm512_permutexvar_ps(which, scales[r]), totals[r]);
  }
}

}  // namespace

NIBBLE_AVX512_BF16 void four_bit_dots_avx512_bf16(const FourBitDotsRows& w, const FourBitDotsTable& table,
                                                  const bf16* reordered, float* sums) {
  // Far enough that the memory's latency does not show, and not among the rows at hand; into the second cache level:
  // the first has too few buffers for as many lines as that takes.
  constexpr int64_t kAhead = 16384, kLine = 64, kScales = 16;
  const auto values = _mm512_load_si512(table.values.data());
  const uint8_t* rows[kFourBitDotsRows];
  const float* scales[kFourBitDotsRows];
  __m512 totals[kFourBitDotsRows], scales_of[kFourBitDotsRows];
  for (int64_t r = 0; r < kFourBitDotsRows; ++r) {
    rows[r] = w.packed_of(r);
    scales[r] = w.scales_of(r);
    totals[r] = _mm512_setzero_ps();
  }
  const auto* ahead = reinterpret_cast<const char*>(w.packed) + std::max(kAhead, kFourBitDotsRows * w.row_bytes);
  const int64_t bytes = w.depth / kChunk * kLine, blocks = w.depth / kBlock;
  for (int64_t block = 0, at = 0; at < bytes; block += kScales) {
    const auto present = static_cast<__mmask16>(avx512::low_bits(blocks - block));
    for (int64_t r = 0; r < kFourBitDotsRows; ++r) scales_of[r] = _mm512_maskz_loadu_ps(present, scales[r] + block);
    const auto* which = kBlocksOfLanes.data();
    for (const int64_t end = std::min(bytes, at + kScales * kBlock / 2); at < end; at += kLine, ++which) {
      for (int64_t r = 0; r < kFourBitDotsRows; ++r)
        _mm_prefetch(ahead + kFourBitDotsRows * at + r * kLine, _MM_HINT_T1);
      add_chunk(rows, at, reordered + 2 * at, values, _mm512_load_si512(which), scales_of, totals);
    }
  }
  if (w.depth % kChunk != 0) {  // the last block of every row
    alignas(64) uint8_t codes[kFourBitDotsRows][kLine] = {};
    for (int64_t r = 0; r < kFourBitDotsRows; ++r) {
      std::memcpy(codes[r], rows[r] + bytes, kBlock / 2);
      rows[r] = codes[r];
      scales_of[r] = _mm512_set1_ps(scales[r][blocks - 1]);
    }
    add_chunk(rows, 0, reordered + 2 * bytes, values, _mm512_setzero_si512(), scales_of, totals);
  }
  for (int64_t r = 0; r < w.rows; ++r) sums[r] = _mm512_reduce_add_ps(totals[r]);
}

}  // namespace nibble::ops::cpu
