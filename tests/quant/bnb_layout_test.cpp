#include "nibble/quant/bnb_layout.h"

#include <gmock/gmock.h>

#include <limits>

#include "nibble/quant/codec.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/quant/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using test::bits_of;
using test::elements;
using test::error_of;
using test::TemporaryDirectory;
using ::testing::HasSubstr;

const std::string kWeight = "model.layers.0.mlp.up_proj.weight";

std::string text_of(const Tensor& bytes) { return {reinterpret_cast<const char*>(bytes.raw()), bytes.bytes()}; }

// A directory whose weight can be damaged part by part.
class OneWeight : public ::testing::Test {
 protected:
  OneWeight() { set_matrix({QuantType::nf4, true, 64}); }

  void set_matrix(const QuantizeOptions& options, int64_t out = 8, int64_t in = 128) {
    Tensor weight = Tensor::empty(pool, {out, in}, DType::f32);
    for (int64_t i = 0; i < weight.numel(); ++i) weight.data<float>()[i] = static_cast<float>(i % 97 - 48) * 0.01f;
    matrix = quantize(weight, options, pool, "w");
    parts.clear();
    for (const NamedTensor& part : quantized_parts(matrix, kWeight, pool)) parts.emplace_back(part.name, part.value);
  }
  Tensor& part(const std::string& suffix) {
    for (auto& [name, value] : parts) {
      if (name == kWeight + suffix) return value;
    }
    throw std::logic_error("no part " + suffix);
  }
  void remove(const std::string& suffix) {
    std::erase_if(parts, [&](const auto& p) { return p.first == kWeight + suffix; });
  }
  void set_state(const std::string& text, const std::string& type = "nf4") {
    part(".quant_state.bitsandbytes__" + type) =
        Tensor::from<uint8_t>(pool, {static_cast<int64_t>(text.size())},
                              std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
  }
  void replace_in_state(const std::string& from, const std::string& to) {
    std::string text = text_of(part(".quant_state.bitsandbytes__nf4"));
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << text;
    set_state(text.replace(at, from.size(), to));
  }
  QuantizedMatrix read() {
    write_safetensors(directory / "model.safetensors", parts);
    checkpoint = std::make_unique<CheckpointDir>(directory.path());
    return read_quantized(*checkpoint, kWeight, pool);
  }
  std::string refusal() {
    return error_of<InputError>([&] { read(); });
  }

  MemoryPool pool;
  TemporaryDirectory directory;
  QuantizedMatrix matrix;
  std::vector<std::pair<std::string, Tensor>> parts;
  std::unique_ptr<CheckpointDir> checkpoint;
};

TEST_F(OneWeight, WhatIsWrittenIsReadAgain) {
  for (const QuantType type : {QuantType::nf4, QuantType::fp4}) {
    for (const bool double_quant : {true, false}) {
      set_matrix({type, double_quant, 128}, 5, 77);
      const QuantizedMatrix again = read();
      EXPECT_TRUE(is_quantized(*checkpoint, kWeight));
      EXPECT_FALSE(is_quantized(*checkpoint, kWeight + ".absmax"));
      EXPECT_EQ(again.type, type);
      EXPECT_EQ(again.block_size, 128);
      EXPECT_EQ(again.shape, (Shape{5, 77}));
      EXPECT_EQ(again.original_dtype, DType::f32);
      EXPECT_EQ(again.double_quantized(), double_quant);
      EXPECT_EQ(bits_of(elements<float>(dequantize(again, 0, 5, pool))),
                bits_of(elements<float>(dequantize(matrix, 0, 5, pool))));
    }
  }
}

TEST_F(OneWeight, PackedCodesOfAnyStorageTypeAreBytes) {
  Tensor& packed = part("");
  const std::vector<uint8_t> bytes = elements<uint8_t>(packed);
  packed = Tensor::view(packed.storage(), 0, {packed.numel() / 4, 1}, DType::f32);
  EXPECT_EQ(elements<uint8_t>(read().packed), bytes);
  packed = Tensor::view(packed.storage(), 0, {static_cast<int64_t>(bytes.size()) / 2, 1}, DType::bf16);
  EXPECT_EQ(elements<uint8_t>(read().packed), bytes);
}

TEST_F(OneWeight, ScalesInTheOrderOfDamagedFilesAreTransposed) {
  set_matrix({QuantType::nf4, false, 64});
  Tensor& absmax = part(".absmax");
  std::vector<bf16> transposed(16);
  const std::vector<float> flat = elements<float>(absmax);
  for (size_t row = 0; row < 8; ++row) {
    for (size_t column = 0; column < 2; ++column) transposed[column * 8 + row] = bf16(flat[row * 2 + column]);
  }
  absmax = Tensor::from<bf16>(pool, {2, 8}, transposed);
  const std::vector<float> read_back = elements<float>(read().absmax);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(read_back[i], static_cast<float>(bf16(flat[i])));
  absmax = Tensor::from<bf16>(pool, {4, 4}, transposed);
  EXPECT_THAT(refusal(), HasSubstr(".absmax: has shape [4, 4], which is no order of blocks"));
}

TEST_F(OneWeight, TheTransposedPackedFormIsRefused) {
  part("") = part("").reshape({1, 512});
  EXPECT_THAT(refusal(), HasSubstr("transposed form [1, 512]"));
}

TEST_F(OneWeight, EveryMissingPartIsNamed) {
  for (const char* suffix : {"", ".absmax", ".quant_map", ".nested_quant_map"}) {
    set_matrix({});
    remove(suffix);
    EXPECT_THAT(refusal(), HasSubstr("lacks its part " + kWeight + suffix));
  }
  set_matrix({});
  remove(".nested_absmax");  // then the codes of scales are not scales
  EXPECT_THAT(refusal(), HasSubstr(".absmax: is no float tensor"));
  set_matrix({});
  remove(".quant_state.bitsandbytes__nf4");
  EXPECT_THAT(refusal(), HasSubstr("has no quant_state"));
}

TEST_F(OneWeight, ImpossibleStatesAreRefused) {
  const std::vector<std::array<std::string, 3>> changes = {
      {"\"nf4\"", "\"fp4\"", "another quant_type"},
      {"\"nf4\"", "4", "lacks a valid quant_type"},
      {"\"blocksize\": 64", "\"blocksize\": 0", "has blocksize 0"},
      {"\"blocksize\": 64", "\"blocksize\": -64", "has blocksize -64"},
      {"\"blocksize\": 64", "\"blocksize\": 64.5", "lacks a valid blocksize"},
      {"\"blocksize\": 64", "\"blocksize\": 32", "not 32 codes of scales"},
      {"\"float32\", \"shape\"", "\"float8\", \"shape\"", "has a dtype other than"},
      {"[8, 128]", "[8, 129]", "its shape [8, 129] needs 516"},
      {"[8, 128]", "[1024]", "lacks a shape"},
      {"[8, 128]", "[-8, -128]", "impossible shape"},
      {"[8, 128]", "[0, 128]", "impossible shape"},
      {"[8, 128]", "[1099511627776, 1099511627776]", "impossible shape"},
      {"[8, 128]", "[4294967296, 4294967297]", "impossible shape"},
      {"\"nested_blocksize\": 256", "\"nested_blocksize\": 3", "has nested_blocksize 3"},
      {"\"nested_offset\": ", "\"nested_offset\": 1e300, \"x\": ", "not finite"},
      {"\"nested_offset\": ", "\"nested_offset\": NaN, \"x\": ", "__nf4:1:"},
      {"\"nested_offset\": ", "\"offset\": ", "lacks a valid nested_offset"},
      {"{", "[", "__nf4:1:"},
  };
  for (const auto& [from, to, reason] : changes) {
    set_matrix({});
    replace_in_state(from, to);
    const std::string message = refusal();
    EXPECT_THAT(message, from == "\"blocksize\": 64" && to == "\"blocksize\": 32" ? HasSubstr("is not 32 codes")
                                                                                  : HasSubstr(reason));
    EXPECT_THAT(message, HasSubstr("model.safetensors: " + kWeight));
  }
  set_matrix({});
  set_state("[]");
  EXPECT_THAT(refusal(), HasSubstr("is no JSON object"));
  set_state(std::string(5000, ' '));
  EXPECT_THAT(refusal(), HasSubstr("is no JSON text"));
}

TEST_F(OneWeight, TablesThatAreNotFiniteAreRefused) {
  for (const char* suffix : {".quant_map", ".nested_absmax", ".nested_quant_map"}) {
    set_matrix({});
    part(suffix).data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_THAT(refusal(), HasSubstr(std::string(suffix) + ": has values that are not finite"));
  }
}

TEST_F(OneWeight, PartsOfTheWrongSizeOrTypeAreRefused) {
  part(".quant_map") = Tensor::zeros(pool, {15}, DType::f32);
  EXPECT_THAT(refusal(), HasSubstr(".quant_map: has shape [15], not 16 elements"));
  set_matrix({});
  part(".quant_map") = Tensor::zeros(pool, {16}, DType::i32);
  EXPECT_THAT(refusal(), HasSubstr(".quant_map: is no float tensor"));
  set_matrix({});
  part(".nested_absmax") = Tensor::zeros(pool, {2}, DType::f32);
  EXPECT_THAT(refusal(), HasSubstr(".nested_absmax: has shape [2], not 1 elements"));
  set_matrix({});
  part("") = Tensor::zeros(pool, {511, 1}, DType::u8);
  EXPECT_THAT(refusal(), HasSubstr("has 511 bytes"));
}

TEST(BnbLayout, StatesWrittenAgainAreTheBytesOfPython) {
  const CheckpointDir checkpoint(test::data_path("stories-llama-nf4-dq"));
  MemoryPool pool;
  int weights = 0;
  for (const std::string& weight : checkpoint.names()) {
    if (!is_quantized(checkpoint, weight)) continue;
    ++weights;
    const QuantizedMatrix matrix = read_quantized(checkpoint, weight, pool);
    EXPECT_EQ(quant_state_json(matrix), text_of(checkpoint.at(weight + ".quant_state.bitsandbytes__nf4")));
    for (const NamedTensor& part : quantized_parts(matrix, weight, pool)) {
      const Tensor stored = checkpoint.at(part.name);
      EXPECT_EQ(part.value.shape(), stored.shape()) << part.name;
      EXPECT_EQ(part.value.dtype(), stored.dtype()) << part.name;
      EXPECT_EQ(std::memcmp(part.value.raw(), stored.raw(), stored.bytes()), 0) << part.name;
    }
  }
  EXPECT_EQ(weights, 35);
}

TEST(BnbLayout, ReadsAStateOfAnotherWriter) {
  TemporaryDirectory directory;
  fs::copy_file(test::data_path("safetensors/another-writer.safetensors"), directory / "model.safetensors");
  const CheckpointDir checkpoint(directory.path());
  MemoryPool pool;
  const QuantizedMatrix matrix = read_quantized(checkpoint, "model.layers.0.weight", pool);
  EXPECT_EQ(matrix.out_features() * matrix.in_features(), 64);
  EXPECT_FALSE(matrix.double_quantized());
}

TEST(BnbLayout, FloatsAreWrittenAsPythonDoes) {
  QuantizedMatrix matrix = plan_quantized({1, 64}, DType::bf16, {}, 0);
  const auto offset = [&](float value) {
    matrix.nested_offset = value;
    const std::string text = quant_state_json(matrix);
    const size_t at = text.rfind(": ") + 2;
    return text.substr(at, text.size() - at - 1);
  };
  EXPECT_EQ(offset(0.0f), "0.0");
  EXPECT_EQ(offset(1.0f), "1.0");
  EXPECT_EQ(offset(0.1f), "0.10000000149011612");
  EXPECT_EQ(offset(1e-4f), "9.999999747378752e-05");
  EXPECT_EQ(offset(1.5e-7f), "1.500000053056283e-07");
  EXPECT_EQ(offset(0.0001220703125f), "0.0001220703125");
  EXPECT_EQ(offset(1e16f), "1.0000000272564224e+16");
  EXPECT_EQ(offset(16777216.0f), "16777216.0");
}

}  // namespace
}  // namespace nibble
