#include "nibble/quant/codec.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <random>

#include "nibble/core/base/parallel.h"
#include "nibble/quant/tables.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/quant/golden.h"

namespace nibble {
namespace {

using test::bits_of;
using test::elements;
using test::npy_elements;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The golden values of one case: see tests/oracles/nf4_golden.py.
struct Golden {
  const char* name;
  int64_t out, in;
  bool bf16_input;
};

class Nf4Golden : public ::testing::TestWithParam<Golden> {
 protected:
  Tensor weight(const std::filesystem::path& asset) {
    const Golden& golden = GetParam();
    const Shape shape = {golden.out, golden.in};
    if (!golden.bf16_input) {
      return Tensor::from<float>(pool, shape, npy_elements<float>(file(asset, "weight_f32")));
    }
    const std::vector<uint16_t> bits = npy_elements<uint16_t>(file(asset, "weight_bf16bits"));
    Tensor result = Tensor::empty(pool, shape, DType::bf16);
    std::memcpy(result.mutable_raw(), bits.data(), result.bytes());
    return result;
  }
  std::filesystem::path file(const std::filesystem::path& asset, const std::string& what) {
    return asset / (std::string(GetParam().name) + "." + what + ".npy");
  }
  // The bytes of the all-zero block of the edge case are not said by the format.
  size_t first_byte() const { return std::string(GetParam().name) == "edges8x64_fp32" ? 32 : 0; }

  MemoryPool pool;
};

TEST_P(Nf4Golden, CodesAndScalesAreTheSameBits) {
  const std::filesystem::path asset = test::data_path("nf4-golden");
  const QuantizedMatrix matrix = quantize(weight(asset), {QuantType::nf4, false, 64}, pool, "w");
  std::vector<uint8_t> packed = elements<uint8_t>(matrix.packed);
  std::vector<uint8_t> golden = npy_elements<uint8_t>(file(asset, "packed_u8"));
  ASSERT_EQ(packed.size(), golden.size());
  packed.erase(packed.begin(), packed.begin() + static_cast<std::ptrdiff_t>(first_byte()));
  golden.erase(golden.begin(), golden.begin() + static_cast<std::ptrdiff_t>(first_byte()));
  EXPECT_EQ(packed, golden);
  EXPECT_EQ(bits_of(elements<float>(matrix.absmax)), bits_of(npy_elements<float>(file(asset, "absmax_f32"))));
}

TEST_P(Nf4Golden, DequantizedValuesAreTheSameBits) {
  const std::filesystem::path asset = test::data_path("nf4-golden");
  const QuantizedMatrix matrix = quantize(weight(asset), {QuantType::nf4, false, 64}, pool, "w");
  const std::vector<float> values = elements<float>(dequantize(matrix, 0, matrix.out_features(), pool));
  const std::vector<float> golden = npy_elements<float>(file(asset, "dequant_plain_f32"));
  const std::vector<uint16_t> golden_bf16 = npy_elements<uint16_t>(file(asset, "dequant_plain_bf16bits"));
  ASSERT_EQ(values.size(), golden.size());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], golden[i]) << i;  // a zero block gives zeros of either sign
    if (values[i] != 0) {
      ASSERT_EQ(bf16(values[i]).bits, golden_bf16[i]) << i;
    }
  }
}

