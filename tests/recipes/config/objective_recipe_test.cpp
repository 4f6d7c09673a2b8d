#include <gmock/gmock.h>

#include "nibble/core/base/error.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using test::error_of;
using ::testing::AllOf;
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
  EXPECT_THAT(refused(R"("type": "ppo")"), HasSubstr("rewards: is missing"));
  EXPECT_THAT(refused(R"("type": "dpo", "loss_type": "sigmod")"), HasSubstr("did you mean sigmoid?"));
  EXPECT_THAT(refused(R"("type": "dpo", "bta": 1)"), HasSubstr("did you mean objective.beta?"));
  const std::string several = R"("type": "dpo", "loss_type": ["sigmoid", "sft"], "loss_weights": )";
  EXPECT_THAT(refused(several + "[-1, 1]"), HasSubstr("objective.loss_weights: must be a list of numbers from 0"));
  EXPECT_THAT(refused(several + "[0, 0]"), HasSubstr("with all at 0 nothing is trained"));
  EXPECT_THAT(refused(R"("type": "dpo", "loss_type": ["sigmoid\u0000"])"), HasSubstr("must be a list of strings, not"));
  EXPECT_THAT(refused(R"("type": "kto", "desirable_weight": 0, "undesirable_weight": 0)"),
              HasSubstr("objective.desirable_weight: with undesirable_weight 0 as well nothing is trained; set one"));
  EXPECT_EQ(parse(recipe_of(R"("type": "kto", "desirable_weight": 0)")).objective.undesirable_weight, 1);
  EXPECT_THAT(refused(R"("type": "dpo", "beta": 0)"), HasSubstr("objective.beta: must be above 0"));
  EXPECT_THAT(refused(R"("type": "reward", "num_labels": 2)"), HasSubstr("objective.num_labels: has no meaning"));
  EXPECT_THAT(refused(R"("type": "classification")", R"("data": {"train": "P", "format": "chat"})"),
              HasSubstr("classification reads labeled"));
  EXPECT_THAT(refused(R"("type": "orpo", "reference": "initial")"), HasSubstr("objective.reference"));
  EXPECT_THAT(refused(R"("type": "dpo")", R"("data": {"train": "P", "format": "chat"})"), HasSubstr("data.format"));
  EXPECT_THAT(refused(R"("type": "sft")", R"("data": {"train": "P", "format": "preference"})"),
              HasSubstr("set objective.type"));
}

TEST(ObjectiveRecipe, OfRolloutsHasTrlsDefaultsAndIsReadBack) {
  const std::string rest = R"("rollout": {"completions": 2, "max_new_tokens": 16},
      "rewards": [{"type": "number", "column": "answer"}, {"type": "command", "argv": ["judge", "-q"], "weight": 0.5}],
      "data": {"train": "P.jsonl"}, "train": {"microbatch_size": 4})";
  const Recipe recipe = parse(recipe_of(R"("type": "grpo")", rest));
  EXPECT_EQ(recipe.objective.beta, 0);
  EXPECT_EQ(recipe.objective.reference, "") << "with beta 0 there is none";
  EXPECT_EQ(recipe.data.format, DataFormat::prompts);
  EXPECT_EQ(recipe.rewards.at(1).argv, (std::vector<std::string>{"judge", "-q"}));
  EXPECT_EQ(to_json(parse(to_json(recipe))), to_json(recipe));
  EXPECT_EQ(fixed_settings(recipe).at("rollout.completions"), "2");
  const Recipe rloo = parse(recipe_of(R"("type": "rloo", "reward_clip_range": [-1, 1])", rest));
  EXPECT_EQ(rloo.objective.beta, 0.05);
  EXPECT_EQ(rloo.objective.reference, "adapter_off");
  EXPECT_EQ(to_json(parse(to_json(rloo))), to_json(rloo));
}

