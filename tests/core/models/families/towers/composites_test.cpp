#include "nibble/core/models/families/towers/composites.h"

#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>

#include "nibble/core/models/families/families.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

json small_text() {
  return {{"hidden_size", 64},        {"intermediate_size", 172}, {"num_hidden_layers", 2},
          {"num_attention_heads", 8}, {"num_key_value_heads", 2}, {"vocab_size", 512}};
}

json around(const std::string& type, json text) { return {{"model_type", type}, {"text_config", std::move(text)}}; }

DecoderConfig read_whole(const json& config, const std::map<std::string, Shape>& files = {}) {
  return parse_decoder_config(config.dump(), "dir/config.json", [&](const std::string& name) -> std::optional<Shape> {
    const auto found = files.find(name);
    return found == files.end() ? std::nullopt : std::optional(found->second);
  });
}

// Published ones have no text_config and the names of Qwen2 beside "visual."
TEST(Composites, Qwen25VlIsReadAsPublishedAndAsSaved) {
  for (const std::string type : {"qwen2_vl", "qwen2_5_vl"}) {
    json published = small_text();
    published["model_type"] = type;
    published["rope_theta"] = 1e6;
    published["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {2, 1, 1}}};
    published["vision_config"] = {{"hidden_size", 7}};
    json text = small_text();
    text["model_type"] = type + "_text";
    text["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}, {"mrope_section", {2, 1, 1}}};
    const DecoderConfig flat = read_whole(published, {{"model.embed_tokens.weight", {512, 64}}});
    const DecoderConfig saved =
        read_whole(around(type, text), {{"model.language_model.embed_tokens.weight", {512, 64}}});
    EXPECT_EQ(flat.names.layers, "model.layers.");
    EXPECT_EQ(flat.file_prefix, "model.");
    EXPECT_EQ(flat.adapter_prefix, "model.language_model.");
    EXPECT_EQ(saved.names.layers, "model.language_model.layers.");
    EXPECT_EQ(saved.file_prefix, "");
    EXPECT_EQ(read_whole(published).names.layers, saved.names.layers);
    for (const DecoderConfig& config : {flat, saved}) {
      EXPECT_EQ(config.model_type, type);
      EXPECT_EQ(config.width, 64);
      EXPECT_TRUE(config.qkv_bias);
      EXPECT_EQ(config.rope.at(0), (RopeConfig{.size = 8, .base = 1e6}));
      EXPECT_FLOAT_EQ(config.norm.eps, 1e-5f);
      EXPECT_THAT(config.towers, Contains("model.visual."));
    }
  }
}

TEST(Composites, WindowsOfQwen25VlBeginWhereItsClassSays) {
  json text = small_text();
  text["use_sliding_window"] = true;
  text["num_hidden_layers"] = 81;
  const DecoderConfig config = read_whole(around("qwen2_5_vl", text));
  EXPECT_EQ(config.layer.at(79).window, 0);
  EXPECT_EQ(config.layer.at(80).window, 4096);
}

TEST(Composites, ExpertsOfQwen3VlAreTransposedWhereTheFilesHaveThemSo) {
  json text = small_text();
  text["num_experts"] = 4;
  text["num_experts_per_tok"] = 2;
  text["moe_intermediate_size"] = 12;
  const std::string experts = "model.language_model.layers.0.mlp.experts.";
  const auto transposed = [&](const Shape& gate_up, const Shape& down) {
    const DecoderConfig config =
        read_whole(around("qwen3_vl_moe", text), {{experts + "gate_up_proj", gate_up}, {experts + "down_proj", down}});
    EXPECT_EQ(config.names.block.experts.fused_down, "mlp.experts.down_proj");
    return config.experts.value().transposed;
  };
  EXPECT_FALSE(transposed({4, 24, 64}, {4, 64, 12}));
  EXPECT_TRUE(transposed({4, 64, 24}, {4, 12, 64}));
  EXPECT_FALSE(read_whole(around("qwen3_vl_moe", text)).experts.value().transposed);
}

TEST(Composites, TheTextOfGlm45VIsGlm45WithBiases) {
  json text = small_text();
  text["n_routed_experts"] = 4;
  text["num_experts_per_tok"] = 2;
  text["moe_intermediate_size"] = 12;
  text["use_qk_norm"] = true;  // nothing in Transformers reads it
  const DecoderConfig config = read_whole(around("glm4v_moe", text));
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.qk_norm);
  EXPECT_EQ(config.rope.at(0).size, 4);
  EXPECT_EQ(config.experts.value().routing.score, ops::RouterScore::sigmoid);
}

TEST(Composites, MistralSmall4IsInsideMistral3) {
  json text = small_text();
  text["model_type"] = "mistral4";
  text["n_routed_experts"] = 4;
  text["num_experts_per_tok"] = 2;
  for (const char* key :
       {"moe_intermediate_size", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})
    text[key] = 8;
  const DecoderConfig config = read_whole(around("mistral3", text));
  EXPECT_EQ(config.family, "mistral4");
  EXPECT_EQ(config.names.layers, "model.language_model.layers.");
  EXPECT_TRUE(config.layer.at(0).scaled_queries);
}

// As Transformers, where the class of the whole says that they are tied and its file does not.
TEST(Composites, TheHeadIsTheEmbeddingWhereFilesHaveNone) {
  json text = small_text();
  text["model_type"] = "qwen2";
  const std::string embedding = "model.language_model.embed_tokens.weight", head = "lm_head.weight";
  json whole = around("internvl", text);
  EXPECT_TRUE(read_whole(whole, {{embedding, {512, 64}}}).tied_head);
  EXPECT_FALSE(read_whole(whole, {{embedding, {512, 64}}, {head, {512, 64}}}).tied_head);
  whole["tie_word_embeddings"] = false;
  EXPECT_FALSE(read_whole(whole, {{embedding, {512, 64}}}).tied_head);
  EXPECT_FALSE(read_whole(around("qwen3_vl", small_text()), {{embedding, {512, 64}}}).tied_head);
}

TEST(Composites, ATextThatIsNotOursIsRefusedByItsName) {
  json text = small_text();
  text["model_type"] = "qwen9_next";
  const auto refusal = [](const json& config) { return test::error_of<InputError>([&] { read_whole(config); }); };
  EXPECT_THAT(refusal(around("internvl", text)), AllOf(HasSubstr("qwen9_next"), HasSubstr("known: ")));
  text["model_type"] = "recurrent_gemma";
  EXPECT_THAT(refusal(around("internvl", text)), HasSubstr("RG-LRU"));
}

}  // namespace
}  // namespace nibble
