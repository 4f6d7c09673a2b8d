// LoRA+ through the path that `nibble train` takes, against PEFT's optimizer (tests/oracles/peft_options.py).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/io/safetensors/safetensors.h"
#include "nibble/recipes/train.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class LoraPlus : public testing::TestWithParam<const char*> {};

TEST_P(LoraPlus, ThreeStepsAreThoseOfPeftsOptimizer) {
  const test::TemporaryDirectory directory;
  const fs::path path = test::data_path("peft") / GetParam(), out = directory / "out";
  const json record = read_json_file(path / "case.json");
  const fs::path base = path / record["nibble"]["variants"][0]["model"]["path"].get<std::string>();
  const json recipe = {
      {"model", {{"path", base.string()}, {"compute_dtype", "f32"}}},
      {"adapter", {{"type", "lora"}, {"path", (path / "init").string()}}},
      {"data", {{"train", (path / "data.jsonl").string()}, {"format", "tokens"}, {"shuffle", false}, {"pack", false}}},
      {"train", {{"steps", 3}, {"microbatch_size", 2}, {"max_grad_norm", 0}}},
      {"optimizer", {{"lr", 1e-3}, {"loraplus_lr_ratio", 8}, {"weight_decay", 2.0}, {"schedule", "linear"}}},
      {"output", {{"dir", out.string()}}}};
  LocalRank rank(1);
  train(parse_recipe(recipe.dump(), "test"), rank.context(), {});

  const SafetensorsFile want((path / "loraplus.safetensors").string());
  const SafetensorsFile start((path / "init/adapter_model.safetensors").string());
  const SafetensorsFile end((out / "adapter/adapter_model.safetensors").string());
  std::ifstream metrics(out / "metrics.jsonl");
  for (const double loss : json::parse(want.metadata().at("losses")).get<std::vector<double>>()) {
    std::string line;
    std::getline(metrics, line);
    EXPECT_NEAR(json::parse(line)["loss"].get<double>(), loss, 1e-4 * loss);
  }
  ASSERT_EQ(want.names().size(), 3u);
  for (const std::string& name : want.names()) {
    const Tensor wanted = want.at(name), got = end.at(name), before = start.at(name);
    double distance = 0, moved = 0;
    for (size_t i = 0; i < static_cast<size_t>(wanted.numel()); ++i) {
      const double w = wanted.span<const float>()[i];
      distance += std::pow(got.span<const float>()[i] - w, 2);
      moved += std::pow(before.span<const float>()[i] - w, 2);
    }
    EXPECT_LE(std::sqrt(distance), 1e-3 * std::sqrt(moved)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Peft, LoraPlus, testing::Values("bias-lora_only", "padding-dora"), [](const auto& which) {
  std::string name = which.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace nibble