TEST(ObjectiveRecipe, OfPpoHasTrlsDefaultsAndIsReadBack) {
  const std::string rest = R"("rewards": [{"type": "number", "column": "answer"}],
      "data": {"train": "P.jsonl"}, "train": {"microbatch_size": 4})";
  const Recipe recipe = parse(recipe_of(R"("type": "ppo", "num_mini_batches": 2)", rest));
  EXPECT_EQ(recipe.objective.kl_coef, 0.05);
  EXPECT_EQ(recipe.objective.num_ppo_epochs, 4);
  EXPECT_EQ(steps_per_block(recipe.objective), 8);
  EXPECT_EQ(recipe.objective.rollout.completions, 1);
  EXPECT_EQ(recipe.objective.reference, "adapter_off");
  EXPECT_EQ(recipe.data.format, DataFormat::prompts);
  EXPECT_FALSE(recipe.model.score) << "the value model has the score head";
  EXPECT_EQ(to_json(parse(to_json(recipe))), to_json(recipe));
  EXPECT_EQ(fixed_settings(recipe).at("objective.lam"), "0.95");
  const Recipe judged =
      parse(recipe_of(R"("type": "ppo", "reward_model": "R", "kl_coef": 0)", R"("data": {"train": "P"})"));
  EXPECT_EQ(judged.all_rewards().at(0).path, "R");
  EXPECT_EQ(judged.objective.reference, "") << "with kl_coef 0 there is none";
  const auto refused = [&](const std::string& objective) {
    return error_of<UsageError>([&] { parse(recipe_of(objective, rest)); });
  };
  EXPECT_THAT(refused(R"("type": "ppo", "num_mini_batches": 3)"), HasSubstr("num_mini_batches: does not divide"));
  EXPECT_THAT(refused(R"("type": "ppo", "epsilon": 0.1)"), HasSubstr("objective.epsilon: has no meaning"));
  EXPECT_THAT(refused(R"("type": "grpo", "lam": 0.9)"), HasSubstr("objective.lam: has no meaning"));
}

TEST(ObjectiveRecipe, OfDistillationIsOnPolicyWithASectionRollout) {
  const std::string objective = R"("type": "distillation", "teacher_model_name_or_path": "T")";
  const Recipe drawn =
      parse(recipe_of(objective, R"("rollout": {"max_new_tokens": 16}, "data": {"train": "P.jsonl"})"));
  EXPECT_TRUE(drawn.has_rollouts());
  EXPECT_EQ(drawn.objective.rollout.completions, 1);
  EXPECT_EQ(drawn.data.format, DataFormat::prompts);
  EXPECT_FALSE(drawn.data.pack);
  EXPECT_EQ(to_json(parse(to_json(drawn))), to_json(drawn));
  EXPECT_EQ(fixed_settings(drawn).at("rollout.max_new_tokens"), "16");
  const Recipe texts = parse(recipe_of(objective, R"("data": {"train": "P.jsonl"})"));
  EXPECT_FALSE(texts.has_rollouts());
  EXPECT_EQ(texts.data.format, DataFormat::automatic);
  EXPECT_THAT(to_json(texts), Not(HasSubstr("rollout")));
  EXPECT_FALSE(fixed_settings(texts).contains("rollout.max_new_tokens")) << "older runs go on";
  const auto refused = [&](const std::string& rest) {
    return error_of<UsageError>([&] { parse(recipe_of(objective, rest)); });
  };
  EXPECT_THAT(refused(R"("rollout": {}, "data": {"train": "P"}, "rewards": [{"type": "number", "column": "a"}])"),
              HasSubstr("rewards: has no meaning for the objective distillation"));
  EXPECT_THAT(refused(R"("rollout": {}, "data": {"train": "P", "eval_fraction": 0.1})"),
              HasSubstr("data.eval_fraction"));
  EXPECT_THAT(refused(R"("rollout": {"temperature": 0}, "data": {"train": "P"})"), HasSubstr("rollout.temperature"));
}

TEST(ObjectiveRecipe, OfGivenAnswersNeedsNoPromptsAndNoRoomForThem) {
  const std::string rest = R"("rollout": {"completions": 2, "file": "r.jsonl"}, "data": {"max_length": 64},)"
                           R"( "train": {"microbatch_size": 4})";
  EXPECT_TRUE(parse(recipe_of(R"("type": "grpo")", rest)).data.train.empty());
}

