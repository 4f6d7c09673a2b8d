#include <algorithm>
#include <cstring>

#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"
#include "nibble/core/ops/cpu/x86/avx2.h"

namespace nibble::ops::cpu {

namespace {

// 16 registers: 6 x 2 sums hide the latency of the multiply-add, two hold a row of B, one the element of A.
constexpr int64_t kRows = 6, kLanes = 8, kWidth = 16, kSize = sizeof(float);

// Rows, of which a piece is packed or turned, are asked for so many before.
constexpr int64_t kRowsAhead = 32;
// Steps for which it asks for a line of the next tile, one of every row at a time: 6 rows of 768 depths are 288 lines,
// a panel's five strips have 3840 steps. All at once they would hold up what the strip needs.
constexpr int64_t kStepsOfLine = 12;
// Steps of a strip, a line each, that are asked for ahead: some CPUs wait for the second cache level without.
constexpr int64_t kStepsAhead = 16;

const float* floats(const std::byte* bytes) { return reinterpret_cast<const float*>(bytes); }
float* floats(std::byte* bytes) { return reinterpret_cast<float*>(bytes); }

NIBBLE_AVX2 inline __m256 load8(const float* from, int64_t count) { return avx2::load(from, count); }
NIBBLE_AVX2 inline __m256 load8(const bf16* from, int64_t count) {
  if (count >= kLanes) return avx2::widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  alignas(16) bf16 lanes[kLanes] = {};
  if (count > 0) std::memcpy(lanes, from, static_cast<size_t>(count) * sizeof(bf16));
  return avx2::widen(_mm_load_si128(reinterpret_cast<const __m128i*>(lanes)));
}

// Lines of the rows that follow are asked for, as of the columns that follow in pack_rows.
template <typename T>
NIBBLE_AVX2 void pack_transposed(const std::byte* from, int64_t stride, int64_t columns, int64_t depth,
                                 std::byte* strip) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  const T* row = reinterpret_cast<const T*>(from);
  float* to = floats(strip);
  for (int64_t k = 0; k < depth; k += kLanes, to += kLanes * kWidth) {
    const int64_t steps = std::min(kLanes, depth - k);
    __m256i rows[kLanes];
    for (int64_t n = 0; n < kLanes; ++n) {
      if (k % kLine == 0) __builtin_prefetch(row + (n + kLanes) * stride + k);
      rows[n] = _mm256_castps_si256(n < columns ? load8(row + n * stride + k, steps) : _mm256_setzero_ps());
    }
    avx2::transpose(rows);
    for (int64_t s = 0; s < kLanes; ++s) {
      if (s < steps) _mm256_store_ps(to + s * kWidth, _mm256_castsi256_ps(rows[s]));
    }
  }
}

template <typename T>
NIBBLE_AVX2 void pack_rows(const std::byte* from, int64_t stride, int64_t columns, int64_t depth, std::byte* strip) {
  const T* row = reinterpret_cast<const T*>(from);
  float* to = floats(strip);
  for (int64_t k = 0; k < depth; ++k, row += stride, to += kWidth) {
    __builtin_prefetch(row + kRowsAhead * stride);
    for (int64_t n = 0; n < kWidth; n += kLanes) _mm256_store_ps(to + n, load8(row + n, columns - n));
  }
}

// A store writes 8 columns; the two too many are overwritten by the tile's next step.
NIBBLE_AVX2 void pack_left_transposed(const std::byte* from, int64_t stride, int64_t columns, int64_t depth,
                                      std::byte* tiles, int64_t tile_bytes) {
  constexpr int64_t kLine = 16;
  const float* row = floats(from);
  for (int64_t k = 0; k < depth; ++k, row += stride, tiles += kRows * kSize) {
    for (int64_t m = 0; m < columns; m += kLine) _mm_prefetch(row + kRowsAhead * stride + m, _MM_HINT_T0);
    std::byte* to = tiles;
    int64_t m = 0;
    for (; m + kLanes <= columns; m += kRows, to += tile_bytes) _mm256_storeu_ps(floats(to), _mm256_loadu_ps(row + m));
    for (; m < columns; m += kRows, to += tile_bytes) _mm256_storeu_ps(floats(to), avx2::load(row + m, columns - m));
  }
}

/// `columns` <= 8 columns of the result from as many sums.
NIBBLE_AVX2 inline void store8(__m256 sums, int64_t columns, const TileOutput& output, int64_t index) {
  __m256 result = _mm256_mul_ps(_mm256_set1_ps(output.alpha), sums);
  if (output.dtype == DType::f32) {
    float* c = reinterpret_cast<float*>(output.c) + index;
    if (output.accumulate) result = _mm256_add_ps(avx2::load(c, columns), result);
    return avx2::store(c, result, columns);
  }
  bf16* c = reinterpret_cast<bf16*>(output.c) + index;
  alignas(16) bf16 lanes[kLanes] = {};
  auto* const all = reinterpret_cast<__m128i*>(lanes);
  const size_t bytes = static_cast<size_t>(std::min(columns, kLanes)) * sizeof(bf16);
  if (output.accumulate) {
    std::memcpy(lanes, c, bytes);
    result = _mm256_add_ps(avx2::widen(_mm_load_si128(all)), result);
  }
  _mm_store_si128(all, avx2::narrow(result));
  std::memcpy(c, lanes, bytes);
}

NIBBLE_AVX2 void store(const float* sums, int64_t rows, int64_t columns, const TileOutput& output) {
  for (int64_t m = 0; m < rows; ++m, sums += output.sums_stride) {
    for (int64_t n = 0; n < columns; n += kLanes) {
      store8(avx2::load(sums + n, columns - n), columns - n, output, m * output.c_stride + n);
    }
  }
}

NIBBLE_AVX2 inline void write8(float* to, __m256 values) { _mm256_storeu_ps(to, values); }
NIBBLE_AVX2 inline void write8(bf16* to, __m256 values) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), avx2::narrow(values));
}

