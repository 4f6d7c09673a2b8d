#include "nibble/core/train/telemetry/progress.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

StepReport report(int64_t step, double loss, int64_t tokens, double seconds) {
  StepReport result;
  result.step = step;
  result.total_steps = 10;
  result.loss = loss;
  result.label_tokens = result.tokens = tokens;
  result.seconds = seconds;
  return result;
}

TEST(Progress, SteadyRunIsPredictedExactlyFromTheFirstStepOn) {
  Progress progress;
  EXPECT_EQ(progress.seconds_left(), 0);
  for (int64_t step = 1; step <= 5; ++step) {
    progress.add(report(step, 2.5, 100, 4), static_cast<double>(step) * 4);
    EXPECT_NEAR(progress.seconds_left(), static_cast<double>(10 - step) * 4, 1e-9);
    EXPECT_NEAR(progress.tokens_per_second(), 25, 1e-9);
    EXPECT_NEAR(progress.smoothed_loss(), 2.5, 1e-12);
  }
}

TEST(Progress, LossIsWeightedByItsTokens) {
  Progress progress(1.0);  // nothing is forgotten
  progress.add(report(1, 1, 300, 1), 1);
  progress.add(report(2, 5, 100, 1), 2);
  EXPECT_NEAR(progress.smoothed_loss(), 2, 1e-12);
}

TEST(Progress, FollowsAChangeOfSpeed) {
  Progress progress(0.5);
  double now = 0;
  for (int64_t step = 1; step <= 3; ++step) progress.add(report(step, 1, 10, 1), now += 1);
  for (int64_t step = 4; step <= 9; ++step) progress.add(report(step, 1, 10, 3), now += 3);
  EXPECT_NEAR(progress.seconds_left(), 3, 0.1);
}

// Every third step of ten an evaluation of 7 seconds follows, and after the last one.
TEST(Progress, TimeLeftHasTheEvaluationsThatAreStillToCome) {
  Progress progress;
  double now = 0;
  for (int64_t step = 1; step <= 9; ++step) {
    progress.add(report(step, 1, 10, 2), now += 2);
    if (step > 3) {
      const double in_steps = static_cast<double>(10 - step) * 2;
      EXPECT_NEAR(progress.seconds_left(), in_steps + (step > 6 ? 4 : 7) / 3.0 * 7, 1e-9) << step;
    }
    if (step % 3 == 0) {
      progress.add(EvaluationReport());
      now += 7;
    }
  }
}

// Steps train 5 tokens a second: 20 and what is expected until an evaluation was measured.
TEST(Progress, TimeLeftHasEvaluationsBeforeTheFirstOneWasMeasured) {
  Progress progress;
  double now = 0;
  for (int64_t step = 1; step <= 6; ++step) {
    progress.expect_evaluations(step <= 3 ? 100 : 50);
    progress.add(report(step, 1, 10, 2), now += 2);
    const double in_steps = static_cast<double>(10 - step) * 2;
    EXPECT_NEAR(progress.seconds_left(), in_steps + (step <= 3 ? 20 : 7 / 3.0 * 7), 1e-9) << step;
    if (step == 3) {
      progress.add(EvaluationReport());
      now += 7;
    }
  }
}

// What a run that goes on makes up for is not measured.
TEST(Progress, AnEvaluationBeforeTheFirstStepTellsNoTime) {
  Progress progress;
  progress.add(EvaluationReport());
  progress.expect_evaluations(100);
  progress.add(report(1, 1, 10, 2), 2);
  progress.add(report(2, 1, 10, 2), 4);
  EXPECT_NEAR(progress.seconds_left(), 8 * 2 + 20, 1e-9);
}

TEST(Progress, WhatComesBetweenStepsWithoutEvaluationsGoesOnAtItsRate) {
  Progress progress;
  double now = 0;
  for (int64_t step = 1; step <= 6; ++step) {
    progress.add(report(step, 1, 10, 1), now += 1);
    now += 3;
  }
  EXPECT_NEAR(progress.seconds_left(), 4 * 1 + 5 * 3, 1e-9);
}

TEST(Progress, AStepHasTheTimeOfItsAnswers) {
  Progress progress;
  StepReport step = report(1, 1, 100, 1);
  step.metrics = {{"reward", 1}, {"step_time", 20}};
  step.share_of_peak = 0.5;
  progress.add(step, 20);
  EXPECT_NEAR(progress.seconds_left(), 9 * 20, 1e-9);
  EXPECT_NEAR(progress.tokens_per_second(), 5, 1e-9);
  EXPECT_NEAR(progress.share_of_peak(), 0.5 / 20, 1e-9) << "as the tokens a second";
}

}  // namespace
}  // namespace nibble
