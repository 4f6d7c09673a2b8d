// Models in 8-bit floats: everything is as with the same weights in bf16.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/io/hub/fp8_tensor.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/quant/dequantized_source.h"
#include "nibble/quant/load_quantized.h"
#include "nibble/quant/quantization_config.h"
#include "nibble/quant/quantize_model.h"
#include "nibble/recipes/plan/plan_job.h"
#include "nibble/recipes/preferences/reference_model.h"
#include "nibble/recipes/reinforcement/value_model.h"
#include "nibble/recipes/train.h"
#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/core/models/mixtures.h"

namespace nibble {
namespace {

using namespace nibble::test;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kPublished = R"(, "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
    "quant_method": "fp8", "weight_block_size": [128, 128]})";

// A mixture with all its Linears but routers and head in 8-bit floats, and beside it the same one in bf16.
class Fp8Model : public ::testing::Test {
 protected:
  Fp8Model() {
    Decoder decoder = random_decoder(parse_decoder_config(mixture_config("qwen3_moe"), "test"), 3, rank.context());
    uint32_t state = 1;
    for (const NamedTensor& tensor : state_dict(decoder)) {
      if (!tensor.name.ends_with("_proj.weight")) {
        tensors.emplace_back(tensor.name, tensor.value);
        continue;
      }
      Tensor codes = Tensor::empty(pool, tensor.value.shape(), DType::f8_e4m3, "codes");
      for (int64_t i = 0; i < codes.numel(); ++i) {
        state = state * 1664525 + 1013904223;
        codes.mutable_raw()[i] = static_cast<std::byte>((state >> 24) & 0xf7);  // 0x7f and 0xff are no numbers
      }
      tensors.emplace_back(tensor.name, codes);
      tensors.emplace_back(tensor.name + "_scale_inv", Tensor::from<float>(pool, {1, 1}, std::vector<float>{0.0007f}));
    }
    tensors.emplace_back("model.layers.0.self_attn.q_proj.activation_scale", Tensor::zeros(pool, {1}, DType::f32));
    write("fp8", kPublished);
    const CheckpointDir checkpoint(directory / "fp8");
    tensors.clear();
    for (const std::string& name : checkpoint.names()) {
      if (fp8_weight_of(checkpoint, name).empty()) tensors.emplace_back(name, read_plain(checkpoint, name, pool));
    }
    write("plain", "");
  }

  void write(const std::string& folder, const std::string& more) {
    std::filesystem::create_directories(directory / folder);
    write_safetensors(directory / folder / "model.safetensors", tensors);
    write_bytes(directory / folder / "config.json", mixture_config("qwen3_moe", more));
  }

  std::vector<float> logits(const std::string& folder, const std::optional<QuantizeOnLoad>& quantize = std::nullopt) {
    Decoder decoder = load_decoder(directory / folder, rank.context(), load_quantized(rank.context(), quantize));
    const Sample sample{.ids = {1, 5, 9, 20, 33, 2, 7, 40, 11, 3}, .labels = {}};
    return all_logits(decoder, make_batch({&sample, 1}, pool), rank.step());
  }

  Rank rank;
  MemoryPool& pool = rank.context().pool;
  TemporaryDirectory directory;
  std::vector<std::pair<std::string, Tensor>> tensors;
};

TEST_F(Fp8Model, ComputesAsItDoesInBf16) {
  EXPECT_EQ(logits("fp8"), logits("plain"));
  EXPECT_EQ(logits("fp8", QuantizeOnLoad{}), logits("plain", QuantizeOnLoad{}));
  EXPECT_FALSE(is_four_bit(directory / "fp8"));
}

TEST_F(Fp8Model, IsQuantizedAsItIsInBf16) {
  for (const char* folder : {"fp8", "plain"}) {
    const std::string out = std::string(folder) + "-nf4";
    quantize_model(directory / folder, directory / out, {}, rank.context());
  }
  EXPECT_TRUE(read_bytes(directory / "fp8-nf4/model.safetensors") ==
              read_bytes(directory / "plain-nf4/model.safetensors"));
  EXPECT_EQ(read_json_file(directory / "fp8-nf4/config.json"), read_json_file(directory / "plain-nf4/config.json"));
}

