#include "nibble/core/ops/cpu/four_bit/four_bit_encode.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "nibble/core/tensor/bfloat16.h"
#include "nibble/quant/tables.h"

namespace nibble::ops::cpu {
namespace {

// As bytes of `dtype`, one byte away from every natural boundary, as in files.
std::vector<std::byte> stored(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(1 + values.size() * dtype_size(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    std::byte* const to = bytes.data() + 1 + i * dtype_size(dtype);
    const auto narrow = bf16(values[i]);
    const auto half = f16(values[i]);
    const void* from = &values[i];
    if (dtype == DType::bf16) from = &narrow;
    if (dtype == DType::f16) from = &half;
    std::memcpy(to, from, dtype_size(dtype));
  }
  return bytes;
}

struct Block {
  float largest;
  std::vector<float> values;
  std::vector<uint8_t> packed;
  bool operator==(const Block&) const = default;
};

Block encoded(Isa level, const std::vector<std::byte>& bytes, DType dtype, int64_t begin, int64_t count,
              QuantType type) {
  Block block{0, std::vector<float>(static_cast<size_t>(count)),
              std::vector<uint8_t>(static_cast<size_t>(count / 2 + 3), 0xcc)};
  const BlockEncoder& encoder = block_encoder(level);
  block.largest = encoder.load(bytes.data() + 1, dtype, begin, count, block.values.data());
  encoder.encode(block.values.data(), count, 1.0f / block.largest, code_rule(type), block.packed.data());
  return block;
}

TEST(BlockEncoder, GivesTheSameBitsOnEveryInstructionSetLevelForAnyCount) {
  if (isa() == Isa::baseline) GTEST_SKIP() << "this CPU has one level only";
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(300);
  for (float& value : values) value = normal(random);
  for (const QuantType type : {QuantType::nf4, QuantType::fp4}) {
    const auto& thresholds = code_rule(type).thresholds;  // numbers that tie, when the largest is 1
    std::copy(thresholds.begin(), thresholds.end(), values.begin() + 250);
    std::fill(values.begin() + 265, values.end(), -0.0f);
    values.back() = 1.0f;
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const std::vector<std::byte> bytes = stored(values, dtype);
      for (int64_t count = 1; count <= 200; ++count) {
        const int64_t begin = count % 2 == 0 ? 300 - count : count % 7;
        const Block plain = encoded(Isa::baseline, bytes, dtype, begin, count, type);
        for (int level = 1; level <= static_cast<int>(isa()); ++level) {
          EXPECT_EQ(encoded(static_cast<Isa>(level), bytes, dtype, begin, count, type), plain)
              << isa_name(static_cast<Isa>(level)) << ", " << count << " elements";
        }
      }
    }
  }
}

TEST(BlockEncoder, SeesInfinityAndNanAsLargest) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      std::vector<float> values(37, 1.0f);
      values[35] = bad;
      const std::vector<std::byte> bytes = stored(values, dtype);
      for (int level = 0; level <= static_cast<int>(isa()); ++level) {
        float out[37];
        EXPECT_FALSE(std::isfinite(block_encoder(static_cast<Isa>(level)).load(bytes.data() + 1, dtype, 0, 37, out)));
      }
    }
  }
}

}  // namespace
}  // namespace nibble::ops::cpu
