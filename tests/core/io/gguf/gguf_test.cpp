#include "nibble/core/io/gguf/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "nibble/core/base/error.h"
#include "nibble/core/io/safetensors/safetensors.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Pointwise;

class GgufTest : public ::testing::Test {
 protected:
  std::string path() const { return (scratch / "file.gguf").string(); }

  Tensor values(int64_t rows, int64_t columns) {
    Tensor result = Tensor::empty(pool, {rows, columns}, DType::f32);
    for (int64_t i = 0; i < result.numel(); ++i) {
      result.data<float>()[i] = std::sin(static_cast<float>(i) * 0.7f) * static_cast<float>(1 + i % 5);
    }
    return result;
  }

  void write(GgufType type) {
    GgufWriter writer(path(),
                      {{"general.architecture", std::string("llama")},
                       {"llama.block_count", uint32_t{3}},
                       {"llama.eps", 1e-5f},
                       {"flag", true},
                       {"tokens", std::vector<std::string>{"a", "", "\u2581b"}},
                       {"types", std::vector<int32_t>{1, -2}},
                       {"scores", std::vector<float>{0.5f}}},
                      {{"w", {6, 64}, type, 0}, {"b", {3}, GgufType::f32, 0}});
    const Tensor w = values(6, 64);
    writer.append("w", w.rows(0, 2));
    writer.append("b", values(1, 3).reshape({3}));
    writer.append("w", w.rows(2, 6));
    writer.finish();
  }

  test::TemporaryDirectory scratch;
  MemoryPool pool;
};

TEST_F(GgufTest, MetadataAndF32TensorsComeBack) {
  write(GgufType::f32);
  const GgufFile file(path());
  EXPECT_EQ(file.text("general.architecture"), "llama");
  EXPECT_EQ(file.integer("llama.block_count"), 3);
  EXPECT_FLOAT_EQ(static_cast<float>(*file.number("llama.eps")), 1e-5f);
  EXPECT_EQ(file.integer("absent"), std::nullopt);
  EXPECT_EQ(*file.texts("tokens"), (std::vector<std::string>{"a", "", "\u2581b"}));
  EXPECT_THROW(file.integer("general.architecture"), InputError);
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.find("w")->shape, (Shape{6, 64}));
  EXPECT_THAT(file.rows(*file.find("w"), 2, 6, pool).span<const float>(),
              Pointwise(Eq(), values(6, 64).rows(2, 6).span<const float>()));
}

TEST_F(GgufTest, RoundedTypesAreAsNearAsTheirStep) {
  const std::vector<std::pair<GgufType, float>> steps{{GgufType::f16, 0.003f},  {GgufType::bf16, 0.02f},
                                                      {GgufType::q8_0, 0.025f}, {GgufType::q4_0, 0.63f},
                                                      {GgufType::q5_0, 0.32f},  {GgufType::q5_1, 0.17f}};
  for (const auto& [type, step] : steps) {
    write(type);
    const GgufFile file(path());
    const Tensor got = file.rows(*file.find("w"), 0, 6, pool), wanted = values(6, 64);
    for (int64_t i = 0; i < got.numel(); ++i) {
      EXPECT_NEAR(got.data<const float>()[i], wanted.data<const float>()[i], step) << gguf_type_name(type);
    }
  }
}

// Packed by hand after ggml's quantize_row_q4_0_ref and quantize_row_q8_0_ref.
TEST_F(GgufTest, BlocksAreLaidOutAsInGgml) {
  std::vector<float> x(32, 0.0f);
  x[0] = -8;
  x[1] = 7;
  x[16] = 3;
  x[31] = -1;
  std::byte q4[18], q8[34];
  gguf_encode(GgufType::q4_0, x.data(), 32, q4);
  EXPECT_EQ(std::to_integer<int>(q4[1]), 0x3c) << "d = 1 in f16";
  EXPECT_EQ(std::to_integer<int>(q4[2]), (11 << 4) | 0);
  EXPECT_EQ(std::to_integer<int>(q4[3]), (8 << 4) | 15);
  EXPECT_EQ(std::to_integer<int>(q4[17]), (7 << 4) | 8);
  gguf_encode(GgufType::q8_0, x.data(), 32, q8);
  EXPECT_EQ(static_cast<int8_t>(q8[2]), -127);
  EXPECT_EQ(static_cast<int8_t>(q8[3]), 111);
}

