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

struct Case {
  std::string input, name;
  QuantizeOptions options;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
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

class Bitsandbytes : public ::testing::TestWithParam<Case> {
 protected:
  Bitsandbytes() : oracle(std::string(kSourceDir) + "/tests/oracles/results/bitsandbytes_4bit.safetensors") {
    matrix = quantize(oracle.at(GetParam().input + ".weight"), GetParam().options, pool, GetParam().name);
  }
  Tensor part(const std::string& suffix) { return oracle.at(GetParam().name + suffix); }

  MemoryPool pool;
  SafetensorsFile oracle;
  QuantizedMatrix matrix;
};

TEST_P(Bitsandbytes, PacksTheSameCodes) {
  EXPECT_EQ(matrix.packed.shape(), part(".packed").shape());
  std::vector<uint8_t> ours = elements<uint8_t>(matrix.packed), theirs = elements<uint8_t>(part(".packed"));
  if (GetParam().options.type == QuantType::fp4) {  // codes 0 and 8 both stand for zero
    for (std::vector<uint8_t>* bytes : {&ours, &theirs}) {
      for (uint8_t& byte : *bytes) {
        if (byte >> 4 == 8) byte = static_cast<uint8_t>(byte & 15);
        if ((byte & 15) == 8) byte = static_cast<uint8_t>(byte & 0xf0);
      }
    }
  }
  EXPECT_EQ(ours, theirs);
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

}  // namespace
}  // namespace nibble
