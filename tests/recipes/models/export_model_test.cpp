// What a full run leaves beside what it trained.

#include "nibble/recipes/models/export_model.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/models/tensor_source.h"
#include "nibble/recipes/models/init_model.h"
#include "nibble/recipes/train.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::UnorderedElementsAreArray;

void train_one_step(const fs::path& model, const fs::path& directory) {
  test::write_bytes(directory / "data.jsonl", json{{"input_ids", {5, 6, 7, 8}}}.dump() + "\n");
  const json recipe = {{"model", {{"path", model.string()}}},
                       {"data", {{"train", (directory / "data.jsonl").string()}, {"format", "tokens"}}},
                       {"train", {{"steps", 1}}},
                       {"output", {{"dir", (directory / "out").string()}}}};
  LocalRank rank(1);
  train(parse_recipe(recipe.dump(), "test"), rank.context(), Observer{});
}

class FullRunOf : public ::testing::TestWithParam<std::string> {};

// Transformers takes what a file lacks from memory that nothing has written, or draws it.
TEST_P(FullRunOf, AModelTypeLeavesEveryTensorThatTransformersSaves) {
  const fs::path model = fs::path(kSourceDir) / "tests/data/goldens/model_types" / GetParam() / "model";
  const test::TemporaryDirectory directory;
  train_one_step(model, directory.path());
  const CheckpointDir written(directory.path() / "out/model");
  EXPECT_THAT(written.names(), UnorderedElementsAreArray(open_checkpoint(model).names()));
}

INSTANTIATE_TEST_SUITE_P(Types, FullRunOf,
                         ::testing::Values("apertus1p5_text", "exaone", "glm_moe_dsa", "lara_mini", "sarvam_moe"),
                         [](const auto& of) { return of.param; });

TEST(FullRun, WritesTheNumbersOfXieluAsTransformersDoes) {
  const fs::path model = fs::path(kSourceDir) / "tests/data/goldens/model_types/apertus1p5_text/model";
  const test::TemporaryDirectory directory;
  train_one_step(model, directory.path());
  const CheckpointDir written(directory.path() / "out/model"), base(model);
  for (const char* name : {"model.layers.1.mlp.act_fn.beta", "model.layers.1.mlp.act_fn.eps"}) {
    const Tensor got = written.at(name), wanted = base.at(name);
    EXPECT_EQ(got.dtype(), wanted.dtype());
    EXPECT_TRUE(std::equal(got.raw(), got.raw() + got.bytes(), wanted.raw())) << name;
  }
  const InitRequest request{.config = model / "config.json", .out = directory.path() / "init", .seed = 3};
  init_model(request);
  EXPECT_THAT(CheckpointDir(request.out).names(), UnorderedElementsAreArray(base.names()));
}

}  // namespace
}  // namespace nibble
