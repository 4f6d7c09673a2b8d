// LLM.int8 directories, as Transformers and bitsandbytes save them: tests/oracles/quantize_llm_int8.py.

#include "nibble/quant/int8_layout.h"

#include <gmock/gmock.h>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/npy.h"
#include "nibble/quant/load_quantized.h"
#include "nibble/quant/nf4_weight.h"
#include "nibble/quant/quantize_model.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/quant/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using test::elements;
using test::error_of;
using test::TemporaryDirectory;
using ::testing::HasSubstr;

const std::filesystem::path kOracle = std::string(kSourceDir) + "/tests/data/goldens/llm_int8";

std::vector<float> logits_of(Decoder& decoder, RankContext& rank) {
  Sample text;
  for (const int64_t id : elements<int64_t>(read_npy(kOracle / "input_ids.npy"))) {
    text.ids.push_back(static_cast<int32_t>(id));
  }
  std::vector<float> result;
  decoder.logits(make_batch({&text, 1}, rank.pool), {.rank = rank, .row_keys = {}}, [&](int64_t, const Tensor& chunk) {
    const std::vector<float> values = elements<float>(chunk);
    result.insert(result.end(), values.begin(), values.end());
  });
  return result;
}

TEST(Int8Layout, TheModelComputesWithTheWeightsThatBitsandbytesDequantizes) {
  LocalRank rank;
  Decoder decoder = load_decoder(kOracle, rank.context(), load_quantized(rank.context()));
  const std::vector<float> result = logits_of(decoder, rank.context());
  const std::vector<float> wanted = elements<float>(read_npy(kOracle / "logits.npy"));
  ASSERT_EQ(result.size(), wanted.size());
  for (size_t i = 0; i < result.size(); ++i) ASSERT_NEAR(result[i], wanted[i], 1e-5) << i;
}

TEST(Int8Layout, ItCanBeQuantizedTo4BitsOnTheWayIn) {
  LocalRank rank;
  Decoder decoder = load_decoder(kOracle, rank.context(), load_quantized(rank.context(), QuantizeOnLoad{}));
  int four_bit = 0;
  decoder.visit_linears(
      [&](Linear& linear) { four_bit += dynamic_cast<const Nf4Weight*>(&linear.weight()) != nullptr; });
  EXPECT_EQ(four_bit, 7);
  logits_of(decoder, rank.context());
}

TEST(Int8Layout, RewritingItIsRefused) {
  LocalRank rank;
  TemporaryDirectory directory;
  EXPECT_THAT(error_of<InputError>([&] { quantize_model(kOracle, directory / "out", {}, rank.context()); }),
              HasSubstr("quantized to 8 bits"));
}

TEST(Int8Layout, CodesInAGpusOrderAndMissingScalesAreRefused) {
  LocalRank rank;
  const std::string file = test::read_bytes(kOracle / "model.safetensors");
  const auto refusal = [&](const std::string& from, const std::string& to) {
    TemporaryDirectory directory;
    std::filesystem::copy_file(kOracle / "config.json", directory / "config.json");
    std::string changed = file;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos);
    changed.replace(at, from.size(), to);
    test::write_bytes(directory / "model.safetensors", changed);
    return error_of<InputError>(
        [&] { load_decoder(directory.path(), rank.context(), load_quantized(rank.context())); });
  };
  EXPECT_THAT(refusal("self_attn.q_proj.SCB", "self_attn.q_proj.SCX"), HasSubstr("self_attn.q_proj.SCB"));
  // the only tensor of that size: the format of some weight
  std::string changed = file;
  TemporaryDirectory directory;
  std::filesystem::copy_file(kOracle / "config.json", directory / "config.json");
  changed.back() = 2;
  test::write_bytes(directory / "model.safetensors", changed);
  EXPECT_THAT(
      error_of<InputError>([&] { load_decoder(directory.path(), rank.context(), load_quantized(rank.context())); }),
      HasSubstr("not in the order of rows"));
}

}  // namespace
}  // namespace nibble
