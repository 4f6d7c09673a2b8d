#include "nibble/quant/quantization_config.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "nibble/core/io/json/json_file.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using test::error_of;
using ::testing::HasSubstr;

TEST(QuantizationConfig, OfRealModelsIsReadAndWrittenTheSame) {
  for (const char* name : {"config-bnb-prequantised/config.json", "stories260K-bnb-nf4-dq/config.json",
                           "oracle-peft/qlora-nf4-dq/base-4bit/config.json"}) {
    NIBBLE_ASSET_OR_SKIP(asset, name);
    const nlohmann::json config = read_json_file(asset);
    const auto read = read_quantization_config(config, "config.json");
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->type, QuantType::nf4);
    EXPECT_TRUE(read->double_quant);
    EXPECT_FALSE(read->skip_modules.has_value());
    EXPECT_EQ(quantization_config_json(*read), config["quantization_config"]);
  }
}

TEST(QuantizationConfig, AbsentValuesAreTheDefaultsOfTransformers) {
  EXPECT_FALSE(read_quantization_config({{"model_type", "llama"}}, "c"));
  EXPECT_FALSE(read_quantization_config({{"quantization_config", nullptr}}, "c"));
  const auto read = read_quantization_config({{"quantization_config", {{"load_in_4bit", true}}}}, "c");
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->type, QuantType::fp4);
  EXPECT_FALSE(read->double_quant);
  EXPECT_EQ(read->compute_dtype, "float32");
}

TEST(QuantizationConfig, OtherMethodsAndWrongValuesAreRefused) {
  const auto refusal = [](const nlohmann::json& value) {
    return error_of<InputError>([&] { read_quantization_config({{"quantization_config", value}}, "config.json"); });
  };
  EXPECT_THAT(refusal({{"quant_method", "gptq"}}), HasSubstr("config.json: the model is quantized by gptq"));
  EXPECT_THAT(refusal({{"load_in_8bit", true}}), HasSubstr("quantized to 8 bits"));
  EXPECT_THAT(refusal({{"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf5"}}), HasSubstr("neither nf4 nor fp4"));
  EXPECT_THAT(refusal({{"load_in_4bit", 1}}), HasSubstr("load_in_4bit is neither true nor false"));
  EXPECT_THAT(refusal({{"load_in_4bit", true}, {"llm_int8_skip_modules", "a"}}), HasSubstr("is no list"));
  EXPECT_THAT(refusal(3), HasSubstr("is no object"));
}

TEST(SkipRule, DefaultIsTheHeadAndAnExplicitListReplacesIt) {
  EXPECT_TRUE(SkipRule(std::nullopt, {"lm_head"}).skips("lm_head"));
  EXPECT_FALSE(SkipRule(std::nullopt, {"lm_head"}).skips("model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(SkipRule(std::vector<std::string>{"gate_proj"}, {"lm_head"}).skips("lm_head"));
}

TEST(SkipRule, MatchesFromTheStartUpToADotOrAsASuffix) {
  const auto skips = [](const std::string& entry, const std::string& module) {
    return SkipRule(std::vector<std::string>{entry}, {}).skips(module);
  };
  EXPECT_TRUE(skips("model.layers.1", "model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(skips("model.layers.1", "model.layers.11.mlp.up_proj"));
  EXPECT_FALSE(skips("layers.1", "model.layers.1.mlp.up_proj"));
  EXPECT_TRUE(skips("gate_proj", "model.layers.0.mlp.gate_proj"));
  EXPECT_TRUE(skips("proj", "model.layers.0.mlp.gate_proj"));
  EXPECT_TRUE(skips("model.layers.[02]", "model.layers.2.mlp.gate_proj"));
  EXPECT_TRUE(skips("model.layers.*", "model.layers.11.attn"));
  EXPECT_FALSE(skips("mlp.gate", "mlp.gate_proj"));
}

}  // namespace
}  // namespace nibble
