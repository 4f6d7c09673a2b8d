#include "nibble/core/ops/cpu/gemm/gemm_avx512.h"
#include "nibble/core/ops/cpu/x86/amx.h"

namespace nibble::ops::cpu {

namespace {

constexpr int64_t kTilePairs = amx::kTileBytes / avx512::kGroupBytes;  // of the depth

/// The steps of a part of the depth that fill no tile, and zeros.
struct LastSteps {
  alignas(64) std::byte left[amx::kRows * amx::kTileBytes];
  alignas(64) std::byte right[kTilePairs * amx::kRightBytes];

  NIBBLE_AVX512 LastSteps(const TileInput& part, int64_t rows, int64_t from, int64_t count) {
    const auto mask = static_cast<__mmask16>(avx512::low_bits(count));
    const std::byte *a = part.a + from * part.a_step_bytes, *b = part.b + from * amx::kRightBytes;
    for (int64_t r = 0; r < rows; ++r) {
      _mm512_store_si512(left + r * amx::kTileBytes, _mm512_maskz_loadu_epi32(mask, a + r * part.a_row_bytes));
    }
    for (int64_t i = 0; i < kTilePairs * amx::kRightBytes; i += 64) {
      _mm512_store_si512(right + i, i < count * amx::kRightBytes ? _mm512_load_si512(b + i) : _mm512_setzero_si512());
    }
  }
};

void add_part(const amx::Block& block, const TileInput& part, int64_t rows, int64_t column) {
  const int64_t tiles = part.steps / kTilePairs, count = part.steps % kTilePairs;
  block.multiply<amx::Bf16>(part.a, part.a_row_bytes, part.b + column * avx512::kGroupBytes, amx::kRightBytes, tiles);
  if (count == 0) return;
  const LastSteps last(part, rows, tiles * kTilePairs, count);
  block.multiply<amx::Bf16>(last.left, amx::kTileBytes, last.right + column * avx512::kGroupBytes, amx::kRightBytes, 1);
}

void multiply(int64_t rows, int64_t columns, const TileInput& input, const TileOutput& output) {
  alignas(64) float finished[amx::kRows * avx512::kWidth];
  float* to = output.last ? finished : output.sums;
  const int64_t to_stride = output.last ? avx512::kWidth : output.sums_stride;
  constexpr auto kSize = static_cast<int64_t>(sizeof(float));
  for (int64_t n = 0; n < columns;) {
    const amx::Block block(rows, columns - n);
    block.each([&]<int kSum>(int64_t row, int64_t column) {
      if (output.first) {
        amx::zero<kSum>();
      } else {
        amx::load<kSum>(output.sums + row * output.sums_stride + n + column, output.sums_stride * kSize);
      }
    });
    for (const TileInput* part = &input; part != nullptr; part = part->epilogue) add_part(block, *part, rows, n);
    block.each([&]<int kSum>(int64_t row, int64_t column) {
      amx::store<kSum>(to + row * to_stride + n + column, to_stride * kSize);
    });
    n += block.width();
  }
  if (!output.last) return;
  TileOutput result = output;
  result.sums_stride = to_stride;
  avx512::store<true>(finished, rows, columns, result);
}

NIBBLE_AVX512 void pack_left_transposed(const std::byte* from, int64_t stride, int64_t columns, int64_t depth,
                                        std::byte* tile, int64_t tile_bytes) {
  constexpr int64_t kGroups = amx::kRows / avx512::kLanes;
  const int64_t row_bytes = tile_bytes / amx::kRows;
  for (int64_t k = 0; k < depth; k += 2 * kTilePairs, tile += amx::kTileBytes) {
    __m512i pairs[kGroups][kTilePairs];
    for (int64_t i = 0; i < kTilePairs; ++i, from += stride * 4) {
      const int64_t left = depth - k - 2 * i;
      for (int64_t g = 0; g < kGroups; ++g) pairs[g][i] = _mm512_setzero_si512();
      if (left <= 0) continue;
      const avx512::RowPairs row(from, stride, columns, left > 1);
      for (int64_t g = 0; g < kGroups; ++g) pairs[g][i] = row.groups[g];
    }
    for (int64_t g = 0; g * avx512::kLanes < columns; ++g) {
      avx512::transpose(pairs[g]);
      for (int64_t r = 0; r < avx512::kLanes; ++r) {
        _mm512_store_si512(tile + (g * avx512::kLanes + r) * row_bytes, pairs[g][r]);
      }
    }
  }
}

}  // namespace

// The right operand is that of AVX512_BF16: 16 pairs of rows and 16 columns of its strips are a tile.
const GemmKernel kGemmAmx = [] {
  GemmKernel kernel = kGemmAvx512Bf16;
  kernel.rows = amx::kRows;
  kernel.read_columns = kReadColumnsOfTiles;
  kernel.narrow_rows = 0;
  kernel.left_by_rows = true;
  kernel.multiply = multiply;
  kernel.pack_left_transposed = pack_left_transposed;
  kernel.multiply_thin = nullptr;  // its sums would have another order
  kernel.release = amx::release;
  return kernel;
}();

}  // namespace nibble::ops::cpu
