#include "nibble/core/train/schedule.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble {
namespace {

// Rates of Transformers 5.23.0 (get_*_schedule_with_warmup over an optimizer with lr 3e-3), update by update.
void expect_rates(const Schedule& schedule, const std::vector<double>& want) {
  for (size_t k = 0; k < want.size(); ++k) {
    EXPECT_NEAR(schedule.lr_at(static_cast<int64_t>(k)), want[k], 1e-17) << "update " << k;
  }
}

TEST(Schedule, ConstantIsTransformersConstant) {
  expect_rates({ScheduleKind::constant, 3e-3, 1e-3, 3, 8}, {0, 0.001, 0.002, 0.003, 0.003, 0.003, 0.003, 0.003});
}

TEST(Schedule, LinearIsTransformersLinear) {
  expect_rates({ScheduleKind::linear, 3e-3, 0, 3, 10},
               {0, 0.001, 0.002, 0.0030000000000000001, 0.0025714285714285713, 0.002142857142857143,
                0.0017142857142857142, 0.0012857142857142856, 0.0008571428571428571, 0.00042857142857142855, 0, 0});
}

TEST(Schedule, CosineIsTransformersCosine) {
  expect_rates({ScheduleKind::cosine, 3e-3, 0, 3, 10},
               {0, 0.001, 0.002, 0.0030000000000000001, 0.0028514533018536288, 0.0024352347027881004,
                0.0018337814009344716, 0.0011662185990655284, 0.00056476529721189979, 0.00014854669814637144});
  expect_rates({ScheduleKind::cosine, 3e-3, 0, 0, 7},
               {0.0030000000000000001, 0.0028514533018536288, 0.0024352347027881004, 0.0018337814009344716,
                0.0011662185990655284, 0.00056476529721189979, 0.00014854669814637144, 0});
}

TEST(Schedule, CosineWithMinimumIsTransformersCosineWithMinLr) {
  expect_rates({ScheduleKind::cosine, 3e-3, 3e-4, 2, 9},
               {0, 0.0015, 0.0030000000000000001, 0.0028663079716682656, 0.0024917112325092907, 0.0019504032608410242,
                0.0013495967391589756, 0.00080828876749070976, 0.00043369202833173432, 0.00029999999999999997});
}

TEST(Schedule, StaysAtTheEndAfterTheLastUpdate) {
  EXPECT_EQ((Schedule{ScheduleKind::linear, 1, 0.25, 0, 4}.lr_at(9)), 0.25);
  EXPECT_EQ((Schedule{ScheduleKind::cosine, 1, 0.25, 0, 4}.lr_at(9)), 0.25);
  EXPECT_EQ((Schedule{ScheduleKind::linear, 1, 0, 5, 5}.lr_at(5)), 0) << "all warm-up";
}

TEST(Schedule, WarmupRatioRoundsUp) {
  EXPECT_EQ(warmup_steps_of_ratio(0.03, 100), 3);
  EXPECT_EQ(warmup_steps_of_ratio(0.03, 101), 4);
  EXPECT_EQ(warmup_steps_of_ratio(0, 100), 0);
}

}  // namespace
}  // namespace nibble
