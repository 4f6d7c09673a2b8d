#include "nibble/core/models/decoder_config.h"

#include <gmock/gmock.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "nibble/core/models/families/families.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using nlohmann::json;
using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 64},
          {"intermediate_size", 172},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 8},
          {"vocab_size", 512}};
}

json with(json config, const std::string& key, json value) {
  config[key] = std::move(value);
  return config;
}

DecoderConfig parse(const json& config) { return parse_decoder_config(config.dump(), "dir/config.json"); }

std::string error(const json& config) {
  return error_of<InputError>([&] { parse(config); });
}

TEST(DecoderConfig, AbsentKeysHaveTheFamilysDefaults) {
  const DecoderConfig config = parse(llama());
  EXPECT_EQ(config.kv_heads, 8);
  EXPECT_EQ(config.head_size, 8);
  EXPECT_EQ(config.max_positions, 2048);
  EXPECT_EQ(config.rope.at(0), (RopeConfig{.size = 8, .base = 10000}));
  EXPECT_FLOAT_EQ(config.norm.eps, 1e-6f);
  EXPECT_FALSE(config.tied_head);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_EQ(config.bos_id, -1);
  EXPECT_TRUE(config.eos_ids.empty());
  for (const LayerConfig& layer : config.layer) EXPECT_EQ(layer.window, 0);
}