TEST_P(Nf4Golden, DoubleQuantizedScalesAreTheSameCodes) {
  const std::filesystem::path asset = test::data_path("nf4-golden");
  const QuantizedMatrix matrix = quantize(weight(asset), {QuantType::nf4, true, 64}, pool, "w");
  EXPECT_EQ(elements<uint8_t>(matrix.absmax_codes), npy_elements<uint8_t>(file(asset, "absmax_code_u8")));
  const float golden_offset = npy_elements<float>(file(asset, "nested_offset_f32"))[0];
  EXPECT_NEAR(matrix.nested_offset, golden_offset, 2 * std::abs(golden_offset) * std::numeric_limits<float>::epsilon());
  const std::vector<float> scales = npy_elements<float>(file(asset, "absmax_dequant_f32"));
  std::vector<float> ours;
  Tensor read = Tensor::empty(pool, {matrix.blocks()}, DType::f32);
  ops::block_scales(matrix, read);
  ours = elements<float>(read);
  const std::vector<float> golden = npy_elements<float>(file(asset, "dequant_dq_f32"));
  const std::vector<float> values = elements<float>(dequantize(matrix, 0, matrix.out_features(), pool));
  const float largest = *std::max_element(scales.begin(), scales.end());
  for (size_t i = 0; i < scales.size(); ++i) ASSERT_NEAR(ours[i], scales[i], 2e-7 * largest);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], golden[i], 2e-7 * largest) << i;
}

INSTANTIATE_TEST_SUITE_P(Cases, Nf4Golden,
                         ::testing::Values(Golden{"normal64x256_fp32", 64, 256, false},
                                           Golden{"normal64x256_bf16", 64, 256, true},
                                           Golden{"uneven96x320_fp32", 96, 320, false},
                                           Golden{"uneven96x320_bf16", 96, 320, true},
                                           Golden{"edges8x64_fp32", 8, 64, false}),
                         [](const auto& golden) { return std::string(golden.param.name); });

TEST(DynamicMap, HasTheBitsOfBitsandbytes) {
  const std::filesystem::path asset = test::data_path("nf4-golden");
  const std::vector<float> golden = npy_elements<float>(asset / "dynamic_map_256.npy");
  const std::vector<float> map(dynamic_map().begin(), dynamic_map().end());
  EXPECT_EQ(bits_of(map), bits_of(golden));
}

// "AMNB" files: the first 64 blocks of a layer of a published model, with what bitsandbytes' CUDA kernels make of them.
struct RealSlice {
  QuantizedMatrix matrix;
  std::vector<uint16_t> bf16_golden;
  std::vector<float> golden;
};

RealSlice read_slice(const std::filesystem::path& path, MemoryPool& pool) {
  const std::string bytes = read_text_file(path);
  std::array<uint32_t, 11> head;
  std::memcpy(head.data(), bytes.data() + 4, sizeof(head));
  size_t at = 4 + sizeof(head);
  const auto take = [&](Tensor& tensor, int64_t count, DType dtype) {
    tensor = Tensor::empty(pool, {count}, dtype);
    std::memcpy(tensor.mutable_raw(), bytes.data() + at, tensor.bytes());
    at += tensor.bytes();
  };
  RealSlice slice;
  QuantizedMatrix& m = slice.matrix;
  const bool double_quant = head[1] == 2;
  m.shape = {64, head[2] / 64};
  m.block_size = head[3];
  std::memcpy(&m.nested_offset, bytes.data() + at, 4);
  at += 4;
  Tensor map, bf16_golden, golden;
  take(m.packed, head[4], DType::u8);
  take(double_quant ? m.absmax_codes : m.absmax, double_quant ? head[5] : head[5] / 4,
       double_quant ? DType::u8 : DType::f32);
  take(map, 16, DType::f32);
  std::memcpy(m.table.data(), map.raw(), sizeof(m.table));
  m.type = std::is_sorted(m.table.begin(), m.table.end()) ? QuantType::nf4 : QuantType::fp4;
  if (double_quant) take(m.nested_absmax, head[7] / 4, DType::f32);
  if (double_quant) take(m.nested_map, 256, DType::f32);
  take(bf16_golden, head[9] / 2, DType::bf16);
  take(golden, head[10] / 4, DType::f32);
  EXPECT_EQ(at, bytes.size());
  slice.golden = elements<float>(golden);
  slice.bf16_golden.resize(slice.golden.size());
  std::memcpy(slice.bf16_golden.data(), bf16_golden.raw(), bf16_golden.bytes());
  return slice;
}

