#include "nibble/core/models/shared_modules.h"

#include <gmock/gmock.h>

#include <set>

#include "nibble/core/models/families/families.h"
#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using namespace nibble::test;
using ::testing::HasSubstr;

nlohmann::json zamba2() {
  return {{"model_type", "zamba2"},  {"hidden_size", 8},
          {"num_hidden_layers", 4},  {"layers_block_type", {"mamba", "hybrid", "hybrid", "hybrid"}},
          {"num_mem_blocks", 2},     {"num_attention_heads", 2},
          {"intermediate_size", 12}, {"adapter_rank", 2},
          {"mamba_d_state", 4},      {"n_mamba_heads", 4},
          {"vocab_size", 17}};
}

DecoderConfig config_of(const nlohmann::json& config) { return parse_decoder_config(config.dump(), "test"); }

// Layers 1 and 3 share a block; layer 2 has the other one alone.
TEST(SharedModules, HaveTheNamesOfTheFirstLayerThatHasThem) {
  const DecoderConfig config = config_of(zamba2());
  EXPECT_EQ(name_in_first_layer(config, "model.layers.3.shared_transformer.self_attn.q_proj.weight"),
            "model.layers.1.shared_transformer.self_attn.q_proj.weight");
  EXPECT_EQ(first_layer_of_block(config, "model.layers.1.shared_transformer.self_attn.q_proj"), 1);
  for (const char* name : {"model.layers.2.shared_transformer.self_attn.q_proj", "model.layers.3.linear",
                           "model.layers.9.shared_transformer.x", "model.layers.3", "model.embed_tokens.weight"}) {
    EXPECT_EQ(first_layer_of_block(config, name), -1) << name;
    EXPECT_EQ(name_in_first_layer(config, name), name);
  }
}

TEST(SharedModules, AreOneParameterForSeveralLinears) {
  Rank rank;
  const DecoderConfig config = config_of(zamba2());
  Decoder decoder = random_decoder(config, 1, rank.context());
  std::multiset<std::string> parameters, linears;
  std::map<std::string, const Parameter*> weights;
  decoder.visit([&](Parameter& parameter) { parameters.insert(parameter.name); });
  decoder.visit_linears([&](Linear& linear) {
    linears.insert(linear.name());
    weights[linear.name()] = linear.weight().parameter();
  });
  const auto of = [](int layer) {
    return "model.layers." + std::to_string(layer) + ".shared_transformer.feed_forward.";
  };
  EXPECT_EQ(parameters.count(of(1) + "down_proj.weight"), 1u);
  EXPECT_EQ(parameters.count(of(3) + "down_proj.weight"), 0u);
  EXPECT_EQ(parameters.count("model.layers.1.shared_transformer.input_layernorm.weight"), 1u);
  EXPECT_EQ(linears.count(of(3) + "down_proj"), 1u);
  EXPECT_EQ(weights.at(of(3) + "down_proj"), weights.at(of(1) + "down_proj"));
  EXPECT_NE(weights.at(of(2) + "down_proj"), weights.at(of(1) + "down_proj"));
}

class SharedFiles : public ::testing::Test {
 protected:
  SharedFiles() {
    write_bytes(directory_ / "config.json", zamba2().dump());
    Decoder decoder = random_decoder(config_of(zamba2()), 5, rank_.context());
    for (const NamedTensor& tensor : state_dict(decoder)) tensors_.emplace_back(tensor.name, tensor.value);
  }
  void load(const std::string& further, const Tensor& value) {
    auto tensors = tensors_;
    tensors.emplace_back(further, value);
    write_safetensors(directory_ / "model.safetensors", tensors);
    load_decoder(directory_.path(), rank_.context());
  }
  Tensor find(const std::string& name) {
    return std::ranges::find(tensors_, name, &std::pair<std::string, Tensor>::first)->second;
  }

  Rank rank_;
  TemporaryDirectory directory_;
  std::vector<std::pair<std::string, Tensor>> tensors_;
};

// Transformers parts layers whose copies differ; no option of config.json says so.
TEST_F(SharedFiles, MayNameABlockInEveryLayerIfItIsTheSame) {
  const std::string own = "model.layers.3.shared_transformer.self_attn.q_proj.weight";
  const Tensor first = find("model.layers.1.shared_transformer.self_attn.q_proj.weight");
  EXPECT_NO_THROW(load(own, first));
  EXPECT_THAT(
      error_of<InputError>([&] { load(own, find("model.layers.1.shared_transformer.self_attn.k_proj.weight")); }),
      HasSubstr("differs from model.layers.1.shared_transformer.self_attn.q_proj.weight"));
  EXPECT_THAT(error_of<InputError>([&] { load("model.layers.3.shared_transformer.x", first); }),
              HasSubstr("does not account for"));
}

// Transformers ties nothing, no blocks either, where tie_word_embeddings is false.
TEST(Zamba2, ModelsWithAHeadOfTheirOwnShareNoBlocks) {
  nlohmann::json file = zamba2();
  EXPECT_TRUE(shares_blocks(config_of(file)));
  file["tie_word_embeddings"] = false;
  const DecoderConfig config = config_of(file);
  EXPECT_FALSE(shares_blocks(config));
  EXPECT_TRUE(config.has_shared_blocks());  // layers have one each
  Rank rank;
  Decoder decoder = random_decoder(config, 1, rank.context());
  std::set<std::string> names;
  for (const NamedTensor& tensor : state_dict(decoder)) names.insert(tensor.name);
  for (const char* layer : {"1", "3"}) {
    const std::string name = "model.layers." + std::string(layer) + ".shared_transformer.feed_forward.";
    EXPECT_TRUE(names.contains(name + "down_proj.weight"));
    EXPECT_TRUE(names.contains(name + "gate_up_proj_adapter_list.0.0.weight"));
    EXPECT_FALSE(names.contains(name + "gate_up_proj_adapter_list.1.0.weight"));
  }
}

TEST(Zamba2, ConfigurationsAreReadAsTransformersReadsThem) {
  nlohmann::json config = zamba2();
  const DecoderConfig read = config_of(config);
  EXPECT_EQ(read.head_size, 8);  // of twice the width
  EXPECT_FLOAT_EQ(read.attention_scale, 0.5f);
  EXPECT_TRUE(read.tied_head);
  EXPECT_TRUE(read.rope.empty());
  EXPECT_EQ(read.layer[3].block_of, 1);
  config.erase("layers_block_type");
  EXPECT_THAT(error_of<InputError>([&] { config_of(config); }), HasSubstr("layers_block_type is missing"));
  config["num_hidden_layers"] = 54;
  EXPECT_EQ(config_of(config).layer[47].block_of, 12);
  config.update({{"use_shared_attention_adapter", true}, {"num_key_value_heads", 1}});
  EXPECT_THAT(error_of<InputError>([&] { config_of(config); }),
              HasSubstr("num_key_value_heads is not num_attention_heads"));
  config = zamba2();
  config["n_mamba_heads"] = 3;
  EXPECT_THAT(error_of<InputError>([&] { config_of(config); }), HasSubstr("n_mamba_heads is 3"));
}

}  // namespace
}  // namespace nibble
