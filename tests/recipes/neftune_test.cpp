// NEFTune through the path that `nibble train` takes: what it changes, and what changes nothing of it. Resuming and
// threads are in training_test.cpp, ranks in tests/parallel/layouts_test.cpp.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "nibble/core/comm/local_rank.h"
#include "nibble/recipes/train.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct NoisyRun {
  std::vector<double> train, eval;  // losses
  std::string adapter;
};

NoisyRun run_with(const json& of_train, double lr = 1e-2) {
  const test::TemporaryDirectory directory;
  std::string lines;
  for (int i = 0; i < 8; ++i) {
    std::vector<int> ids;
    for (int t = 0; t < 6 + 3 * i; ++t) ids.push_back(3 + (7 * i + t * t) % 500);
    lines += json{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
  }
  test::write_bytes(directory / "data.jsonl", lines);
  const std::string data = (directory / "data.jsonl").string();
  json recipe = {{"model", {{"path", test::data_path("stories-llama").string()}}},
                 {"adapter", {{"r", 2}}},
                 {"data", {{"train", data}, {"eval", data}, {"format", "tokens"}, {"max_length", 48}}},
                 {"train", {{"steps", 3}, {"accumulate", 2}}},
                 {"optimizer", {{"lr", lr}, {"schedule", "constant"}}},
                 {"output", {{"dir", (directory / "out").string()}}}};
  recipe["train"].update(of_train);
  LocalRank rank(1);
  train(parse_recipe(recipe.dump(), "test"), rank.context(), {});
  NoisyRun result;
  std::ifstream metrics(directory / "out/metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const json value = json::parse(line);
    (value["split"] == "train" ? result.train : result.eval).push_back(value["loss"]);
  }
  result.adapter = test::read_bytes(directory / "out/adapter/adapter_model.safetensors");
  return result;
}

TEST(Neftune, OfAlphaZeroIsNone) {
  const NoisyRun none = run_with(json::object()), zero = run_with({{"neftune_noise_alpha", 0}});
  EXPECT_EQ(zero.train, none.train);
  EXPECT_TRUE(zero.adapter == none.adapter);
  EXPECT_NE(run_with({{"neftune_noise_alpha", 5}}).train, none.train);
}

TEST(Neftune, ABlockComputedAgainSeesTheSameNoise) {
  const NoisyRun kept = run_with({{"neftune_noise_alpha", 5}, {"gradient_checkpointing", "none"}});
  const NoisyRun again = run_with({{"neftune_noise_alpha", 5}, {"gradient_checkpointing", "block"}});
  EXPECT_EQ(again.train, kept.train);
  EXPECT_TRUE(again.adapter == kept.adapter);
}

TEST(Neftune, EvaluationsHaveNone) {
  const NoisyRun none = run_with(json::object(), 0), noisy = run_with({{"neftune_noise_alpha", 5}}, 0);
  EXPECT_NE(noisy.train, none.train);
  ASSERT_EQ(noisy.eval.size(), 1u);
  EXPECT_EQ(noisy.eval, none.eval);
}

}  // namespace
}  // namespace nibble