TEST(RealModels, DequantizeToTheBitsOfTheCudaKernels) {
  NIBBLE_ASSET_OR_SKIP(asset, "bnb-reference");
  MemoryPool pool;
  int compared = 0;
  for (const char* name : {"llama_1b_nf4", "llama_1b_nf4_double_quant", "qwen2_5_1_5b_nf4_dq", "phi3_5_mini_nf4_dq",
                           "llama_1b_fp4", "qwen3_mcqa_fp4"}) {
    const auto path = asset / (std::string(name) + ".bin");
    if (!std::filesystem::exists(path)) continue;
    const RealSlice slice = read_slice(path, pool);
    EXPECT_EQ(slice.matrix.table, quant_table(slice.matrix.type)) << name;
    const std::vector<float> values = elements<float>(dequantize(slice.matrix, 0, 64, pool));
    EXPECT_EQ(values, slice.golden) << name;
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(bf16(values[i]).bits, slice.bf16_golden[i]) << name << i;
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

TEST(RealModels, QuantizingWhatWasDequantizedGivesTheSameBytes) {
  NIBBLE_ASSET_OR_SKIP(asset, "bnb-reference");
  MemoryPool pool;
  const RealSlice slice = read_slice(asset / "qwen2_5_1_5b_nf4_dq.bin", pool);
  const QuantizedMatrix again =
      quantize(dequantize(slice.matrix, 0, 64, pool), {QuantType::nf4, false, slice.matrix.block_size}, pool, "w");
  EXPECT_EQ(elements<uint8_t>(again.packed), elements<uint8_t>(slice.matrix.packed));
}

Tensor random_matrix(MemoryPool& pool, int64_t out, int64_t in, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, 0.05f);
  Tensor result = Tensor::empty(pool, {out, in}, DType::f32);
  for (float& value : result.span<float>()) value = normal(generator);
  return result;
}

TEST(Codec, EveryElementGetsTheNearestValue) {
  MemoryPool pool;
  const Tensor weight = random_matrix(pool, 40, 96, 1);
  for (const QuantType type : {QuantType::nf4, QuantType::fp4}) {
    const QuantizedMatrix matrix = quantize(weight, {type, false, 64}, pool, "w");
    const std::vector<float> values = elements<float>(dequantize(matrix, 0, 40, pool));
    for (size_t i = 0; i < values.size(); ++i) {
      const float absmax = matrix.absmax.data<const float>()[i / 64], x = weight.data<const float>()[i];
      float nearest = 1e9f;
      for (const float value : matrix.table) nearest = std::min(nearest, std::abs(value * absmax - x));
      ASSERT_NEAR(std::abs(values[i] - x), nearest, 1e-7f) << i;
    }
  }
}

TEST(Codec, BlocksCrossRowsAndTheLastOneMayBePartial) {
  MemoryPool pool;
  const Tensor weight = random_matrix(pool, 7, 11, 2);  // 77 elements: an odd number, two blocks of 64
  const QuantizedMatrix matrix = quantize(weight, {QuantType::nf4, false, 64}, pool, "w");
  EXPECT_EQ(matrix.packed.shape(), (Shape{39, 1}));
  EXPECT_EQ(matrix.absmax.shape(), (Shape{2}));
  const std::span<const float> x = weight.span<const float>();
  float first = 0, second = 0;
  for (size_t i = 0; i < 77; ++i) (i < 64 ? first : second) = std::max(i < 64 ? first : second, std::abs(x[i]));
  EXPECT_THAT(elements<float>(matrix.absmax), ElementsAre(first, second));
  EXPECT_EQ(matrix.packed.data<const uint8_t>()[38] & 15, 7);
  const std::vector<float> all = elements<float>(dequantize(matrix, 0, 7, pool));
  const std::vector<float> rows = elements<float>(dequantize(matrix, 4, 7, pool));
  EXPECT_EQ(rows, std::vector<float>(all.begin() + 44, all.end()));
}

TEST(Codec, PiecesOfRowsGiveTheSameMatrix) {
  MemoryPool pool;
  const Tensor weight = random_matrix(pool, 96, 172, 3);
  const QuantizedMatrix whole = quantize(weight, {}, pool, "w");
  Quantizer quantizer({96, 172}, DType::f32, {}, pool, "w");
  quantizer.append(weight.rows(0, 16));  // 16 * 172 = 43 * 64
  quantizer.append(weight.rows(16, 96));
  const QuantizedMatrix pieces = quantizer.finish();
  EXPECT_EQ(elements<uint8_t>(pieces.packed), elements<uint8_t>(whole.packed));
  EXPECT_EQ(elements<uint8_t>(pieces.absmax_codes), elements<uint8_t>(whole.absmax_codes));
}

TEST(Codec, AnyNumberOfThreadsGivesTheSameBytes) {
  MemoryPool pool;
  const Tensor weight = random_matrix(pool, 300, 1000, 4);
  set_threads(1);
  const QuantizedMatrix one = quantize(weight, {}, pool, "w");
  set_threads(4);
  const QuantizedMatrix four = quantize(weight, {}, pool, "w");
  EXPECT_EQ(elements<uint8_t>(one.packed), elements<uint8_t>(four.packed));
  EXPECT_EQ(elements<uint8_t>(one.absmax_codes), elements<uint8_t>(four.absmax_codes));
  EXPECT_EQ(one.nested_offset, four.nested_offset);
}

TEST(Codec, ZeroAndTinyBlocksStayFinite) {
  MemoryPool pool;
  Tensor weight = Tensor::zeros(pool, {4, 64}, DType::f32);
  weight.data<float>()[64] = 1e-42f;
  weight.data<float>()[128] = std::numeric_limits<float>::max();
  for (const QuantType type : {QuantType::nf4, QuantType::fp4}) {
    for (const bool double_quant : {false, true}) {
      const QuantizedMatrix matrix = quantize(weight, {type, double_quant, 64}, pool, "w");
      const std::vector<float> values = elements<float>(dequantize(matrix, 0, 4, pool));
      EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }));
      if (!double_quant) {
        EXPECT_EQ(values[0], 0);
        EXPECT_EQ(values[128], std::numeric_limits<float>::max());
      }
    }
  }
}