// Of a whole tile; unrolled, or GCC keeps the sums in memory.
template <typename T, int64_t R, int64_t V>
NIBBLE_AVX2 inline void add_sums(const T* from, int64_t stride, __m256 (&sums)[R][V]) {
#pragma GCC unroll 6
  for (int64_t r = 0; r < R; ++r, from += stride) {
#pragma GCC unroll 2
    for (int64_t v = 0; v < V; ++v) sums[r][v] = _mm256_add_ps(load8(from + v * kLanes, kLanes), sums[r][v]);
  }
}

template <typename T, int64_t R, int64_t V>
NIBBLE_AVX2 inline void write_sums(const __m256 (&sums)[R][V], T* to, int64_t stride) {
#pragma GCC unroll 6
  for (int64_t r = 0; r < R; ++r, to += stride) {
#pragma GCC unroll 2
    for (int64_t v = 0; v < V; ++v) write8(to + v * kLanes, sums[r][v]);
  }
}

template <typename T, int64_t R, int64_t V>
NIBBLE_AVX2 inline void write_result(__m256 (&sums)[R][V], const TileOutput& output) {
  auto* const c = reinterpret_cast<T*>(output.c);
  const __m256 alpha = _mm256_set1_ps(output.alpha);
#pragma GCC unroll 6
  for (auto& row : sums) {
#pragma GCC unroll 2
    for (__m256& sum : row) sum = _mm256_mul_ps(alpha, sum);
  }
  if (output.accumulate) add_sums(c, output.c_stride, sums);
  write_sums(sums, c, output.c_stride);
}