TEST(ObjectiveRecipe, SpreadsExpertsWhereRanksComputeInStep) {
  const auto parsed = [](const std::string& type, const std::string& file) {
    return parse(recipe_of("\"type\": \"" + type + "\"", R"("rollout": {"completions": 2)" + file + R"(},
        "data": {"train": "P.jsonl"}, "train": {"microbatch_size": 4}, "parallel": {"replicate": 2, "experts": 2})"));
  };
  const std::string file = R"(, "file": "r.jsonl")";
  for (const char* type : {"grpo", "rloo"}) EXPECT_EQ(parsed(type, file).parallel.experts, 2) << type;
  EXPECT_THAT(error_of<UsageError>([&] { parsed("ppo", file); }), HasSubstr("the experts of a value model"));
}

TEST(ObjectiveRecipe, RefusesRolloutsThatCannotBe) {
  const auto refused = [](const std::string& rollout, const std::string& rewards, const std::string& data = "") {
    const std::string rest = R"("rollout": {)" + rollout + R"(}, "rewards": [)" + rewards +
                             R"(], "data": {"train": "P.jsonl")" + data + R"(}, "train": {"microbatch_size": 4})";
    return error_of<UsageError>([&] { parse(recipe_of(R"("type": "grpo")", rest)); });
  };
  const std::string number = R"({"type": "number", "column": "answer"})";
  EXPECT_THAT(refused(R"("completions": 3)", number), HasSubstr("rollout.completions: does not divide"));
  EXPECT_THAT(refused(R"("completions": 2)", ""), HasSubstr("rewards: is missing"));
  EXPECT_THAT(refused(R"("completions": 2, "file": "r.jsonl")", number), HasSubstr("contradicts rollout.file"));
  EXPECT_THAT(refused(R"("completions": 2)", R"({"type": "numbr"})"), HasSubstr("did you mean number?"));
  EXPECT_THAT(refused(R"("completions": 2)", R"({"type": "command", "argv": ["a"], "timeout_seconds": 0})"),
              HasSubstr("rewards[0].timeout_seconds: must be a number from 0.001 to below 1000000000, not 0"));
  EXPECT_THAT(refused(R"("completions": 2)", R"({"type": "command", "argv": [""]})"),
              HasSubstr("rewards[0].argv: must be a list of strings: a program and its arguments"));
  EXPECT_THAT(refused(R"("completions": 2)", R"({"type": "repetition", "weight": 0})"),
              HasSubstr("rewards: have weight 0"));
  EXPECT_THAT(refused(R"("completions": 2)", R"({"type": "regex", "patern": "x"})"),
              HasSubstr("did you mean pattern?"));
  EXPECT_THAT(refused(R"("completions": 2)", R"({"type": "regex"})"), HasSubstr("rewards[0].pattern: is missing"));
  EXPECT_THAT(refused(R"("completions": 2)", R"({"type": "regex", "pattern": "(a"})"),
              AllOf(HasSubstr("rewards[0].pattern \"(a\": is no regular expression"), HasSubstr("; correct it, or")));
  EXPECT_THAT(refused(R"("completions": 2)", R"({"type": "exact", "column": "a\u0000"})"),
              HasSubstr("rewards[0].column: must be a string, not \"a\\u0000\""));
  EXPECT_THAT(refused(R"("completions": 2)", number, R"(, "pack": true)"), HasSubstr("data.pack"));
  EXPECT_THAT(refused(R"("completions": 2)", number, R"(, "max_length": 256)"), HasSubstr("leaves no room"));
  const std::string shown =
      R"("data": {"train": "P"}, "train": {"samples": 2, "microbatch_size": 16}, "rewards": [)" + number + "]";
  EXPECT_THAT(error_of<UsageError>([&] { parse(recipe_of(R"("type": "rloo")", shown)); }),
              HasSubstr("train.samples: prompts alone have no answers"));
  EXPECT_THAT(error_of<UsageError>(
                  [] { parse(recipe_of(R"("type": "dpo")", R"("rollout": {"top_k": 3}, "data": {"train": "P"})")); }),
              HasSubstr("rollout.top_k: has no meaning for the objective dpo"));
}

TEST(ObjectiveRecipe, NoiseOnEmbeddingsIsForTheNextTokenAlone) {
  const std::string recipe =
      recipe_of(R"("type": "dpo")", R"("data": {"train": "P.jsonl"}, "train": {"neftune_noise_alpha": 5})");
  EXPECT_EQ(error_of<UsageError>([&] { parse(recipe); }),
            "test: train.neftune_noise_alpha: has no meaning for the objective dpo; leave it out");
}

}  // namespace
}  // namespace nibble