TEST_F(Fp8Model, IsReadByRowsAsItIsInBf16) {
  const CheckpointDir fp8(directory / "fp8"), plain(directory / "plain");
  const TensorSource a = dequantized_source(fp8, pool), b = dequantized_source(plain, pool);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const TensorSpec &ours = a.tensors[i], &theirs = b.tensors[i];
    EXPECT_EQ(ours.name, theirs.name);
    EXPECT_EQ(ours.shape, theirs.shape) << ours.name;
    EXPECT_EQ(ours.dtype, theirs.dtype) << ours.name;
    const int64_t last = ours.shape[0] - 1;
    const Tensor got = a.rows(ours.name, last, last + 1, pool), wanted = b.rows(ours.name, last, last + 1, pool);
    ASSERT_EQ(got.bytes(), wanted.bytes()) << ours.name;
    EXPECT_EQ(std::memcmp(got.raw(), wanted.raw(), got.bytes()), 0) << ours.name;
  }
}

// quantize holds for it as for the policy, and not for a directory in 4 bits.
TEST_F(Fp8Model, IsPutIn4BitsAsAReferenceAndAsAValueModel) {
  quantize_model(directory / "fp8", directory / "nf4", {}, rank.context());
  for (const char* folder : {"fp8", "nf4"}) {
    Recipe recipe;
    recipe.model.quantize = QuantType::nf4;
    recipe.objective.reference = recipe.objective.value_model = (directory / folder).string();
    EXPECT_EQ(reference_base(recipe).quantize.has_value(), folder == std::string("fp8"));
    EXPECT_EQ(value_base(recipe).quantize.has_value(), folder == std::string("fp8"));
  }
}

// Frozen, it is in memory in bf16, not mapped.
TEST_F(Fp8Model, IsPlannedAndTrainedAsItIsInBf16) {
  write_bytes(directory / "rows.jsonl", R"({"input_ids": [1, 5, 9, 20, 33, 2], "labels": [1, 5, 9, 20, 33, 2]})");
  const auto recipe = [&](const std::string& folder, const std::string& more) {
    const nlohmann::json whole = {
        {"model", {{"path", (directory / folder).string()}, {"compute_dtype", "f32"}}},
        {"data", {{"train", (directory / "rows.jsonl").string()}, {"format", "tokens"}, {"pack", false}}},
        {"train", {{"steps", 1}, {"microbatch_size", 1}}},
        {"output", {{"dir", (directory / (folder + "-run")).string()}}}};
    nlohmann::json result = whole;
    result.merge_patch(nlohmann::json::parse(more));
    return parse_recipe(result.dump(), "test");
  };
  for (const char* more : {R"({"adapter": {"target_modules": ["q_proj"]}})",
                           R"({"adapter": {"target_modules": ["q_proj"]}, "model": {"quantize": "nf4"}})"}) {
    EXPECT_EQ(plan_job(recipe("fp8", more)).model.group(0).frozen_bytes,
              plan_job(recipe("plain", more)).model.group(0).frozen_bytes);
  }
  for (const char* folder : {"fp8", "plain"}) train(recipe(folder, "{}"), rank.context(), Observer());
  EXPECT_TRUE(read_bytes(directory / "fp8-run/model/model.safetensors") ==
              read_bytes(directory / "plain-run/model/model.safetensors"));
  EXPECT_EQ(read_json_file(directory / "fp8-run/model/config.json"),
            read_json_file(directory / "plain-run/model/config.json"));
}

TEST_F(Fp8Model, OtherBlocksAndMethodsAreRefusedByConfigJson) {
  const auto refusal = [&](const std::string& more) {
    write_bytes(directory / "fp8/config.json", mixture_config("qwen3_moe", more));
    return error_of<InputError>([&] { logits("fp8"); });
  };
  EXPECT_THAT(
      refusal(R"(, "quantization_config": {"quant_method": "fp8", "weight_block_size": [1, 32]})"),
      AllOf(HasSubstr("config.json: quantization_config.weight_block_size is not [128, 128]"), HasSubstr("bf16")));
  EXPECT_THAT(refusal(R"(, "text_config": {"quantization_config": {"quant_method": "compressed-tensors"}})"),
              HasSubstr("the model is quantized by compressed-tensors, which nibble cannot read"));
  EXPECT_FALSE(read_quantization_config({{"quantization_config", {{"quant_method", "fp8"}}}}, "c"));
}

}  // namespace
}  // namespace nibble