template <int64_t R, int64_t V>
NIBBLE_AVX2 void tile(const TileInput& input, int64_t columns, const TileOutput& output) {
  __m256 sums[R][V];
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t v = 0; v < V; ++v) sums[r][v] = _mm256_setzero_ps();
  }
  // Where the sums go, rows apart.
  const auto c_size = static_cast<int64_t>(dtype_size(output.dtype));
  for (int64_t r = 0; r < R; ++r) {
    if (!output.first || !output.last) __builtin_prefetch(output.sums + r * output.sums_stride, 1);
    if (output.last) __builtin_prefetch(output.c + r * output.c_stride * c_size, 1);
  }
  for (const TileInput* part = &input; part != nullptr; part = part->epilogue) {
    const std::byte *a = part->a, *line = part->next_rows;
    const int64_t row_bytes = part->a_row_bytes, step_bytes = part->a_step_bytes;
    const auto* b = reinterpret_cast<const float*>(part->b);
    const float* const end = b + part->steps * kWidth;
    const int64_t at_once = line != nullptr ? R * kStepsOfLine * kWidth : end - b;
    while (b != end) {
      if (line != nullptr) {
        for (int64_t r = 0; r < R; ++r) _mm_prefetch(line + r * row_bytes, _MM_HINT_T0);
        line += 64;
      }
      const float* const until = b + std::min(at_once, end - b);
      for (; b != until; a += step_bytes, b += kWidth) {
        _mm_prefetch(b + kStepsAhead * kWidth, _MM_HINT_T0);
        __m256 right[V];
        for (int64_t v = 0; v < V; ++v) right[v] = _mm256_load_ps(b + v * kLanes);
        for (int64_t r = 0; r < R; ++r) {
          float element;
          std::memcpy(&element, a + r * row_bytes, sizeof element);
          const __m256 x = _mm256_set1_ps(element);
          for (int64_t v = 0; v < V; ++v) sums[r][v] = _mm256_fmadd_ps(x, right[v], sums[r][v]);
        }
      }
    }
  }
  // Few instructions for a whole tile: the next one waits for them.
  if (!output.first) add_sums<float>(output.sums, output.sums_stride, sums);
  if (!output.last) return write_sums(sums, output.sums, output.sums_stride);
  if (columns == V * kLanes) {
    return output.dtype == DType::f32 ? write_result<float>(sums, output) : write_result<bf16>(sums, output);
  }
  alignas(32) float all[R][V * kLanes];
  write_sums(sums, all[0], V * kLanes);
  TileOutput from_all = output;
  from_all.sums_stride = V * kLanes;
  store(all[0], R, columns, from_all);
}

void multiply(int64_t rows, int64_t columns, const TileInput& input, const TileOutput& output) {
  using Tile = decltype(&tile<1, 1>);
  static constexpr Tile kTiles[kRows][2] = {{tile<1, 1>, tile<1, 2>}, {tile<2, 1>, tile<2, 2>},
                                            {tile<3, 1>, tile<3, 2>}, {tile<4, 1>, tile<4, 2>},
                                            {tile<5, 1>, tile<5, 2>}, {tile<6, 1>, tile<6, 2>}};
  kTiles[rows - 1][(columns - 1) / kLanes](input, columns, output);
}

// As tile(), of a right side whose rows are asked for by the CPU alone: with a hint for each it waits longer.
template <int64_t R, bool kWhole>
NIBBLE_AVX2 void thin_tile(int64_t columns, int64_t depth, const float* left, const float* wide, int64_t stride,
                           float* kept) {
  __m256 sums[R][2] = {};
  add_sums(kept, kThinColumns, sums);
  for (int64_t k = 0; k < depth; ++k, left += kWidth, wide += stride) {
    __m256 row[2];
    for (int64_t v = 0; v < 2; ++v) row[v] = load8(wide + v * kLanes, kWhole ? kLanes : columns - v * kLanes);
    for (int64_t r = 0; r < R; ++r) {
      const __m256 x = _mm256_set1_ps(left[r]);
      for (int64_t v = 0; v < 2; ++v) sums[r][v] = _mm256_fmadd_ps(x, row[v], sums[r][v]);
    }
  }
  write_sums(sums, kept, kThinColumns);
}

