#include "nibble/core/train/run/watchdog.h"

#include <gmock/gmock.h>

#include <vector>

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST(Watchdog, SaysWhatHangsAndIsQuietAboutTheRest) {
  std::mutex mutex;
  std::vector<std::string> lines;
  {
    Watchdog watchdog(0.1, [&](const std::string& line) {
      const std::lock_guard lock(mutex);
      lines.push_back(line);
    });
    watchdog.begin("saving", "step-3");
    for (int i = 0; i < 50; ++i) {  // steps that are quick enough
      watchdog.begin("training", "step " + std::to_string(i));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    watchdog.end("saving");
    watchdog.end("training");
  }
  ASSERT_GE(lines.size(), 1u);
  EXPECT_LE(lines.size(), 4u);  // at 0.1, 0.2 and 0.4 s
  for (const std::string& line : lines) EXPECT_THAT(line, HasSubstr("saving has been at step-3 for "));
}

TEST(Watchdog, ZeroSecondsIsNever) {
  Watchdog watchdog(0, [](const std::string&) { FAIL(); });
  watchdog.begin("training", "step 1");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

}  // namespace
}  // namespace nibble
