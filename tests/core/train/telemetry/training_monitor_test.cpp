#include "nibble/core/train/telemetry/training_monitor.h"

#include <gmock/gmock.h>

#include "nibble/tests/core/train/toy.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Lines = std::vector<std::string>;

StepReport step(int64_t number, double loss, double norm = 1) {
  StepReport report;
  report.step = number;
  report.loss = loss;
  report.grad_norm = norm;
  return report;
}

/// Thirty ordinary steps.
TrainingMonitor after_thirty() {
  TrainingMonitor monitor;
  for (int64_t i = 1; i <= 30; ++i)
    EXPECT_THAT(monitor.after_step(step(i, 2 + 0.1 * static_cast<double>(i % 3))), IsEmpty());
  return monitor;
}

TEST(TrainingMonitor, ALossFarAboveTheLastOnesIsASpikeReportedOnce) {
  TrainingMonitor monitor = after_thirty();
  EXPECT_THAT(monitor.after_step(step(31, 2.4)), IsEmpty());
  EXPECT_THAT(monitor.after_step(step(32, 9)), ElementsAre(HasSubstr("step 32: loss spike: 9 after a mean of 2.1")));
  EXPECT_THAT(monitor.after_step(step(33, 90)), IsEmpty());
}

TEST(TrainingMonitor, ALossAroundZeroHasNoSpikes) {
  TrainingMonitor monitor;
  for (int64_t i = 1; i <= 30; ++i) monitor.after_step(step(i, i % 2 == 0 ? 0.01 : -0.01));
  EXPECT_THAT(monitor.after_step(step(31, 0.08)), IsEmpty());
}

TEST(TrainingMonitor, AGradientAHundredTimesTheMedianExplodes) {
  TrainingMonitor monitor = after_thirty();
  EXPECT_THAT(monitor.after_step(step(31, 2, 99)), IsEmpty());
  EXPECT_THAT(monitor.after_step(step(32, 2, 101)),
              ElementsAre(AllOf(HasSubstr("exploding gradient: norm 101"), HasSubstr("; lower optimizer.lr"))));
}

TEST(TrainingMonitor, TenStepsWithoutGradientVanish) {
  TrainingMonitor monitor = after_thirty();
  Lines output;
  for (int64_t i = 31; i <= 40; ++i) {
    EXPECT_THAT(output, IsEmpty()) << i;
    output = monitor.after_step(step(i, 2, 1e-9));
  }
  EXPECT_THAT(output, ElementsAre(HasSubstr("vanishing gradient: norm 1e-09 for 10 steps")));
}

TEST(TrainingMonitor, FirstStepsOfARunAreNotJudged) {
  TrainingMonitor monitor;
  for (int64_t i = 1; i <= 15; ++i) {
    EXPECT_THAT(monitor.after_step(step(i, i == 12 ? 100 : 1, i == 13 ? 1e6 : 1)), IsEmpty());
  }
}

TEST(TrainingMonitor, EvaluationThatRisesWhileTrainingFallsIsOverfitting) {
  TrainingMonitor monitor;
  Lines output;
  for (int64_t i = 1; i <= 5; ++i) {
    for (int64_t k = 0; k < 10; ++k) monitor.after_step(step(10 * i + k, 2.0 / static_cast<double>(i)));
    EvaluationReport evaluation;
    evaluation.step = 10 * i + 9;
    evaluation.loss = i == 2 ? 1.5 : 2.0;
    EXPECT_THAT(output, IsEmpty());
    output = monitor.after_evaluation(evaluation);
  }
  EXPECT_THAT(
      output,
      ElementsAre(HasSubstr("overfitting: evaluation loss 2 is above its lowest, 1.5, in 3 evaluations in a row")));
}

TEST(TrainingMonitor, AFlatEvaluationIsNoOverfitting) {
  TrainingMonitor monitor;
  for (int64_t i = 1; i <= 9; ++i) {
    monitor.after_step(step(i, 2.0 / static_cast<double>(i)));
    EvaluationReport evaluation;
    evaluation.step = i;
    evaluation.loss = 4.085 + (i > 1 ? 1e-5 : 0);
    EXPECT_THAT(monitor.after_evaluation(evaluation), IsEmpty());
  }
}

TEST(TrainingMonitor, WeightsThatDoNotMoveAreNamed) {
  test::ToyRank rank;
  test::ToyModel model(rank.pool);
  TrainingMonitor monitor;
  EXPECT_THAT(monitor.after_update(100, 0.1, model.parameters()), IsEmpty());
  model.w->value.data<float>()[0] += 1;
  EXPECT_THAT(monitor.after_update(200, 0.1, model.parameters()),
              ElementsAre(HasSubstr("unchanged weights: 1 of 2 trainable tensors did not move in 100 steps (b)")));
  EXPECT_THAT(monitor.after_update(300, 0, model.parameters()), IsEmpty()) << "nothing can move at rate 0";
}

}  // namespace
}  // namespace nibble
