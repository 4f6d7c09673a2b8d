// The worked example of CONTRIBUTING.md, "A model family": Llama with another activation.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/core/models/families/families.h"
#include "nibble/tests/core/models/golden.h"

namespace nibble {
namespace {

using namespace nibble::test;

#define NIBBLE_TEXT(...) #__VA_ARGS__
#define NIBBLE_EXPANDED_TEXT(...) NIBBLE_TEXT(__VA_ARGS__)
#define NIBBLE_ROW \
  { .model_type = "llamarelu", .architecture = "LlamaReluForCausalLM", .activation = "relu" }

const nlohmann::json kConfig = {{"hidden_size", 16},        {"intermediate_size", 40}, {"num_hidden_layers", 2},
                                {"num_attention_heads", 4}, {"vocab_size", 23},        {"initializer_range", 0.5}};

std::vector<float> logits_of(const DecoderConfig& config) {
  Rank rank;
  Decoder decoder = random_decoder(config, 1, rank.context());
  const std::vector<Sample> samples = {{.ids = {3, 1, 4, 15, 9, 2, 6}, .labels = {3, 1, 4, 15, 9, 2, 6}}};
  return all_logits(decoder, make_batch(samples, rank.context().pool), rank.step());
}

TEST(NewFamily, ARowIsAllThatLlamaWithAnotherActivationNeeds) {
  const Family family = NIBBLE_ROW;
  const std::vector<float> own = logits_of(parse_decoder_config(kConfig.dump(), "config.json", family));
  nlohmann::json llama = kConfig;
  llama["model_type"] = "llama";
  EXPECT_NE(own, logits_of(parse_decoder_config(llama.dump(), "config.json")));
  llama["hidden_act"] = "relu";
  EXPECT_EQ(own, logits_of(parse_decoder_config(llama.dump(), "config.json")));
}

TEST(NewFamily, AFileCountsBeforeTheRowUnlessTheRowDoesNotLookForIt) {
  nlohmann::json silu = kConfig;
  silu["hidden_act"] = "silu";
  const auto activation = [&](const Family& family) {
    return parse_decoder_config(silu.dump(), "config.json", family).activation;
  };
  Family always = NIBBLE_ROW;
  EXPECT_EQ(activation(always), ops::Activation::silu);
  always.keys = {.activation = ""};
  EXPECT_EQ(activation(always), ops::Activation::relu);
}

TEST(NewFamily, TheRowIsThatOfTheDocument) {
  std::ifstream file(std::string(kSourceDir) + "/CONTRIBUTING.md");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::string row = NIBBLE_EXPANDED_TEXT(NIBBLE_ROW);  // "{ .model_type = ... }"
  row = "\n{" + row.substr(2, row.size() - 4) + "},\n";
  EXPECT_NE(text.find(row), std::string::npos) << row;
}

TEST(NewFamily, TablesOfDenseFamiliesHoldWhatTheirNamesSay) {
  for (const Family& family : rms_norm_families()) {
    EXPECT_TRUE(family.norm.kind == NormKind::rms && family.rope != RopeRule::none) << family.model_type;
  }
  for (const Family& family : layer_norm_families()) {
    EXPECT_TRUE(family.norm.kind == NormKind::layer && family.rope != RopeRule::none) << family.model_type;
  }
  for (const Family& family : without_rope_families()) EXPECT_EQ(family.rope, RopeRule::none) << family.model_type;
}

}  // namespace
}  // namespace nibble
