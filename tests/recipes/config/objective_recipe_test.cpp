#include <gmock/gmock.h>

#include "nibble/core/base/error.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using test::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

/// A recipe with these members of "objective", and others.
std::string recipe_of(const std::string& objective, const std::string& more = "") {
  return R"({"model": {"path": "MODEL"}, "adapter": {"r": 4}, "output": {"dir": "runs/x"}, "objective": {)" +
         objective + "}, " + (more.empty() ? R"("data": {"train": "PAIRS.jsonl"}})" : more + "}");
}

Recipe parse(const std::string& text) { return parse_recipe(text, "test"); }

TEST(ObjectiveRecipe, HasTrlsDefaults) {
  const Recipe recipe = parse(recipe_of(R"("type": "dpo")"));
  EXPECT_EQ(recipe.objective.type, ObjectiveType::dpo);
  EXPECT_EQ(recipe.objective.beta, 0.1);
  EXPECT_EQ(recipe.objective.reference, "adapter_off");
  EXPECT_EQ(recipe.data.format, DataFormat::preference);
  EXPECT_EQ(recipe.data.truncate, Truncate::cut);
  EXPECT_FALSE(recipe.data.pack);
  EXPECT_EQ(parse(recipe_of(R"("type": "kto")")).data.format, DataFormat::unpaired);
  const std::string full =
      R"({"model": {"path": "MODEL"}, "output": {"dir": "x"}, "objective": {"type": "dpo"}, "data": {"train": "P"}})";
  EXPECT_EQ(parse(full).objective.reference, "initial") << "without an adapter";
}

TEST(ObjectiveRecipe, OfScoresAsksForAScoreHeadThatTheAdapterKeeps) {
  const Recipe reward = parse(recipe_of(R"("type": "reward")"));
  EXPECT_EQ(reward.data.format, DataFormat::preference);
  EXPECT_EQ(reward.data.truncate, Truncate::drop) << "as TRL: the end is what is scored";
  EXPECT_EQ(reward.model.score->labels, 1);
  EXPECT_EQ(reward.adapter->options.modules_to_save, std::vector<std::string>{"score"});
  EXPECT_EQ(to_json(parse(to_json(reward))), to_json(reward));
  const Recipe classes = parse(recipe_of(R"("type": "classification", "num_labels": 3)"));
  EXPECT_EQ(classes.data.format, DataFormat::labeled);
  EXPECT_EQ(classes.data.truncate, Truncate::cut);
  EXPECT_EQ(classes.model.score->labels, 3);
}

TEST(ObjectiveRecipe, OfDistillationReadsTextsAndHasTrlsDefaults) {
  const Recipe recipe = parse(recipe_of(R"("type": "distillation", "teacher_model_name_or_path": "T")"));
  EXPECT_EQ(recipe.objective.beta, 1);
  EXPECT_EQ(recipe.objective.temperature, 1);
  EXPECT_EQ(recipe.data.format, DataFormat::automatic);
  EXPECT_TRUE(recipe.data.pack);
  EXPECT_FALSE(recipe.model.score);
  const Recipe forward = parse(recipe_of(R"("type": "distillation", "beta": 0, "teacher_model_name_or_path": "T")"));
  EXPECT_EQ(forward.objective.beta, 0);
}

TEST(ObjectiveRecipe, IsWrittenAndReadBack) {
  const Recipe recipe = parse(recipe_of(
      R"("loss_type": ["sigmoid", "sft"], "loss_weights": [1, 0.5], "ld_alpha": 0.5, "beta": 0.3, "type": "dpo")"));
  EXPECT_EQ(recipe.objective.loss_type, (std::vector<std::string>{"sigmoid", "sft"}));
  const Recipe again = parse(to_json(recipe));
  EXPECT_EQ(to_json(again), to_json(recipe));
  EXPECT_EQ(again.objective.loss_weights, (std::vector<double>{1, 0.5}));
  EXPECT_THAT(to_json(recipe), Not(HasSubstr("desirable_weight"))) << "which only kto knows";
  const auto settings = fixed_settings(recipe);
  EXPECT_EQ(settings.at("objective.beta"), "0.3");
  const Recipe plain = parse(recipe_of(R"("type": "sft")", R"("data": {"train": "T.jsonl"})"));
  EXPECT_THAT(to_json(plain), Not(HasSubstr("objective")));
  EXPECT_FALSE(fixed_settings(plain).contains("objective.beta")) << "older runs go on";
}

TEST(ObjectiveRecipe, RefusesWhatHasNoMeaning) {
  const auto refused = [](const std::string& objective, const std::string& more = "") {
    return error_of<UsageError>([&] { parse(recipe_of(objective, more)); });
  };
  EXPECT_THAT(refused(R"("type": "dpo", "simpo_gamma": 1)"), HasSubstr("objective.simpo_gamma: has no meaning"));
  EXPECT_THAT(refused(R"("type": "dop")"), HasSubstr("did you mean dpo?"));
  EXPECT_THAT(refused(R"("type": "grpo")"), HasSubstr("does not exist yet"));
  EXPECT_THAT(refused(R"("type": "dpo", "loss_type": "sigmod")"), HasSubstr("did you mean sigmoid?"));
  EXPECT_THAT(refused(R"("type": "dpo", "bta": 1)"), HasSubstr("did you mean objective.beta?"));
  EXPECT_THAT(refused(R"("type": "dpo", "beta": 0)"), HasSubstr("objective.beta: must be above 0"));
  EXPECT_THAT(refused(R"("type": "reward", "num_labels": 2)"), HasSubstr("objective.num_labels: has no meaning"));
  EXPECT_THAT(refused(R"("type": "classification")", R"("data": {"train": "P", "format": "chat"})"),
              HasSubstr("classification reads labeled"));
  EXPECT_THAT(refused(R"("type": "orpo", "reference": "initial")"), HasSubstr("objective.reference"));
  EXPECT_THAT(refused(R"("type": "dpo")", R"("data": {"train": "P", "format": "chat"})"), HasSubstr("data.format"));
  EXPECT_THAT(refused(R"("type": "sft")", R"("data": {"train": "P", "format": "preference"})"),
              HasSubstr("set objective.type"));
}

}  // namespace
}  // namespace nibble
