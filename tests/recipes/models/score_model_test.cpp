// Score heads against Transformers and PEFT (tests/oracles/scores.py): scores, losses, gradients of adapters and heads.

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "nibble/core/comm/local_rank.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/preferences/text_scores.h"
#include "nibble/recipes/train.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using nlohmann::json;

std::string at(const std::string& name) { return (test::data_path("scores") / name).string(); }

class ScoreModel : public testing::TestWithParam<std::string> {
 protected:
  json expected_ = json::parse(test::read_bytes(at("expected.json")))[GetParam()];
  std::string adapter_ = at("adapter-" + GetParam()), data_ = at("data-" + GetParam() + ".jsonl");
  test::TemporaryDirectory directory_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, ScoreModel, testing::Values("classes", "several", "numbers"),
                         [](const auto& kind) { return kind.param; });

TEST_P(ScoreModel, ScoresAreTransformersAtTheLastTokenAndByItsRuleForPadding) {
  LocalRank rank(1);
  ModelRecipe base;
  base.path = at("model");
  base.score = ScoreHead{0, adapter_};
  Decoder model = open_model(base, adapter_, Train::nothing, rank.context());
  EXPECT_EQ(model.config().score_labels, expected_["labels"]);
  const Encoder encoder = open_encoder(base.path, "", model.config().vocab_size);
  DataOptions data;
  data.train = {{data_}};
  data.format = DataFormat::labeled;
  const StepContext step{.rank = rank.context(), .compute_dtype = DType::f32};
  for (const auto& [key, pad] : {std::pair{"scores", -1}, {"last_non_pad", 0}}) {
    const auto found = text_scores(model, data, encoder, step, pad);
    ASSERT_EQ(found.size(), expected_[key].size());
    for (size_t i = 0; i < found.size(); ++i) {
      const auto want = expected_[key][i].get<std::vector<double>>();
      ASSERT_EQ(found[i].front().size(), want.size());
      for (size_t k = 0; k < want.size(); ++k) {
        EXPECT_NEAR(static_cast<double>(found[i].front()[k]), want[k], 1e-4) << key << i;
      }
    }
  }
  EXPECT_NE(expected_["scores"][1], expected_["last_non_pad"][1]) << "a text that ends in padding";
}

TEST_P(ScoreModel, LossAndGradientsAreTransformers) {
  const json recipe = {{"model", {{"path", at("model")}, {"compute_dtype", "f32"}}},
                       {"adapter", {{"path", adapter_}}},
                       {"objective", {{"type", "classification"}}},
                       {"data", {{"train", data_}, {"shuffle", false}}},
                       {"train", {{"steps", 1}, {"microbatch_size", 6}}},
                       {"output", {{"dir", (directory_ / "run").string()}}}};
  LocalRank rank(1);
  const FirstStep found = first_step(parse_recipe(recipe.dump(), "test"), rank.context(), {}, directory_ / "scratch");
  EXPECT_NEAR(found.sums.loss, expected_["loss"].get<double>(), 1e-5);
  ASSERT_EQ(found.gradients.size(), expected_["gradients"].size());
  for (const auto& [name, gradient] : found.gradients) {
    const auto want = expected_["gradients"].at(name).get<std::vector<double>>();
    ASSERT_EQ(gradient.numel(), std::ssize(want)) << name;
    double off = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      off += std::pow(static_cast<double>(gradient.data<const float>()[i]) - want[i], 2);
      size += want[i] * want[i];
    }
    EXPECT_LT(std::sqrt(off), 1e-4 * std::sqrt(size) + 1e-9) << name;
  }
}

}  // namespace
}  // namespace nibble