TEST(DecoderConfig, BothStylesOfRopeAreRead) {
  json old_style = with(llama(), "rope_theta", 500000.0);
  old_style["rope_scaling"] = {{"rope_type", "llama3"},
                               {"factor", 8.0},
                               {"low_freq_factor", 1.0},
                               {"high_freq_factor", 4.0},
                               {"original_max_position_embeddings", 64}};
  json new_style = llama();
  new_style["rope_parameters"] = old_style["rope_scaling"];
  new_style["rope_parameters"]["rope_theta"] = 500000.0;
  new_style["dtype"] = "float32";
  const RopeConfig wanted{.size = 8,
                          .base = 500000,
                          .scaling = RopeScaling::llama3,
                          .factor = 8,
                          .low_freq_factor = 1,
                          .high_freq_factor = 4,
                          .original_max_positions = 64};
  EXPECT_EQ(parse(old_style).rope.at(0), wanted);
  EXPECT_EQ(parse(new_style).rope.at(0), wanted);
  json linear = llama();
  linear["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(parse(linear).rope.at(0), (RopeConfig{.size = 8, .scaling = RopeScaling::linear, .factor = 2}));
  EXPECT_EQ(parse(with(llama(), "rope_scaling", nullptr)).rope.at(0).scaling, RopeScaling::none);
}

// As Llama 4 is published.
TEST(DecoderConfig, BetweenEqualFactorsOfLlama3NothingIsBlended) {
  json llama4 = llama();
  llama4["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 16.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 1.0},
                            {"original_max_position_embeddings", 64}};
  const RopeConfig rope = parse(llama4).rope.at(0), plain{.size = rope.size, .base = rope.base};
  const std::vector<float> scaled = rope_frequencies(rope), whole = rope_frequencies(plain);
  EXPECT_THAT(scaled, ElementsAre(whole[0], whole[1], whole[2] / 16, whole[3] / 16));
  llama4["rope_scaling"]["low_freq_factor"] = 1.5;
  EXPECT_THAT(error(llama4), HasSubstr("low_freq_factor must not be larger than high_freq_factor"));
}

// What the configuration classes of Transformers 5.23 say when the file does not.
TEST(DecoderConfig, RopeThatTheFileLeavesOutIsTheFamilys) {
  const std::vector<std::pair<std::string, std::string>> classes = {
      {"gpt_oss", R"({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                      "original_max_position_embeddings": 4096, "rope_theta": 150000.0})"},
      {"apertus", R"({"rope_type": "llama3", "rope_theta": 12000000.0, "factor": 8.0,
                      "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0})"},
      {"cwm", R"({"rope_theta": 1000000.0, "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                  "original_max_position_embeddings": 8192, "rope_type": "llama3"})"},
      {"ministral3", R"({"type": "yarn", "rope_theta": 1000000.0, "factor": 16.0,
                         "original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0,
                         "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1})"},
      {"mistral4", R"({"type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "original_max_position_embeddings": 8192,
                       "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0,
                       "llama_4_scaling_beta": 0.1, "partial_rotary_factor": 0.5})"}};
  for (const auto& [type, rope] : classes) {
    json left_out = with(llama(), "model_type", type);
    left_out.erase("architectures");
    left_out["head_dim"] = 16;
    left_out["num_local_experts"] = 8;
    left_out["num_experts_per_tok"] = 2;
    for (const char* key :
         {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "moe_intermediate_size"})
      left_out[key] = 8;
    const json said = with(left_out, "rope_parameters", json::parse(rope));
    const DecoderConfig absent = parse(left_out), wanted = parse(said);
    EXPECT_EQ(absent.rope, wanted.rope) << type;
    EXPECT_NE(absent.rope.at(0).scaling, RopeScaling::none) << type;
    EXPECT_EQ(absent.query_scaling.beta, wanted.query_scaling.beta) << type;
    EXPECT_EQ(absent.query_scaling.length, wanted.query_scaling.length) << type;
    EXPECT_EQ(parse(with(left_out, "rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}})).rope.at(0).scaling,
              RopeScaling::linear)
        << type;
  }
}

json stretched(const std::string& type, json more) {
  json config = with(llama(), "max_position_embeddings", 128);
  more["rope_type"] = type;
  config["rope_scaling"] = std::move(more);
  return config;
}

// ROPE_INIT_FUNCTIONS of Transformers 5.23
TEST(DecoderConfig, StretchedRopesAreRead) {
  const RopeConfig yarn = parse(stretched("yarn", {{"factor", 4.0}, {"original_max_position_embeddings", 32}})).rope[0];
  EXPECT_EQ(yarn.original_max_positions, 32);
  EXPECT_DOUBLE_EQ(yarn.magnitude, 0.1 * std::log(4.0) + 1);
  const RopeConfig deepseek =
      parse(stretched("yarn", {{"factor", 4.0}, {"mscale", 0.7}, {"mscale_all_dim", 1.1}})).rope[0];
  EXPECT_EQ(deepseek.original_max_positions, 128);
  EXPECT_DOUBLE_EQ(deepseek.magnitude, (0.07 * std::log(4.0) + 1) / (0.11 * std::log(4.0) + 1));
  EXPECT_DOUBLE_EQ(parse(stretched("yarn", {{"factor", 4.0}, {"attention_factor", 1.5}})).rope[0].magnitude, 1.5);
  const RopeConfig dynamic = parse(stretched("dynamic", {{"factor", 2.0}})).rope[0];
  EXPECT_EQ(dynamic.original_max_positions, 128);
  EXPECT_EQ(rope_frequencies(dynamic, 128), rope_frequencies(parse(llama()).rope[0]));
  EXPECT_LT(rope_frequencies(dynamic, 200).back(), rope_frequencies(dynamic, 129).back());

  json phi = stretched("su", {{"short_factor", {1, 1, 2, 2}}, {"long_factor", {4, 4, 8, 8}}});
  phi["model_type"] = "phi3";
  phi["architectures"] = {"Phi3ForCausalLM"};
  phi["max_position_embeddings"] = 131072;
  const RopeConfig longrope = parse(phi).rope[0];
  EXPECT_EQ(longrope.scaling, RopeScaling::longrope);
  EXPECT_EQ(longrope.original_max_positions, 4096);
  EXPECT_DOUBLE_EQ(longrope.magnitude, std::sqrt(1 + std::log(32.0) / std::log(4096.0)));
  EXPECT_FLOAT_EQ(rope_frequencies(longrope, 4096)[0], 1);
  EXPECT_FLOAT_EQ(rope_frequencies(longrope, 4097)[0], 0.25);
  EXPECT_TRUE(parse(phi).cache_holds(4095, 4096));
  EXPECT_FALSE(parse(phi).cache_holds(4096, 4097));
  EXPECT_TRUE(parse(phi).cache_holds(4097, 5000));
  phi["rope_scaling"]["long_factor"].push_back(8);
  EXPECT_THAT(error(phi), AllOf(HasSubstr("rope_scaling.long_factor"), HasSubstr("5 entries for 4 pairs")));
}

// By torch 2.15 in float32: 1.0 / (10000.0 ** (torch.arange(0, 80, 2).float() / 80)); 23 and 39 are not the nearest.
TEST(DecoderConfig, FrequenciesAreRoundedAsInTransformers) {
  RopeConfig rope;
  rope.base = 10000;
  rope.size = 80;
  const std::vector<float> found = rope_frequencies(rope);
  const std::pair<size_t, float> expected[] = {
      {1, 0x1.96b23p-1f}, {5, 0x1.43d136p-2f}, {11, 0x1.455b5ap-4f}, {23, 0x1.487546p-8f}, {39, 0x1.080408p-13f}};
  for (const auto& [i, value] : expected) EXPECT_EQ(found.at(i), value) << i;
}

TEST(DecoderConfig, LayersMayDifferInRope) {
  json gemma = llama();
  gemma["model_type"] = "gemma3_text";
  gemma["architectures"] = {"Gemma3ForCausalLM"};
  gemma["sliding_window_pattern"] = 2;
  gemma["rope_local_base_freq"] = 500.0;
  gemma["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  const DecoderConfig mixed = parse(gemma);
  ASSERT_EQ(mixed.rope.size(), 2u);
  EXPECT_EQ(mixed.rope[0], (RopeConfig{.size = 256, .base = 1e6, .scaling = RopeScaling::linear, .factor = 8}));
  EXPECT_EQ(mixed.rope[1], (RopeConfig{.size = 256, .base = 500}));
  for (size_t l = 0; l < 4; ++l) EXPECT_EQ(mixed.layer[l].rotary, l % 2 == 0 ? 1 : 0);
  json smol = llama();
  smol["model_type"] = "smollm3";
  smol["architectures"] = {"SmolLM3ForCausalLM"};
  smol["no_rope_layers"] = {1, 0, 1, 0};
  const DecoderConfig nope = parse(smol);
  for (size_t l = 0; l < 4; ++l) EXPECT_EQ(nope.layer[l].rotary, l % 2 == 0 ? 0 : -1);
  json bamba = llama();
  bamba["model_type"] = "bamba";
  bamba["architectures"] = {"BambaForCausalLM"};
  bamba["mamba_n_heads"] = 2;
  bamba["partial_rotary_factor"] = 0.25;  // which Transformers overwrites
  const DecoderConfig half = parse(bamba);
  EXPECT_EQ(half.rope.at(0).size, half.head_size / 2);
}

// layer_types have the last word; without them the flag has.
TEST(DecoderConfig, WindowsOfSmolLM3FollowLayerTypes) {
  json smol = llama();
  smol["model_type"] = "smollm3";
  smol["architectures"] = {"SmolLM3ForCausalLM"};
  smol["no_rope_layers"] = {1, 0, 1, 0};
  smol["sliding_window"] = 8;
  const auto window = [&](size_t l) { return parse(smol).layer.at(l).window; };
  EXPECT_EQ(window(1), 0);
  smol["use_sliding_window"] = true;
  EXPECT_EQ(window(1), 8);
  EXPECT_EQ(window(0), 0);
  smol["use_sliding_window"] = false;
  smol["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "sliding_attention"};
  EXPECT_EQ(window(0), 8);
  EXPECT_EQ(window(1), 0);
}

TEST(DecoderConfig, KeysHaveTheSpellingsOfAllTheirWriters) {
  const json bloom = {{"model_type", "bloom"}, {"n_embed", 32},      {"num_attention_heads", 4},
                      {"n_layer", 2},          {"n_inner", nullptr}, {"vocab_size", 50}};
  const DecoderConfig config = parse(bloom);
  EXPECT_EQ(config.width, 32);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.mlp_width, 128);
  EXPECT_THAT(error(with(bloom, "num_attention_heads", "4")), HasSubstr("num_attention_heads is \"4\""));
}

std::vector<int64_t> windows(const json& config) {
  std::vector<int64_t> result;
  for (const LayerConfig& layer : parse(config).layer) result.push_back(layer.window);
  return result;
}

TEST(DecoderConfig, WindowsFollowTheFamilysRule) {
  json mistral = llama();
  mistral["model_type"] = "mistral";
  mistral["architectures"] = {"MistralForCausalLM"};
  EXPECT_THAT(windows(mistral), ElementsAre(4096, 4096, 4096, 4096));
  EXPECT_THAT(windows(with(mistral, "sliding_window", 8)), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(windows(with(mistral, "sliding_window", nullptr)), ElementsAre(0, 0, 0, 0));

  json qwen = llama();
  qwen["model_type"] = "qwen2";
  qwen["architectures"] = {"Qwen2ForCausalLM"};
  qwen["num_key_value_heads"] = 2;
  qwen["sliding_window"] = 8;
  qwen["max_window_layers"] = 3;
  EXPECT_THAT(windows(qwen), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(windows(with(qwen, "use_sliding_window", true)), ElementsAre(0, 0, 0, 8));
  json typed = with(qwen, "use_sliding_window", true);
  typed["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  EXPECT_THAT(windows(typed), ElementsAre(8, 0, 8, 0));
  EXPECT_TRUE(parse(qwen).qkv_bias);
  EXPECT_FALSE(parse(qwen).output_bias);
}

TEST(DecoderConfig, BiasKeysAndHeadSizeAreRead) {
  json config = llama();
  config["attention_bias"] = true;
  config["mlp_bias"] = true;
  config["head_dim"] = 16;
  config["num_key_value_heads"] = 2;
  config["tie_word_embeddings"] = true;
  config["eos_token_id"] = {7, 9};
  config["bos_token_id"] = 1;
  const DecoderConfig parsed = parse(config);
  EXPECT_TRUE(parsed.qkv_bias && parsed.output_bias && parsed.mlp_bias && parsed.tied_head);
  EXPECT_EQ(parsed.head_size, 16);
  EXPECT_THAT(parsed.eos_ids, ElementsAre(7, 9));
  EXPECT_EQ(parsed.bos_id, 1);
  EXPECT_EQ(parsed.attention(0).head_size, 16);
}

TEST(DecoderConfig, TypesWithoutTheirMechanismAreRefusedByIt) {
  EXPECT_THAT(
      error(with(with(llama(), "model_type", "rwkv"), "architectures", {"RwkvForCausalLM"})),
      AllOf(HasSubstr("dir/config.json: model_type \"rwkv\" needs the RWKV time mix, which nibble does not have"),
            HasSubstr("docs/models.md")));
  json unnamed = with(llama(), "architectures", {"DbrxForCausalLM"});
  unnamed.erase("model_type");
  EXPECT_THAT(error(unnamed), HasSubstr("\"DbrxForCausalLM\" needs experts stacked along rows"));
  EXPECT_THAT(
      error(with(with(llama(), "model_type", "minimax_m3_vl"), "architectures", json::array())),
      AllOf(HasSubstr("needs dense MLPs whose gates are bounded, which nibble does not have (its indexer would be "
                      "no hindrance: up to index_topk_blocks * index_block_size tokens it chooses all keys)"),
            HasSubstr("docs/models.md")));
  for (const char* type : {"axk2", "dots3_note_text", "dots3_note", "hy_v4"}) {
    EXPECT_THAT(error(with(with(llama(), "model_type", type), "architectures", json::array())),
                HasSubstr("up to index_topk tokens it chooses all keys"));
  }
}

// Published as kimi_k2 with DeepSeek V3's architecture, and with a tower as kimi_k25 around it.
TEST(DecoderConfig, KimiK2IsDeepseekV3) {
  const std::string latent = R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "TYPE", "hidden_size": 16,
      "intermediate_size": 24, "moe_intermediate_size": 6, "num_hidden_layers": 2, "num_attention_heads": 2,
      "vocab_size": 40, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
      "first_k_dense_replace": 1, "routed_scaling_factor": 2.827, "q_lora_rank": 4, "kv_lora_rank": 4,
      "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4, "rope_theta": 50000})";
  const auto text = [&](const std::string& type) {
    return json::parse(std::string(latent).replace(latent.find("TYPE"), 4, type));
  };
  const DecoderConfig kimi = parse_decoder_config(text("kimi_k2").dump(), "c");
  EXPECT_EQ(kimi.model_type, "deepseek_v3");
  EXPECT_EQ(kimi.experts.value().routing.scale, 2.827f);
  EXPECT_FALSE(kimi.layer[0].feed_forward);
  EXPECT_TRUE(kimi.layer[1].feed_forward && kimi.layer[1].mixer_attends);
  for (const char* type : {"kimi_k2", "deepseek_v3"}) {
    const json whole = {{"model_type", "kimi_k25"},
                        {"architectures", {"KimiK25ForConditionalGeneration"}},
                        {"text_config", text(type)},
                        {"tie_word_embeddings", false}};
    const DecoderConfig composite = parse_decoder_config(whole.dump(), "c");
    EXPECT_EQ(composite.model_type, "kimi_k25");
    EXPECT_EQ(composite.names.layers, "model.language_model.layers.");
    EXPECT_EQ(composite.experts.value().experts, 8);
  }
}

TEST(DecoderConfig, ExaoneIsALlamaInOtherWords) {
  const json published = {{"model_type", "exaone"},
                          {"architectures", {"ExaoneForCausalLM"}},
                          {"activation_function", "silu"},
                          {"layer_norm_epsilon", 1e-6},
                          {"num_layers", 3},
                          {"hidden_size", 64},
                          {"intermediate_size", 172},
                          {"num_attention_heads", 16},
                          {"vocab_size", 512}};
  const DecoderConfig config = parse(published);
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.kv_heads, 8);
  EXPECT_FLOAT_EQ(config.norm.eps, 1e-6f);
  EXPECT_EQ(config.rope.at(0).base, 500000);
  EXPECT_EQ(config.max_positions, 4096);
}

TEST(DecoderConfig, SarvamIsDeepseekV3InOtherWords) {
  const json published = json::parse(R"({"architectures": ["SarvamMLAForCausalLM"], "model_type": "sarvam_mla",
      "hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 6, "num_hidden_layers": 2,
      "num_attention_heads": 2, "vocab_size": 40, "num_experts": 8, "num_shared_experts": 1, "num_experts_per_tok": 2,
      "head_dim": 8, "kv_lora_rank": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4,
      "rope_scaling": {"type": "deepseek_yarn", "factor": 40, "mscale": 1, "mscale_all_dim": 1, "beta_fast": 32,
                       "beta_slow": 1, "original_max_position_embeddings": 64}})");
  const DecoderConfig config = parse(published);
  EXPECT_EQ(config.rope.at(0).scaling, RopeScaling::yarn);
  EXPECT_EQ(config.rope.at(0).size, 4);
  const ExpertsConfig& experts = config.experts.value();
  EXPECT_EQ(experts.routing.groups, 1);
  EXPECT_EQ(experts.shared_hidden, 6);
  EXPECT_FALSE(config.layer[0].feed_forward);
  EXPECT_TRUE(config.layer[1].feed_forward);
}

// Sounds and pictures are tokens too, which are read alone.
TEST(DecoderConfig, TheHeadOfApertusMayKnowFewerTokensThanTheEmbedding) {
  json text = with(llama(), "model_type", "apertus1p5_text");
  text.erase("architectures");
  const auto rows = [&](const json& said) { return parse(with(text, "output_vocab_size", said)).head_rows(); };
  EXPECT_EQ(rows(500), 500);
  EXPECT_EQ(rows(512), 512);
  EXPECT_EQ(rows(nullptr), 512);
  EXPECT_EQ(with_score_head(parse(with(text, "output_vocab_size", 500)), 2, true).head_rows(), 2);
  EXPECT_THAT(error(with(text, "output_vocab_size", 513)), HasSubstr("output_vocab_size"));
  EXPECT_THAT(error(with(with(text, "output_vocab_size", 500), "tie_word_embeddings", true)),
              HasSubstr("the head is the embedding"));
  const json whole = {{"model_type", "apertus1p5"}, {"text_config", with(text, "output_vocab_size", 500)}};
  EXPECT_EQ(parse(whole).head_rows(), 500);
  EXPECT_EQ(parse(whole).names.layers, "model.language_model.layers.");
}

TEST(DecoderConfig, TheTextOfQwen3VlIsQwen3) {
  json text = with(llama(), "model_type", "qwen3_vl_text");
  text.erase("architectures");
  text["rope_scaling"] = {{"rope_type", "default"}, {"mrope_interleaved", true}, {"mrope_section", {24, 20, 20}}};
  text["rope_theta"] = 5e6;
  const json whole = {{"model_type", "qwen3_vl"}, {"text_config", with(text, "num_key_value_heads", 2)}};
  const DecoderConfig config = parse(whole);
  EXPECT_EQ(config.names.layers, "model.language_model.layers.");
  EXPECT_EQ(config.rope.at(0), (RopeConfig{.size = 128, .base = 5e6}));
  EXPECT_EQ(config.qk_norm.value().kind, HeadNormKind::head);
  EXPECT_TRUE(has_vision_tower(config));
}

TEST(DecoderConfig, UnknownKindsAreNamedWithTheKnownOnes) {
  EXPECT_THAT(error(with(with(llama(), "model_type", "rwkv2"), "architectures", {"Rwkv2ForCausalLM"})),
              AllOf(HasSubstr("dir/config.json"), HasSubstr("rwkv2 (Rwkv2ForCausalLM)"),
                    HasSubstr("known: llama, mistral, qwen2")));
  EXPECT_THAT(error(with(llama(), "architectures", {"LlamaForTokenClassification"})),
              HasSubstr("LlamaForTokenClassification"));
  json unnamed = llama();
  unnamed.erase("model_type");
  unnamed.erase("architectures");
  EXPECT_THAT(error(unnamed), HasSubstr("neither model_type nor architectures"));
  json rope = llama();
  rope["rope_scaling"] = {{"type", "spiral"}, {"factor", 2.0}};
  EXPECT_THAT(error(rope), AllOf(HasSubstr("rope_scaling.type"), HasSubstr("spiral"), HasSubstr("default, linear")));
  EXPECT_THAT(error(with(llama(), "hidden_act", "mish")),
              AllOf(HasSubstr("hidden_act"), HasSubstr("mish"), HasSubstr("silu")));
  json qwen = llama();
  qwen["model_type"] = "qwen2";
  qwen["architectures"] = {"Qwen2ForCausalLM"};
  qwen["num_key_value_heads"] = 8;
  EXPECT_THAT(error(with(qwen, "layer_types", {"full_attention", "full_attention", "chunked", "full_attention"})),
              AllOf(HasSubstr("layer_types"), HasSubstr("chunked")));
}

TEST(DecoderConfig, SizesAreCheckedBeforeAnythingIsMade) {
  for (const std::string key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"}) {
    json missing = llama();
    missing.erase(key);
    EXPECT_THAT(error(missing), HasSubstr(key + " is missing"));
    for (const char* bad : {"0", "-4", "1099511627776", "18446744073709551615", "1.5", "\"64\"", "true"}) {
      EXPECT_THAT(error(with(llama(), key, json::parse(bad))), HasSubstr(key + " is")) << bad;
    }
  }
  EXPECT_THAT(error(with(llama(), "num_hidden_layers", 1000000000)), HasSubstr("num_hidden_layers is 1000000000"));
  EXPECT_THAT(error(with(llama(), "num_key_value_heads", 3)), HasSubstr("no multiple of num_key_value_heads"));
  EXPECT_THAT(error(with(llama(), "num_attention_heads", 7)), HasSubstr("no multiple of num_attention_heads"));
  EXPECT_THAT(error(with(llama(), "head_dim", 7)), HasSubstr("must be even"));
  EXPECT_THAT(error(with(llama(), "rms_norm_eps", -1e-5)), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(error(with(llama(), "rope_theta", 0)), HasSubstr("rope_theta"));
  EXPECT_THAT(error(with(llama(), "eos_token_id", "</s>")), HasSubstr("eos_token_id"));
  EXPECT_THAT(error(json::array({1})), HasSubstr("no JSON object"));
  json gemma3n = with(llama(), "model_type", "gemma3n_text");
  gemma3n.erase("architectures");
  gemma3n.update({{"head_dim", 8}, {"num_key_value_heads", 1}, {"hidden_activation", "gelu_pytorch_tanh"}});
  EXPECT_THAT(error(gemma3n), HasSubstr("num_kv_shared_layers is missing, and its default 15 is above 3"));
}

json bamba() {
  json config = llama();
  config["model_type"] = "bamba";
  config.erase("architectures");
  config.update({{"mamba_n_heads", 8}, {"mamba_d_state", 8}, {"attn_layer_indices", {1}}, {"num_key_value_heads", 2}});
  return config;
}

TEST(DecoderConfig, LayersMayHaveMixersOfSeveralKinds) {
  const DecoderConfig read = parse_decoder_config(bamba().dump(), "test");
  for (size_t l = 0; l < 4; ++l) EXPECT_EQ(read.layer[l].mixer != nullptr, l != 1) << l;
  json lfm2 = llama();
  lfm2.update({{"model_type", "lfm2"}, {"full_attn_idxs", {0, 3}}, {"num_key_value_heads", 2}});
  lfm2.erase("architectures");
  const DecoderConfig convolutions = parse_decoder_config(lfm2.dump(), "test");
  for (size_t l = 0; l < 4; ++l) EXPECT_EQ(convolutions.layer[l].mixer != nullptr, l == 1 || l == 2) << l;
  EXPECT_EQ(convolutions.mlp_width, 256) << "two thirds of 172, up to a multiple of 256";
  json nemotron = llama();
  nemotron.update({{"model_type", "nemotron_h"}, {"hybrid_override_pattern", "M-*M"}, {"num_key_value_heads", 2}});
  nemotron.erase("architectures");
  const DecoderConfig one_each = parse_decoder_config(nemotron.dump(), "test");
  for (size_t l = 0; l < 4; ++l) EXPECT_EQ(one_each.layer[l].has_feed_forward, l == 1) << l;
  EXPECT_THAT(error(with(nemotron, "hybrid_override_pattern", "M-*")), HasSubstr("has 3 entries for 4 layers"));
}

TEST(DecoderConfig, LimitsOfTimeStepsMayBeInfinite) {
  EXPECT_NO_THROW(parse_decoder_config(with(bamba(), "time_step_limit", {0, 2}).dump(), "test"));
  std::string published = with(bamba(), "time_step_limit", "here").dump();
  published.replace(published.find("\"here\""), 6, "[0.0, Infinity]");
  EXPECT_NO_THROW(parse_decoder_config(published, "test"));
  EXPECT_NO_THROW(
      parse_decoder_config(with(bamba(), "time_step_limit", {0.0, {{"__float__", "Infinity"}}}).dump(), "test"));
  EXPECT_THAT(error(with(bamba(), "time_step_limit", {1, 0})), HasSubstr("time_step_limit is no pair of limits"));
  EXPECT_THAT(error(with(bamba(), "time_step_limit", {0, "x"})), HasSubstr("time_step_limit holds \"x\""));
}

TEST(DecoderConfig, StateSpacesThatCannotBeAreRefused) {
  EXPECT_THAT(error(with(bamba(), "mamba_n_heads", 3)), HasSubstr("does not divide the state space's width, 128"));
  EXPECT_THAT(error(with(bamba(), "mamba_n_groups", 3)), HasSubstr("mamba_n_groups does not divide mamba_n_heads"));
  EXPECT_THAT(error(with(bamba(), "mamba_d_head", 5)), HasSubstr("mamba_d_head is 5"));
  EXPECT_THAT(error(with(bamba(), "mamba_d_conv", 0)), HasSubstr("mamba_d_conv is 0"));
  EXPECT_THAT(error(with(bamba(), "attn_layer_indices", {9})), HasSubstr("attn_layer_indices holds 9"));
}

TEST(DecoderConfig, IdsThatEndATextComeFromTheGenerationConfigIfThereIsOne) {
  const test::TemporaryDirectory directory;
  test::write_bytes(directory / "config.json", with(llama(), "eos_token_id", 2).dump());
  EXPECT_THAT(read_decoder_config(directory.path()).eos_ids, ElementsAre(2));
  test::write_bytes(directory / "generation_config.json", R"({"eos_token_id": [5, 6]})");
  EXPECT_THAT(read_decoder_config(directory.path()).eos_ids, ElementsAre(5, 6));
}

}  // namespace
}  // namespace nibble
