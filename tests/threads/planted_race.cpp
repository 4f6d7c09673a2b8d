// Races on purpose: shows that the sanitizer sees what it is there to see (CMakeLists.txt asks for its warning).

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "nibble/core/base/parallel.h"

namespace nibble {
namespace {

TEST(PlantedRace, Threads) {
  int count = 0;
  std::thread other([&] { ++count; });
  ++count;
  other.join();
  EXPECT_GT(count, 0);
}

TEST(PlantedRace, ParallelFor) {
  int64_t last = 0;
  parallel_for(64, 1, [&](int64_t begin, int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // so that one thread does not take all the pieces
    last = begin;
  });
  EXPECT_LT(last, 64);
}

}  // namespace
}  // namespace nibble
