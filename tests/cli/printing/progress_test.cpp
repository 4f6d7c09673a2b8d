#include "nibble/cli/printing/progress.h"

#include <gmock/gmock.h>

#include "nibble/tests/temporary_directory.h"

namespace nibble::cli {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;

StepReport report(int64_t step) {
  StepReport result;
  result.step = step;
  result.total_steps = 1000;
  result.loss = 4.0123;
  result.lr = 1e-4;
  result.label_tokens = result.tokens = 100;
  result.peak_memory_bytes = 1 << 30;
  result.seconds = 0.0214;
  return result;
}

TEST(ProgressLine, LeavesOutWholeFieldsTheMeanBeforeTheTimeLeft) {
  Progress progress;
  progress.add(report(100), 0);
  const std::string all = progress_line(report(100), progress);
  EXPECT_THAT(all, AllOf(HasSubstr("step 100/1000  loss 4.0123 (4.0123)  lr 1.00e-04  norm "), EndsWith("  left 19s")));
  EXPECT_EQ(progress_line(report(100), progress, 45), "step 100/1000  loss 4.0123 (4.0123)  left 19s");
  EXPECT_EQ(progress_line(report(100), progress, 44), "step 100/1000  loss 4.0123  left 19s");
  EXPECT_EQ(progress_line(report(100), progress, 34), "step 100/1000  left 19s");
  EXPECT_EQ(progress_line(report(100), progress, 20), "step 100/1000");
}

/// Prints into a file, at times that the test says.
class Printed : public ::testing::Test {
 public:
  ~Printed() override { std::fclose(file_); }

 protected:
  std::string text() {
    std::fflush(file_);
    return test::read_bytes(directory_ / "out");
  }
  test::TemporaryDirectory directory_;
  std::FILE* file_ = std::fopen((directory_ / "out").c_str(), "w");
  double now_ = 0;
  ProgressPrinter printer_{file_, 10, [this] { return now_; }};
  Observer observer_ = printer_.observer();
};

TEST_F(Printed, LongDrawingIsCountedAndTakesNoStepsLineAway) {
  for (int64_t step = 1; step <= 3; ++step) {
    observer_.work({step, "drawing", 0, 16});
    now_ += 12;
    observer_.work({step, "drawing", 4, 16});
    now_ += 3;
    observer_.step(report(step));
  }
  for (const char* step : {"1", "2", "3"}) {
    EXPECT_THAT(text(), HasSubstr(std::string("step ") + step + "  drawing 4/16  36s more\n")) << "left is the run's";
    EXPECT_THAT(text(), HasSubstr(std::string("step ") + step + "/1000  loss "));
  }
  const std::string before = text();
  observer_.work({4, "judging", 0, 16});
  now_ += 1;
  observer_.work({4, "judging", 8, 16});
  EXPECT_EQ(text(), before) << "what is short is no line in a file";
}

TEST_F(Printed, ThroughLaunchALineThatIsRenewedEndsWithAReturn) {
  printer_.go_through_launch(45);
  observer_.step(report(1));
  now_ += 1;
  observer_.work({1, "evaluation", 0, 4});
  observer_.message("saved");
  observer_.step(report(2));
  observer_.message("again");
  EXPECT_THAT(text(), ::testing::MatchesRegex("step 1/1000  [^\r\n]*\rstep 1  evaluation 0/4\r\rsaved\n"
                                              "step 2/1000  [^\r\n]*\r\nagain\n"));
  EXPECT_LE(text().find('\r'), 44u);
}

TEST_F(Printed, WhatComesBeforeTheFirstStepNamesNone) {
  observer_.work({0, "reference", 0, 16});
  now_ += 12;
  observer_.work({0, "reference", 4, 16});
  EXPECT_EQ(text(), "reference 4/16  left 36s\n");
}

TEST_F(Printed, TimeLeftHasEvaluationsThatAreAhead) {
  observer_.evaluations_ahead(5000);  // of 100 tokens a step
  now_ += 20;
  observer_.step(report(1));
  EXPECT_THAT(text(), ::testing::MatchesRegex("step 1/1000  [^\n]*  left 22s\n"));
}

TEST_F(Printed, TimeLeftCountsEvaluations) {
  for (int64_t step = 990; step <= 998; ++step) {
    now_ += 10;
    observer_.step(report(step));
    if (step % 2 == 0) {
      observer_.evaluation({.step = step, .loss = 4});
      now_ += 100;
    }
  }
  EXPECT_THAT(text(), ContainsRegex("step 997/1000  [^\n]*  left 4m 29s\n"));
}

}  // namespace
}  // namespace nibble::cli
