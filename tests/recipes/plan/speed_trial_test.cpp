#include "nibble/recipes/plan/speed_trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "nibble/core/comm/communicator.h"
#include "nibble/recipes/plan/plan_job.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using nlohmann::json;

json llama(int64_t width, int64_t hidden, int64_t layers, int64_t heads, int64_t kv_heads, int64_t vocabulary) {
  return {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"},       {"hidden_size", width},
          {"intermediate_size", hidden},           {"num_hidden_layers", layers}, {"num_attention_heads", heads},
          {"num_key_value_heads", kv_heads},       {"vocab_size", vocabulary}};
}

// A convolution in the first two layers, attention in the third, and so on.
json lfm2(int64_t layers) {
  json config = llama(1024, 6144, layers, 16, 4, 512);
  config["architectures"] = {"Lfm2ForCausalLM"};
  config["model_type"] = "lfm2";
  config["conv_L_cache"] = 3;
  for (int64_t l = 0; l < layers; ++l) config["layer_types"].push_back(l % 3 == 2 ? "full_attention" : "conv");
  return config;
}

Recipe adapter_recipe(const std::string& model) {
  Recipe recipe;
  recipe.model.path = model;
  recipe.adapter.emplace();
  recipe.data.max_length = 1024;
  recipe.train.gradient_sum = GradientSum::tree;
  return recipe;
}

// Operations of one step of the trial for steps of 1,024 tokens: a plan takes half a dozen such steps.
double operations(const Recipe& recipe, int64_t ranks = 1) {
  const PlanJob job = plan_job(recipe);
  SelfComm alone;
  return SpeedTrial(recipe, job, alone, nullptr, 1, 1, ranks).operations();
}

double operations(const json& config, bool full, int64_t ranks = 1) {
  const test::TemporaryDirectory folder;
  test::write_bytes(folder.path() / "config.json", config.dump());
  Recipe recipe = adapter_recipe(folder.path().string());
  recipe.model.quantize = QuantType::nf4;
  if (full) {
    recipe.model = {};
    recipe.model.init = (folder.path() / "config.json").string();
    recipe.adapter.reset();
  }
  return operations(recipe, ranks);
}

// The same of an adapter on some modules.
double operations(const json& config, const AdapterOptions& adapter) {
  const test::TemporaryDirectory folder;
  test::write_bytes(folder.path() / "config.json", config.dump());
  Recipe recipe = adapter_recipe(folder.path().string());
  recipe.adapter->options = adapter;
  return operations(recipe);
}

TEST(SpeedTrial, StepsAreShortForModelsOfAnySize) {
  const json llama_2_7b = llama(4096, 11008, 32, 32, 32, 32000), llama_2_70b = llama(8192, 28672, 80, 64, 8, 32000),
             llama_3_405b = llama(16384, 53248, 126, 128, 8, 128256);
  for (const json& config : {llama_2_7b, llama_2_70b, llama_3_405b}) {
    for (const bool full : {false, true}) {
      const double found = operations(config, full);
      EXPECT_LT(found, 4e10) << config << full;
      EXPECT_GT(found, 1e10) << config << full;
    }
  }
}

// 8 layers for one rank, a rank's 3 of the 24 for eight.
TEST(SpeedTrial, HasNoMoreLayersThanARankOfManyHasOfTheModel) {
  const json config = llama(256, 1024, 24, 4, 4, 512);
  EXPECT_LT(operations(config, true, 8), operations(config, true) / 2);
  EXPECT_EQ(operations(config, true, 3), operations(config, true));
}

// What is measured of smaller models is the width they have.
TEST(SpeedTrial, StepsOfSmallModelsHaveTheirOwnWidth) {
  const json tinyllama = llama(2048, 5632, 22, 32, 4, 32000);
  EXPECT_GT(operations(tinyllama, false), 1e11);
}

TEST(SpeedTrial, HasALayerOfEveryKind) {
  AdapterOptions adapter;
  adapter.target_modules.names = {"q_proj"};
  EXPECT_EQ(operations(lfm2(12), adapter), operations(lfm2(3), adapter));
}

TEST(SpeedTrial, AdaptersMayBeOnLayersThatItDoesNotHave) {
  const json large = llama(2048, 8192, 12, 16, 16, 320);  // the trial has two layers
  AdapterOptions last;
  last.target_modules.names = {"model.layers.11.self_attn.q_proj"};
  EXPECT_GT(operations(large, last), 0);
  AdapterOptions some;
  some.target_modules.names = {"q_proj"};
  some.layers_to_transform = {11};
  some.layers_pattern = {"layers"};
  EXPECT_GT(operations(large, some), 0);
}

// DoRA divides by the lengths of rows, which weights of zeros have not.
TEST(SpeedTrial, DrawsWithAdaptersThatScaleRows) {
  for (const char* quantize : {"none", "nf4"}) {
    const json asked = {{"model", {{"path", test::data_path("stories-llama").string()}, {"quantize", quantize}}},
                        {"adapter", {{"use_dora", true}}},
                        {"objective", {{"type", "rloo"}}},
                        {"rollout", {{"completions", 2}, {"max_new_tokens", 4}}},
                        {"rewards", {{{"type", "regex"}, {"pattern", "a"}}}},
                        {"data", {{"train", "prompts.jsonl"}, {"max_length", 32}}},
                        {"train", {{"accumulate", 2}}},
                        {"output", {{"dir", "run"}}}};
    const Recipe recipe = parse_recipe(asked.dump(), "test");
    const PlanJob job = plan_job(recipe);
    SelfComm alone;
    SpeedTrial trial(recipe, job, alone, nullptr, 1, 1, 1);
    EXPECT_NO_THROW(trial.draw());
  }
}

// Mixers and feed-forwards compute with tensors of their own, which files have in 16 bits and a model in f32.
TEST(SpeedTrial, TrainsMixersAndFeedForwardsOfEveryKind) {
  int64_t tried = 0;
  for (const char* goldens : {"goldens/families", "goldens/model_types"}) {
    for (const auto& entry : std::filesystem::directory_iterator(test::data_path(goldens))) {
      Recipe recipe = adapter_recipe((entry.path() / "model").string());
      recipe.adapter->options.target_modules.pattern = "all-linear";
      recipe.adapter->options.exclude_modules.names = {"out_proj"};  // where PEFT refuses adapters in some
      recipe.data.max_length = 64;
      const DecoderConfig config = read_decoder_config(recipe.model.path);
      const auto has_own = [](const LayerConfig& layer) { return layer.mixer || layer.feed_forward; };
      if (std::ranges::none_of(config.layer, has_own)) continue;
      SCOPED_TRACE(recipe.model.path);
      ++tried;
      const auto train = [&] {
        const PlanJob job = plan_job(recipe);
        SelfComm alone;
        SpeedTrial trial(recipe, job, alone, nullptr, 1, 1, 1);
        trial.step();
        const PartSeconds seconds = trial.seconds();
        EXPECT_EQ(std::ssize(seconds.backward), config.layers);
        EXPECT_TRUE(std::ranges::all_of(seconds.backward, [](double one) { return std::isfinite(one); }));
      };
      EXPECT_NO_THROW(train());
    }
  }
  EXPECT_GT(tried, 30) << "where are the models?";
}

}  // namespace
}  // namespace nibble
