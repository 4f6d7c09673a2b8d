#include "nibble/recipes/report/sweep_ranking.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble {
namespace {

SweepMeasure measure(ObjectiveType type, const std::vector<SweepAxis>& axes) {
  Recipe recipe;
  recipe.objective.type = type;
  return sweep_measure(recipe, axes);
}

TEST(SweepRanking, IsByLossWhereNoKeyChangesWhatItMeasures) {
  using enum ObjectiveType;
  const SweepAxis lr{"optimizer.lr", {"1", "2"}}, beta{"objective.beta", {"1", "2"}}, one{"objective.beta", {"1"}};
  EXPECT_EQ(measure(sft, {lr}), SweepMeasure::loss);
  EXPECT_EQ(measure(dpo, {lr, one}), SweepMeasure::loss);
  EXPECT_EQ(measure(dpo, {lr, beta}), SweepMeasure::preference);
  EXPECT_EQ(measure(kto, {{"objective.desirable_weight", {"1", "2"}}}), SweepMeasure::preference);
  EXPECT_EQ(measure(distillation, {{"objective.temperature", {"1", "2"}}}), SweepMeasure::none);
}

TEST(SweepRanking, RolloutsAreByRewardWhereThatIsTheSame) {
  using enum ObjectiveType;
  for (const ObjectiveType type : {grpo, rloo, ppo}) {
    EXPECT_EQ(measure(type, {{"optimizer.lr", {"1", "2"}}}), SweepMeasure::reward);
    EXPECT_EQ(measure(type, {{"objective.beta", {"0", "1"}}}), SweepMeasure::reward);
    EXPECT_EQ(measure(type, {{"rewards", {"[]", "[{}]"}}}), SweepMeasure::none);
    EXPECT_EQ(measure(type, {{"objective.reward_model", {"a", "b"}}}), SweepMeasure::none);
  }
  Recipe given;
  given.objective.type = grpo;
  given.objective.rollout.file = "answers.jsonl";
  EXPECT_EQ(sweep_measure(given, {{"optimizer.lr", {"1", "2"}}}), SweepMeasure::none);
}

TEST(SweepRanking, RoutersLossIsPartOfTheTrainingLossAlone) {
  Recipe recipe;
  const std::vector<SweepAxis> axes = {{"model.router_aux_loss_coef", {"0", "1"}}};
  EXPECT_EQ(sweep_measure(recipe, axes), SweepMeasure::none);
  recipe.data.eval_fraction = 0.1;
  EXPECT_EQ(sweep_measure(recipe, axes), SweepMeasure::loss);
}

TEST(SweepRanking, MeasuresHaveTheNamesOfTheJson) {
  EXPECT_EQ(sweep_measure_name(SweepMeasure::loss), "loss");
  EXPECT_EQ(sweep_measure_name(SweepMeasure::preference), "accuracy");
  EXPECT_EQ(sweep_measure_name(SweepMeasure::reward), "reward");
  EXPECT_EQ(sweep_measure_name(SweepMeasure::none), "");
}

// Margins are beta times what the policy has moved; the loss falls with beta alone.
TEST(SweepRanking, BetaDoesNotMakeARunBetter) {
  RunSummary low, high;
  low.loss = 0.69;
  low.headline = {{"accuracy", 1}, {"margin", 0.02}};
  high.loss = 0.2;
  high.headline = {{"accuracy", 1}, {"margin", 1}};
  EXPECT_LT(sweep_order(SweepMeasure::loss, high, 1), sweep_order(SweepMeasure::loss, low, 0.01));
  EXPECT_LT(sweep_order(SweepMeasure::preference, low, 0.01), sweep_order(SweepMeasure::preference, high, 1));
  low.headline[0].second = 0.5;
  EXPECT_GT(sweep_order(SweepMeasure::preference, low, 0.01), sweep_order(SweepMeasure::preference, high, 1));
  EXPECT_LT(sweep_order(SweepMeasure::preference, high, 0), sweep_order(SweepMeasure::preference, {}, 0));
  RunSummary unfit;
  unfit.loss = NAN;
  EXPECT_LT(sweep_order(SweepMeasure::loss, low, 0), sweep_order(SweepMeasure::loss, unfit, 0));
  RunSummary rewarded;
  rewarded.headline = {{"reward", -2}};
  EXPECT_LT(sweep_order(SweepMeasure::reward, rewarded, 0), sweep_order(SweepMeasure::reward, low, 0)) << "has none";
}

}  // namespace
}  // namespace nibble