// Made by llama.cpp's quantizer and read by the gguf package (tests/oracles/gguf_blocks.py).
TEST_F(GgufTest, BlocksHaveTheBytesThatLlamaCppGivesThem) {
  const SafetensorsFile golden(std::string(kSourceDir) + "/tests/data/goldens/gguf_blocks.safetensors");
  const Tensor x = golden.at("x");
  for (const GgufType type : {GgufType::q4_0, GgufType::q5_0, GgufType::q5_1, GgufType::q8_0, GgufType::q4_k,
                              GgufType::q5_k, GgufType::q6_k, GgufType::mxfp4}) {
    const std::string name(gguf_type_name(type));
    const Tensor wanted = golden.at(name);
    std::vector<std::byte> bytes(wanted.bytes());
    gguf_encode(type, x.data<const float>(), x.numel(), bytes.data());
    const auto differs = std::mismatch(bytes.begin(), bytes.end(), wanted.raw()).first - bytes.begin();
    EXPECT_EQ(differs, static_cast<std::ptrdiff_t>(wanted.bytes()))
        << name << ", block " << differs / gguf_block_bytes(type);
    if (!golden.contains(name + ".read")) continue;
    std::vector<float> read(static_cast<size_t>(x.numel()));
    gguf_decode(type, wanted.raw(), x.numel(), read.data());
    EXPECT_THAT(read, Pointwise(Eq(), golden.at(name + ".read").span<const float>())) << name;
  }
}

TEST_F(GgufTest, RowsThatAreNoWholeBlocksAreRefused) {
  EXPECT_THROW(GgufWriter(path(), {}, {{"w", {2, 288}, GgufType::q4_k, 0}}), UsageError);
  EXPECT_THROW(GgufWriter(path(), {}, {{"w", {2, 40}, GgufType::q8_0, 0}}), UsageError);
}

TEST_F(GgufTest, EveryTruncationAndManyDamagesAreRefusedOrRead) {
  write(GgufType::q8_0);
  const std::string whole = test::read_bytes(path());
  constexpr size_t kPadding = 20;  // behind the last tensor
  for (size_t size = 0; size < whole.size() - kPadding; size += 1 + size / 64) {
    test::write_bytes(path(), whole.substr(0, size));
    EXPECT_THROW(GgufFile file(path()), InputError) << size;
  }
  for (size_t at = 0; at < 420; ++at) {  // the header
    constexpr char kBits[] = {'\xff', '\x80', '\x01'};
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ kBits[at % 3]);
    test::write_bytes(path(), damaged);
    try {
      const GgufFile file(path());
      for (const GgufTensor& tensor : file.tensors()) {
        if (tensor.shape.size() == 2) file.rows(tensor, 0, tensor.shape[0], pool);
      }
    } catch (const Error&) {
    }
  }
}

TEST_F(GgufTest, ReadsTheWeightsOfAFileFromElsewhere) {
  const std::filesystem::path gguf = test::data_path("stories-llama-gguf");
  const std::filesystem::path model = test::data_path("stories-llama");
  const GgufFile plain((gguf / "f32.gguf").string()), eight((gguf / "q8_0.gguf").string());
  EXPECT_EQ(plain.text("general.architecture"), "llama");
  const SafetensorsFile weights((model / "model.safetensors").string());
  const Tensor up = weights.at("model.layers.1.mlp.up_proj.weight");
  const GgufTensor& stored = *plain.find("blk.1.ffn_up.weight");
  EXPECT_EQ(stored.shape, up.shape());
  EXPECT_THAT(plain.rows(stored, 0, up.dim(0), pool).span<const float>(), Pointwise(Eq(), up.span<const float>()));
  const GgufTensor& packed = *eight.find("blk.1.ffn_up.weight");
  ASSERT_EQ(packed.type, GgufType::q8_0);
  std::vector<std::byte> encoded(packed.bytes());
  std::vector<float> decoded(static_cast<size_t>(up.numel()));
  gguf_encode(GgufType::q8_0, up.data<const float>(), up.numel(), encoded.data());
  gguf_decode(GgufType::q8_0, encoded.data(), up.numel(), decoded.data());
  EXPECT_THAT(decoded, Pointwise(Eq(), eight.rows(packed, 0, up.dim(0), pool).span<const float>()));
}

}  // namespace
}  // namespace nibble
