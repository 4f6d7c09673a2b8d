// Our codec against what bitsandbytes makes of the same matrices: tests/oracles/quantize_bitsandbytes.py.

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "nibble/core/io/safetensors/safetensors.h"
#include "nibble/quant/bnb_layout.h"
#include "nibble/quant/codec.h"
#include "nibble/quant/tables.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/quant/golden.h"

namespace nibble {
namespace {

using test::bits_of;
using test::elements;

struct StoredCase {
  std::string input, name;
  QuantizeOptions options;
};

std::vector<StoredCase> all_cases() {
  std::vector<StoredCase> cases;
  for (const char* input : {"f32", "bf16", "f16", "partial"}) {
    for (const QuantType type : {QuantType::nf4, QuantType::fp4}) {
      for (const int64_t block_size : {64, 256}) {
        for (const bool double_quant : {false, true}) {
          const std::string name = std::string(input) + "." + std::string(quant_type_name(type)) + "." +
                                   std::to_string(block_size) + (double_quant ? ".double" : ".plain");
          cases.push_back({input, name, {type, double_quant, block_size}});
        }
      }
    }
  }
  return cases;
}

// Codes 0 and 8 of FP4 both stand for zero.
std::vector<uint8_t> without_negative_zeros(std::vector<uint8_t> bytes, QuantType type) {
  for (uint8_t& byte : bytes) {
    if (type == QuantType::fp4 && byte >> 4 == 8) byte = static_cast<uint8_t>(byte & 15);
    if (type == QuantType::fp4 && (byte & 15) == 8) byte = static_cast<uint8_t>(byte & 0xf0);
  }
  return bytes;
}

class Bitsandbytes : public ::testing::TestWithParam<StoredCase> {
 protected:
  Bitsandbytes() : oracle(std::string(kSourceDir) + "/tests/data/goldens/bitsandbytes_4bit.safetensors") {
    matrix = quantize(oracle.at(GetParam().input + ".weight"), GetParam().options, pool, GetParam().name);
  }
  Tensor part(const std::string& suffix) { return oracle.at(GetParam().name + suffix); }

  MemoryPool pool;
  SafetensorsFile oracle;
  QuantizedMatrix matrix;
};

TEST_P(Bitsandbytes, PacksTheSameCodes) {
  EXPECT_EQ(matrix.packed.shape(), part(".packed").shape());
  const QuantType type = GetParam().options.type;
  EXPECT_EQ(without_negative_zeros(elements<uint8_t>(matrix.packed), type),
            without_negative_zeros(elements<uint8_t>(part(".packed")), type));
}

TEST_P(Bitsandbytes, HasTheSameTables) {
  const std::vector<float> map = elements<float>(oracle.at(std::string(quant_type_name(matrix.type)) + ".quant_map"));
  EXPECT_EQ(bits_of(std::vector<float>(matrix.table.begin(), matrix.table.end())), bits_of(map));
  EXPECT_EQ(bits_of(std::vector<float>(dynamic_map().begin(), dynamic_map().end())),
            bits_of(elements<float>(oracle.at("nested_quant_map"))));
}

TEST_P(Bitsandbytes, HasTheSameScales) {
  if (!GetParam().options.double_quant) {
    EXPECT_EQ(bits_of(elements<float>(matrix.absmax)), bits_of(elements<float>(part(".absmax"))));
    return;
  }
  EXPECT_EQ(bits_of(elements<float>(matrix.nested_absmax)), bits_of(elements<float>(part(".nested_absmax"))));
  const std::vector<uint8_t> ours = elements<uint8_t>(matrix.absmax_codes), theirs = elements<uint8_t>(part(".absmax"));
  ASSERT_EQ(ours.size(), theirs.size());
  // Its CPU library looks the nearest entry up in a table of 65536 cells, so it may choose another one within a cell.
  std::string plain = GetParam().name;
  plain.replace(plain.rfind(".double"), 7, ".plain");
  const std::vector<float> absmax = elements<float>(oracle.at(plain + ".absmax"));
  const float nested = matrix.nested_absmax.data<const float>()[0];
  for (size_t i = 0; i < ours.size(); ++i) {
    const float exact = (absmax[i] - matrix.nested_offset) / nested;
    const float our_error = std::abs(dynamic_map()[ours[i]] - exact),
                their_error = std::abs(dynamic_map()[theirs[i]] - exact);
    EXPECT_LE(our_error, their_error + 1e-7f) << i;
    EXPECT_LE(their_error - our_error, 2.0f / 65536) << i;
  }
}

TEST_P(Bitsandbytes, WritesTheSameState) {
  EXPECT_EQ(quant_state_json(matrix), oracle.metadata().at(GetParam().name + ".state"));
}

TEST_P(Bitsandbytes, DequantizesToTheSameValues) {
  if (GetParam().options.block_size != 64) return;  // to keep its file small the oracle has the values of one size
  const Tensor expected = part(".dequantized");
  if (GetParam().options.double_quant) {  // what the codec reads, not what it chose, is compared
    matrix.absmax_codes = part(".absmax");
  }
  const std::vector<float> ours = elements<float>(dequantize(matrix, 0, matrix.out_features(), pool));
  EXPECT_EQ(ours, elements<float>(expected));
}

INSTANTIATE_TEST_SUITE_P(Cases, Bitsandbytes, ::testing::ValuesIn(all_cases()), [](const auto& instance) {
  std::string name = instance.param.name;
  for (char& c : name) c = c == '.' ? '_' : c;
  return name;
});

// tests/oracles/experts_bitsandbytes.py: what replace_parameter_4bit saves of a tensor of all experts.
TEST(BitsandbytesExperts, ATensorOfSeveralMatricesIsSavedAlike) {
  const SafetensorsFile oracle(std::string(kSourceDir) + "/tests/data/goldens/bitsandbytes_experts.safetensors");
  MemoryPool pool;
  int seen = 0;
  for (const std::string input : {"rows", "across"}) {
    for (const QuantType type : {QuantType::nf4, QuantType::fp4}) {
      for (const bool double_quant : {false, true}) {
        const std::string name =
            input + "." + std::string(quant_type_name(type)) + (double_quant ? ".double" : ".plain");
        const QuantizedMatrix matrix = quantize(oracle.at(input + ".weight"), {type, double_quant, 64}, pool, name);
        EXPECT_EQ(matrix.original_shape(), oracle.at(input + ".weight").shape());
        for (const NamedTensor& part : quantized_parts(matrix, name, pool)) {
          const Tensor theirs = oracle.at(part.name);
          ++seen;
          ASSERT_EQ(part.value.shape(), theirs.shape()) << part.name;
          ASSERT_EQ(part.value.dtype(), theirs.dtype()) << part.name;
          if (theirs.dtype() == DType::f32) {
            EXPECT_EQ(bits_of(elements<float>(part.value)), bits_of(elements<float>(theirs))) << part.name;
          } else if (part.name == name) {
            EXPECT_EQ(without_negative_zeros(elements<uint8_t>(part.value), type),
                      without_negative_zeros(elements<uint8_t>(theirs), type));
          } else if (part.name.ends_with(".absmax")) {  // see HasTheSameScales
            const std::vector<uint8_t> a = elements<uint8_t>(part.value), b = elements<uint8_t>(theirs);
            for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1) << part.name << " " << i;
          } else {
            EXPECT_EQ(elements<uint8_t>(part.value), elements<uint8_t>(theirs)) << part.name;
          }
        }
      }
    }
  }
  EXPECT_EQ(seen, 2 * 2 * (4 + 6));
}

}  // namespace
}  // namespace nibble
