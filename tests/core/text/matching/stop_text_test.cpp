#include "nibble/core/text/matching/stop_text.h"

#include <gtest/gtest.h>

#include <random>

namespace nibble {
namespace {

TEST(StopText, EndsAtItsStringHoweverThePiecesFall) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const auto word = [&](size_t most) {
      std::string result;
      for (size_t k = random() % (most + 1); k > 0; --k) result += "ab"[random() % 2];
      return result;
    };
    const std::string stop = "a" + word(3), whole = word(20);
    const size_t at = whole.find(stop);
    StopText text(stop);
    std::string output;
    for (size_t begin = 0; begin < whole.size() && !text.found();) {
      const size_t size = 1 + random() % 4;
      output += text.push(std::string_view(whole).substr(begin, size));
      begin += size;
    }
    EXPECT_EQ(text.found(), at != std::string::npos) << stop << " in " << whole;
    EXPECT_EQ(output + text.finish(), whole.substr(0, at)) << stop << " in " << whole;
  }
}

TEST(StopText, WithoutAStringPassesEverything) {
  StopText text("");
  EXPECT_EQ(text.push("all of it"), "all of it");
  EXPECT_FALSE(text.found());
}

}  // namespace
}  // namespace nibble
