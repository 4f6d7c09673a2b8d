#include "nibble/recipes/models/init_model.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/models/load.h"
#include "nibble/quant/load_quantized.h"
#include "nibble/quant/mxfp4_layout.h"
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

TEST(InitModel, Nf4IsTheQuantized16BitModelWhereLayersShareWeights) {
  expect_nf4_is_the_quantized_16_bit_model(
      R"({"model_type": "zamba2", "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2,
          "layers_block_type": ["hybrid", "mamba", "hybrid"], "intermediate_size": 48, "adapter_rank": 4,
          "mamba_d_state": 8, "n_mamba_heads": 4, "vocab_size": 64})");
}

std::string mixture(int64_t hidden) {
  return R"({"model_type": "gpt_oss", "hidden_size": )" + std::to_string(hidden) +
         R"(, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 16, "vocab_size": 128, "max_position_embeddings": 64, "num_local_experts": 4,
             "num_experts_per_tok": 2, "tie_word_embeddings": false})";
}

TEST(InitModel, Mxfp4IsThe16BitModelWithItsExpertsEncoded) {
  const test::TemporaryDirectory folder;
  write_file_atomically(folder.path() / "config.json", mixture(64));
  InitRequest request{.config = folder.path() / "config.json", .out = folder.path() / "dense", .seed = 3};
  init_model(request);
  request.out = folder.path() / "made";
  request.dtype = "mxfp4";
  init_model(request);
  const CheckpointDir dense(folder.path() / "dense"), made(folder.path() / "made");
  MemoryPool pool;
  for (const std::string& name : dense.names()) {
    const Tensor x = dense.at(name);
    if (x.rank() != 3) {
      ASSERT_TRUE(made.contains(name)) << name;
      EXPECT_TRUE(std::equal(x.raw(), x.raw() + x.bytes(), made.at(name).raw())) << name;
      continue;
    }
    EXPECT_FALSE(made.contains(name)) << name;
    const int64_t in = x.dim(1), out = x.dim(2);  // stored [experts, in, out]
    Tensor codes = Tensor::empty(pool, {out, in / 2}, DType::u8),
           scales = Tensor::empty(pool, {out, in / 32}, DType::u8);
    Tensor rows = Tensor::empty(pool, {out, in}, DType::f32);
    for (int64_t e = 0; e < x.dim(0); ++e) {
      for (int64_t i = 0; i < in * out; ++i) {
        rows.data<float>()[i % out * in + i / out] = static_cast<float>(x.data<const bf16>()[e * in * out + i]);
      }
      encode_mxfp4(rows, codes, scales);
      const std::byte* packed = made.at(mxfp4_blocks_name(name)).raw() + e * static_cast<int64_t>(codes.bytes());
      EXPECT_TRUE(std::equal(codes.raw(), codes.raw() + codes.bytes(), packed)) << name << " " << e;
    }
  }
  LocalRank rank;
  const Decoder model = load_decoder(folder.path() / "made", rank.context(), load_quantized(rank.context()));
  EXPECT_EQ(model.config().experts->experts, 4);
}

TEST(InitModel, ModelsWhoseExpertsCannotBeInMxfp4AreRefused) {
  const test::TemporaryDirectory folder;
  const std::string config = folder.path() / "config.json";
  const InitRequest request{.config = config, .out = folder.path() / "made", .dtype = "mxfp4"};
  write_file_atomically(config, R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
      "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128})");
  EXPECT_THAT(test::error_of<InputError>([&] { init_model(request); }), ::testing::HasSubstr("use nf4"));
  write_file_atomically(config, mixture(72));
  EXPECT_THAT(test::error_of<InputError>([&] { init_model(request); }), ::testing::HasSubstr("experts.gate_up_proj"));
  EXPECT_FALSE(std::filesystem::exists(request.out));
}

}  // namespace
}  // namespace nibble
