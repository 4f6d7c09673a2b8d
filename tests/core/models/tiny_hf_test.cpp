// Small models with logits from Transformers, also in shards.

#include <algorithm>

#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using namespace nibble::test;

void expect_logits(const std::filesystem::path& directory, const std::filesystem::path& golden) {
  Rank rank;
  Decoder decoder = load_decoder(directory, rank.context());
  const nlohmann::json record = read_json(golden);
  for (size_t row = 0; row < record["sequences"].size(); ++row) {
    const Sample sample{.ids = record["sequences"][row].get<std::vector<int32_t>>(), .labels = {}};
    std::vector<float> wanted;
    for (const auto& logits : record["logits"][row]) {
      const auto values = logits.get<std::vector<float>>();
      wanted.insert(wanted.end(), values.begin(), values.end());
    }
    const std::vector<float> made = all_logits(decoder, make_batch({&sample, 1}, rank.context().pool), rank.step());
    EXPECT_LE(largest_difference(made, wanted), 1e-4) << row;
  }
}

class TinyHf : public ::testing::TestWithParam<std::string> {};

TEST_P(TinyHf, LogitsAreThoseOfTransformers) {
  NIBBLE_ASSET_OR_SKIP(assets, "tiny-hf");
  const TemporaryDirectory directory;
  std::filesystem::copy_file(assets / (GetParam() + "_config.json"), directory / "config.json");
  std::filesystem::copy_file(assets / (GetParam() + ".safetensors"), directory / "model.safetensors");
  expect_logits(directory.path(), assets / (GetParam() + "_logits.json"));
}

INSTANTIATE_TEST_SUITE_P(Models, TinyHf,
                         ::testing::Values("tiny_llama", "tiny_mistral", "tiny_qwen2", "tiny_gptneox",
                                           "tiny_falcon_mq"),
                         [](const auto& test) { return test.param; });

TEST(TinyHfShards, AnIndexAndTwoShardsAreOneModel) {
  NIBBLE_ASSET_OR_SKIP(assets, "tiny-hf");
  const TemporaryDirectory directory;
  std::filesystem::copy_file(assets / "tiny_llama_config.json", directory / "config.json");
  std::filesystem::copy_file(assets / "tiny_llama.safetensors.index.json", directory / "model.safetensors.index.json");
  for (const std::string shard : {"tiny_llama-00001-of-00002.safetensors", "tiny_llama-00002-of-00002.safetensors"}) {
    std::filesystem::copy_file(assets / shard, directory / shard);
  }
  expect_logits(directory.path(), assets / "tiny_llama_logits.json");
}

}  // namespace
}  // namespace nibble
