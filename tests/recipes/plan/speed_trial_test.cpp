#include "nibble/recipes/plan/speed_trial.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/core/comm/communicator.h"
#include "nibble/recipes/plan/plan_job.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using nlohmann::json;

json llama(int64_t width, int64_t hidden, int64_t layers, int64_t heads, int64_t kv_heads, int64_t vocabulary) {
  return {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"},       {"hidden_size", width},
          {"intermediate_size", hidden},           {"num_hidden_layers", layers}, {"num_attention_heads", heads},
          {"num_key_value_heads", kv_heads},       {"vocab_size", vocabulary}};
}

// Operations of one step of the trial for steps of 1,024 tokens: a plan takes half a dozen such steps.
double operations(const json& config, bool full, int64_t ranks = 1) {
  const test::TemporaryDirectory folder;
  test::write_bytes(folder.path() / "config.json", config.dump());
  Recipe recipe;
  if (full) {
    recipe.model.init = (folder.path() / "config.json").string();
  } else {
    recipe.model.path = folder.path().string();
    recipe.model.quantize = QuantType::nf4;
    recipe.adapter.emplace();
  }
  recipe.data.max_length = 1024;
  const PlanJob job = plan_job(recipe);
  SelfComm alone;
  return SpeedTrial(recipe, job, alone, nullptr, 1, 1, ranks).operations();
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

}  // namespace
}  // namespace nibble