void multiply_thin(int64_t rows, int64_t columns, int64_t depth, const std::byte* left, const std::byte* wide,
                   int64_t stride, float* sums) {
  using Tile = decltype(&thin_tile<1, true>);
  static constexpr Tile kTiles[kRows][2] = {
      {thin_tile<1, false>, thin_tile<1, true>}, {thin_tile<2, false>, thin_tile<2, true>},
      {thin_tile<3, false>, thin_tile<3, true>}, {thin_tile<4, false>, thin_tile<4, true>},
      {thin_tile<5, false>, thin_tile<5, true>}, {thin_tile<6, false>, thin_tile<6, true>}};
  for (int64_t n = 0; n < columns; n += kWidth) {
    kTiles[rows - 1][columns - n >= kWidth](columns - n, depth, floats(left), floats(wide) + n, stride, sums + n);
  }
}

// Rows of W two at a time: with 4 rows of x that leaves 8 sums, 4 vectors of x and one of W in registers. Four at a
// time where there is one row of x.
template <int64_t M, typename T>
NIBBLE_AVX2 void dots_of(int64_t columns, int64_t depth, const float* x, int64_t x_stride, const T* w, int64_t w_stride,
                         float* sums) {
  constexpr int64_t kTogether = M == 1 ? 4 : 2;
  for (int64_t n0 = 0; n0 < columns; n0 += kTogether) {
    __m256 parts[M][kTogether];
    for (auto& row : parts) {
      for (auto& part : row) part = _mm256_setzero_ps();
    }
    const T* rows[kTogether];
    for (int64_t n = 0; n < kTogether; ++n) rows[n] = w + std::min(n0 + n, columns - 1) * w_stride;
    for (int64_t k = 0; k < depth; k += kLanes) {
      __m256 left[M];
      for (int64_t m = 0; m < M; ++m) left[m] = avx2::load(x + m * x_stride + k, depth - k);
      for (int64_t n = 0; n < kTogether; ++n) {
        const __m256 right = load8(rows[n] + k, depth - k);
        for (int64_t m = 0; m < M; ++m) parts[m][n] = _mm256_fmadd_ps(left[m], right, parts[m][n]);
      }
    }
    for (int64_t m = 0; m < M; ++m) {
      for (int64_t n = 0; n < kTogether; ++n) sums[m * kDotRows + n0 + n] = avx2::sum(parts[m][n]);
    }
  }
}

template <typename T>
void dots(int64_t rows, int64_t columns, int64_t depth, const std::byte* x, int64_t x_stride, const std::byte* w,
          int64_t w_stride, float* sums) {
  static constexpr decltype(&dots_of<1, T>) kDots[] = {dots_of<1, T>, dots_of<2, T>, dots_of<3, T>, dots_of<4, T>};
  kDots[rows - 1](columns, depth, floats(x), x_stride, reinterpret_cast<const T*>(w), w_stride, sums);
}

}  // namespace

const GemmKernel kGemmAvx2 = {
    .compute = DType::f32,
    .rows = kRows,
    .lanes = kLanes,
    .width = kWidth,
    .depth_step = 1,
    .depth_block = 768,  // a panel of 768 x 80 f32 has 240 of 256 KB of the second level; few tiles begin and end
    .panel_columns = 80,
    .least_rows = 4,     // of two registers: 4 cycles, two a cycle
    .packed_rows = 144,  // 9 lines of a row of the matrix
    .multiply = multiply,
    .pack_transposed = pack_transposed<float>,
    .pack_rows = pack_rows<float>,
    .pack_transposed_bf16 = pack_transposed<bf16>,
    .pack_rows_bf16 = pack_rows<bf16>,
    .four_bit = kFourBitStripsAvx2,
    .pack_left_transposed = pack_left_transposed,
    .dots = dots<float>,
    .dots_bf16 = dots<bf16>,
    .thin_rows = kRows,
    .copies_wide = true,
    .multiply_thin = multiply_thin,
    .store = store,
};

}  // namespace nibble::ops::cpu
