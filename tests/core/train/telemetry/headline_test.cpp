#include "nibble/core/train/telemetry/headline.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble {
namespace {

TEST(Headline, IsAccuracyMarginAndRewardByOneNameEach) {
  EXPECT_EQ(headline({{"rewards/chosen", 1}, {"rewards/margins", 0.5}, {"rewards/accuracies", 0.62}}),
            (NamedNumbers{{"accuracy", 0.62}, {"margin", 0.5}}));
  EXPECT_EQ(headline({{"accuracy", 1}, {"margin", NAN}}), (NamedNumbers{{"accuracy", 1}}));
  EXPECT_EQ(headline({{"reward", -1}, {"reward_std", 2}}), (NamedNumbers{{"reward", -1}}));
  EXPECT_EQ(headline_text("accuracy", 0.62), "62%");
  EXPECT_EQ(headline_text("margin", -0.0), "0");
  EXPECT_EQ(headline_text("reward", 0.01234), "0.0123");
}

TEST(Headline, LossHasNoMinusZero) {
  EXPECT_EQ(loss_text(-1e-9), "0.0000");
  EXPECT_EQ(loss_text(-0.25), "-0.2500");
  EXPECT_EQ(loss_text(0.69314), "0.6931");
}

TEST(Headline, LargeLossesHaveFiveDigits) {
  EXPECT_EQ(loss_text(999999), "999999.0000");
  EXPECT_EQ(loss_text(1000000015047466219876688855040.0), "1e+30");
  EXPECT_EQ(loss_text(-1.23456e8), "-1.2346e+08");
}

TEST(Headline, PerplexityHasFourDigits) {
  EXPECT_EQ(perplexity_text(282), "282.0");
  EXPECT_EQ(perplexity_text(1.98249), "1.982");
  EXPECT_EQ(perplexity_text(1234.4), "1234");
  EXPECT_EQ(perplexity_text(INFINITY), "inf");
}

}  // namespace
}  // namespace nibble