TEST(Codec, AnElementThatIsNotFiniteIsNamed) {
  MemoryPool pool;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    Tensor weight = random_matrix(pool, 500, 300, 5);
    weight.data<float>()[400 * 300 + 17] = bad;
    weight.data<float>()[450 * 300] = bad;
    try {
      quantize(weight, {}, pool, "model.layers.3.mlp.up_proj.weight");
      ADD_FAILURE();
    } catch (const NumericError& error) {
      EXPECT_THAT(error.what(), HasSubstr("model.layers.3.mlp.up_proj.weight: element [400, 17] is infinite or not"));
    }
  }
}

TEST(Codec, ImpossibleBlockSizesAreRefused) {
  MemoryPool pool;
  for (const int64_t size : {-64, 0, 1, 16, 48, 8192}) {
    EXPECT_THROW(quantize(random_matrix(pool, 2, 2, 6), {QuantType::nf4, true, size}, pool, "w"), UsageError) << size;
  }
}

// Expected numbers: bitsandbytes 0.50.2 on 2 million normal weights.
TEST(Codec, ErrorOfNormalWeightsIsThatOfBitsandbytes) {
  MemoryPool pool;
  const Tensor weight = random_matrix(pool, 256, 1024, 7);
  const auto relative_error = [&](QuantType type) {
    const std::vector<float> values = elements<float>(dequantize(quantize(weight, {type}, pool, "w"), 0, 256, pool));
    double error = 0, norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double x = weight.data<const float>()[i];
      error += (values[i] - x) * (values[i] - x);
      norm += x * x;
    }
    return std::sqrt(error / norm);
  };
  EXPECT_NEAR(relative_error(QuantType::nf4), 0.0920, 0.0005);
  EXPECT_NEAR(relative_error(QuantType::fp4), 0.1219, 0.0005);
}

}  // namespace
}  // namespace nibble
