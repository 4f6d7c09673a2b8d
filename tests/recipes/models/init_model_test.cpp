#include "nibble/recipes/models/init_model.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/quant/quantize_model.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

/// Every tensor of `a` is in `b`, with the same bytes.
void expect_same_tensors(const std::filesystem::path& a, const std::filesystem::path& b) {
  const CheckpointDir one(a), other(b);
  EXPECT_EQ(one.names().size(), other.names().size());
  for (const std::string& name : one.names()) {
    ASSERT_TRUE(other.contains(name)) << name;
    const Tensor x = one.at(name), y = other.at(name);
    ASSERT_EQ(x.bytes(), y.bytes()) << name;
    EXPECT_TRUE(std::equal(x.raw(), x.raw() + x.bytes(), y.raw())) << name;
  }
}

void expect_nf4_is_the_quantized_16_bit_model(const std::string& config) {
  const test::TemporaryDirectory folder;
  write_file_atomically(folder.path() / "config.json", config);
  InitRequest request{.config = folder.path() / "config.json", .out = folder.path() / "dense", .seed = 3};
  init_model(request);
  LocalRank rank;
  quantize_model(request.out, folder.path() / "quantized", {}, rank.context());
  request.out = folder.path() / "made";
  request.dtype = "nf4";
  init_model(request);
  expect_same_tensors(folder.path() / "quantized", folder.path() / "made");
  EXPECT_EQ(read_json_file(folder.path() / "quantized/config.json")["quantization_config"],
            read_json_file(folder.path() / "made/config.json")["quantization_config"]);
}

TEST(InitModel, Nf4IsTheQuantized16BitModel) {
  expect_nf4_is_the_quantized_16_bit_model(
      R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 64,
          "rms_norm_eps": 1e-5, "tie_word_embeddings": false})");
}

TEST(InitModel, Nf4IsTheQuantized16BitModelWhereWeightsAreStoredTransposed) {
  expect_nf4_is_the_quantized_16_bit_model(
      R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 64,
          "n_inner": 96})");
}

}  // namespace
}  // namespace nibble
