#include "nibble/core/train/run/watchdog.h"

#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST(Watchdog, SaysWhatHangsAndIsQuietAboutTheRest) {
  std::mutex mutex;
  std::condition_variable output;
  std::vector<std::string> lines;
  Watchdog watchdog(0.1, [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
    output.notify_one();
  });
  watchdog.begin("training", "step 1");
  watchdog.end("training");
  watchdog.begin("saving", "step-3");
  std::unique_lock lock(mutex);
  output.wait(lock, [&] { return lines.size() >= 2; });  // it goes on to say so
  for (const std::string& line : lines) EXPECT_THAT(line, HasSubstr("saving has been at step-3 for "));
}

TEST(Watchdog, ZeroSecondsIsNever) {
  Watchdog watchdog(0, [](const std::string&) { FAIL(); });
  watchdog.begin("training", "step 1");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

}  // namespace
}  // namespace nibble
