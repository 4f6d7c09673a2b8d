#include "nibble/quant/mxfp4_layout.h"

#include <cmath>

#include "nibble/core/ops/gemm.h"
#include "nibble/tests/core/ops/four_bit_matrix.h"
#include "nibble/tests/random_stream.h"

namespace nibble {
namespace {

using namespace test;

/// Rows f32 after they were encoded.
Tensor encoded(MemoryPool& pool, const Tensor& rows) {
  QuantizedMatrix matrix = plan_mxfp4({1, rows.dim(0), rows.dim(1)}, "w");
  matrix.packed = Tensor::empty(pool, matrix.packed.shape(), DType::u8);
  matrix.exponents = Tensor::empty(pool, matrix.exponents.shape(), DType::u8);
  encode_mxfp4(rows, matrix.packed, matrix.exponents);
  return expanded(pool, matrix, DType::f32);
}

// Every block has its largest magnitude, 6 of a scale, which the scale follows from.
TEST(Mxfp4Encoding, ValuesThatItHoldsAreEncodedExactly) {
  MemoryPool pool;
  ops::FourBitMatrix matrix = random_mxfp4(pool, 6, 128, 110);
  for (int64_t b = 0; b < matrix.blocks(); ++b) matrix.packed.mutable_raw()[b * 16 + 3] = std::byte{0x7f};
  const Tensor values = expanded(pool, matrix, DType::f32), again = encoded(pool, values);
  for (int64_t i = 0; i < values.numel(); ++i) {
    ASSERT_EQ(again.data<const float>()[i], values.data<const float>()[i]) << i;
  }
}

TEST(Mxfp4Encoding, OthersAreRoundedToTheNearest) {
  MemoryPool pool;
  const std::vector<float> magnitudes = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
  Tensor values = Tensor::zeros(pool, {2, 64}, DType::f32);
  test::RandomStream stream(1, 2, 3);
  for (float& value : values.span<float>()) value = 0.3f * stream.next_normal();
  for (int64_t i = 32; i < 64; ++i) values.data<float>()[i] = 0;
  const Tensor result = encoded(pool, values);
  for (int64_t begin = 0; begin < values.numel(); begin += 32) {
    const float* x = values.data<const float>() + begin;
    float largest = 0;
    for (int64_t i = 0; i < 32; ++i) largest = std::max(largest, std::abs(x[i]));
    const float scale = largest > 0 ? std::exp2(std::floor(std::log2(largest)) - 2) : 1;
    for (int64_t i = 0; i < 32; ++i) {
      float nearest = 0;
      for (const float m : magnitudes) {
        if (std::abs(std::abs(x[i]) - m * scale) < std::abs(std::abs(x[i]) - nearest)) nearest = m * scale;
      }
      ASSERT_EQ(std::abs(result.data<const float>()[begin + i]), nearest) << x[i];
      if (nearest > 0) {
        ASSERT_EQ(std::signbit(result.data<const float>()[begin + i]), std::signbit(x[i]));
      }
    }
  }
}

}  // namespace
}  // namespace nibble
